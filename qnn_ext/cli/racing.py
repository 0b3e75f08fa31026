"""`qnn-ext bench --compare`: other runtimes on the same inputs, with how far their outputs are from ours."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from .. import __version__
from ..errors import QnnError
from ..racing.power import Meter
from ..racing.race import Entry, difference, race
from ..racing.runtimes import PEERS, Peer
from ..racing.worker import OURS, Task
from ..running.engine import Engine
from ..running.timing import time_text
from .formats import TITLES
from .progress import stages
from .tables import Column, print_table

_TITLES = {OURS: OURS, **{peer.key: peer.title for peer in PEERS}}


def parse_peers(text: str, form: str) -> list[Peer]:
    """The runtimes that commas separate. Raises QnnError for an unknown one, and for a compiled model."""
    known = {peer.key: peer for peer in PEERS}
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise QnnError(f"--compare {name}: there is no such runtime; it can be {', '.join(known)}, or several")
    if form == "qnn":
        raise QnnError("--compare: other runtimes cannot read a .qnn file: give the model that it was compiled from")
    return [known[name] for name in dict.fromkeys(names)]


def compared(
    engine: Engine,
    model: Path,
    form: str,
    peers: Sequence[Peer],
    inputs: Sequence[np.ndarray],
    rounds: int,
    seconds: float | None,
    warm_up: float,
    meter: Meter | None,
) -> list[dict[str, Any]]:
    """A row for this package and for each of the runtimes, with its times, or with the problem that it had."""
    problems = {peer.key: problem for peer in peers if (problem := _problem(peer, form))}
    with tempfile.TemporaryDirectory(prefix="qnn-ext-") as folder, stages(f"comparing {model.name}") as tell:
        ours = Path(folder) / "model.qnn"
        engine.save(ours)
        tasks = {OURS: Task(OURS, str(ours), engine.num_threads, list(inputs))}
        for peer in peers:
            if peer.key not in problems:
                tasks[peer.key] = Task(peer.key, str(model.absolute()), engine.num_threads, list(inputs))
        entries = race(tasks, rounds, seconds, warm_up, meter, tell)
    entries |= {key: Entry(key, problem) for key, problem in problems.items()}
    return [_row(entries[key], entries[OURS]) for key in (OURS, *(peer.key for peer in peers))]


def _problem(peer: Peer, form: str) -> str:
    """Why a runtime takes no part, or an empty text."""
    if form not in peer.formats:
        return f"does not read {TITLES[form]} files"
    return f"is not installed: pip install {peer.package}" if peer.missing else ""


def _row(entry: Entry, ours: Entry) -> dict[str, Any]:
    data: dict[str, Any] = {"runtime": entry.key, "version": None}
    if entry.problem:
        return data | {"problem": entry.problem}
    assert entry.ready is not None
    data["version"] = __version__ if entry.key == OURS else entry.ready.version
    data |= {"median_ms": entry.median * 1e3, "best_ms": entry.least * 1e3, "turns": len(entry.seconds)}
    data |= {"calls_per_turn": entry.calls, "first_ms": entry.ready.seconds * 1e3, "joules": entry.joules_per_call}
    if ours.ready is not None and not ours.problem:
        data |= {"ratio": entry.median / ours.median, "best_ratio": entry.least / ours.least}
        found = difference(ours.ready.outputs, entry.ready.outputs)
        equal, largest = found or (None, None)
        data |= {"equal": equal, "largest_difference": largest}
    return data


_COLUMNS = (
    Column("runtime"),
    Column("median", number=True),
    Column("best", number=True, drop=2),
    Column("/ ours", number=True),
    Column("equal values", number=True),
    Column("largest difference", number=True, drop=3),
    Column("energy", number=True, drop=4),
    Column("first call", number=True, drop=1),
)


def print_compared(console: Console, rows: Sequence[dict[str, Any]], threads: int) -> None:
    """A table of the runtimes that ran, and a line for each that did not."""
    cells = [_cells(row) for row in rows if "problem" not in row]
    title = f"at most {threads} thread{'s' if threads > 1 else ''} each, in turns"
    if any(row.get("joules") is not None for row in rows):
        shown = list(range(len(_COLUMNS)))
    else:
        shown = [index for index, column in enumerate(_COLUMNS) if column.title != "energy"]
    print_table(console, [_COLUMNS[i] for i in shown], [[line[i] for i in shown] for line in cells], title)
    for row in rows:
        if "problem" in row:
            console.print(f"{_TITLES[row['runtime']]}: {row['problem']}", markup=False)


def _cells(row: dict[str, Any]) -> list[str]:
    equal, largest = row.get("equal"), row.get("largest_difference")
    return [
        f"{_TITLES[row['runtime']]} {row['version']}".strip(),
        time_text(row["median_ms"] / 1e3),
        time_text(row["best_ms"] / 1e3),
        f"{row['ratio']:.2f}" if "ratio" in row else "",
        "other shapes" if equal is None else _share(equal),
        "" if largest is None else f"{largest:.4g}",
        "" if row["joules"] is None else f"{row['joules'] * 1e3:.3g} mJ",
        time_text(row["first_ms"] / 1e3),
    ]


def _share(equal: float) -> str:
    """A percentage that says 100 only where every value is equal."""
    return "all" if equal == 1.0 else f"{min(99.99, 100 * equal):.2f} %"
