"""A build as the command line shows it: how far it is, what each pass changed, and the module after each of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from rich.console import Console
from tvm import IRModule, ir, relax, tirx

from ..files.storage import write_text
from ..running.timing import time_text
from .progress import Detail, Tell
from .tables import Column, print_table

_SHARES = {"lower": 0.25, "program": 0.25, "machine code": 0.3}  # of a build's time; the others take about the same
_OTHERS = 35  # how many they are
_SHOWN_CHANGES = 6


@dataclass
class Passes:
    """Watches the builds of a command: see `qnn_ext.compiling.watch.Watcher`.

    tell:    moves a progress bar, if there is one
    targets: for how many targets the model is built, one after another
    detail:  what to find out, which takes time
    """

    tell: Tell | None
    targets: int = 1
    detail: Detail | None = None
    _done: float = 0.0
    _current: list[str] = field(default_factory=list)

    def begins(self, name: str) -> None:
        self._current.append(name)
        self.progressed(0.0)

    def progressed(self, share: float) -> None:
        if self._current and self.tell is not None:
            done = (self._done + share * _share(self._current[-1])) / self.targets
            self.tell(self._current[-1], min(1.0, done))  # the bodies of loops go through the passes too

    def ended(self, name: str, seconds: float, before: IRModule | None, after: IRModule | None) -> None:
        self._current.pop()
        self._done += _share(name)
        detail = self.detail
        if detail is None:
            return
        row = {"pass": name, "seconds": seconds, "changed": None}
        if before is not None and after is not None:
            row["changed"] = changed(before, after)
            if detail.folder is not None:
                file = detail.folder / f"{len(detail.rows) + 1:02}_{name}.py"
                write_text(file, str(after.script(show_meta=False)) + "\n")
                row["file"] = str(file)
        detail.rows.append(row)


def _share(name: str) -> float:
    return _SHARES.get(name, (1 - sum(_SHARES.values())) / _OTHERS)


def changed(before: IRModule, after: IRModule) -> str:
    """How many calls of which operators, kernels and functions there are more or fewer, most of them first."""
    if before.same_as(after):
        return ""
    first, then = _census(before), _census(after)
    moved = sorted(
        ((then[name] - first[name], name) for name in first | then if then[name] != first[name]),
        key=lambda change: (-abs(change[0]), change[1]),
    )
    texts = [f"{'+' if count > 0 else '−'}{abs(count)} {name}" for count, name in moved[:_SHOWN_CHANGES]]
    if len(moved) > _SHOWN_CHANGES:
        texts.append(f"{len(moved) - _SHOWN_CHANGES} more")
    if texts:
        return ", ".join(texts)
    return "" if tvm_ffi.structural_equal(before, after) else "attributes, shapes or constants"


def _census(mod: IRModule) -> Counter[str]:
    """How often each operator is called, and the functions by kind."""
    found: Counter[str] = Counter()

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call):
            found[_called(expr)] += 1

    for _, function in mod.functions_items():
        if isinstance(function, tirx.PrimFunc):
            found["PrimFunc"] += 1
        elif isinstance(function, relax.Function):
            found["function"] += 1
            relax.analysis.post_order_visit(function, visit)
    return found


def _called(call: relax.Call) -> str:
    if isinstance(call.op, ir.Op):
        return str(call.op.name).removeprefix("relax.")
    return "call of a function"


_COLUMNS = (Column("pass"), Column("time", number=True), Column("changed"))


def print_passes(console: Console, rows: list[dict[str, Any]]) -> None:
    """A table of the passes, in the order they ran."""
    texts = [
        (row["pass"], time_text(row["seconds"]), "" if row["changed"] is None else row["changed"] or "nothing")
        for row in rows
    ]
    print_table(console, _COLUMNS, texts, "passes")
