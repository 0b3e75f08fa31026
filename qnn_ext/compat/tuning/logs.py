"""autotvm.record, and the contexts that apply records."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ...autotune.measure import Decision, Result
from ...autotune.records import FOREIGN, Log, Record, Stale, append, best_of, known_results, parse_line
from ...autotune.records import apply_history_best as native_history
from ...errors import TuningError, TuningWarning
from ...files.storage import write_text
from ..absent import refuse
from .measuring import MeasureInput, MeasureResult, error_number


class LoggedTask:
    """The task of a record: its kernel, workload and target.

    record: the record; line: its line in a log
    """

    def __init__(self, record: Record, line: str) -> None:
        self.record, self.line = record, line
        self.name, self.workload, self.target = record.key

    def __repr__(self) -> str:
        return f"Task(func_name={self.name}, {self.workload})"


Pair = tuple[MeasureInput, MeasureResult]


def decode(row: str, protocol: str = "json") -> Pair | None:
    """The record in a line; None for lines that no longer mean anything. Raises TuningError for AutoTVM's own."""
    try:
        record = parse_line(row)
    except Stale as reason:
        if str(reason) == FOREIGN:
            raise TuningError("the record is one of TVM's AutoTVM, whose templates are gone: tune again") from None
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TuningError(f"the line is no record of a tuning log: {row[:60]!r}") from error
    task = LoggedTask(record, row.strip())
    result = MeasureResult((record.error or record.seconds,), int(error_number(record.error)))
    return MeasureInput(dict(record.key[2]), task, record.fields), result


def encode(inp: MeasureInput, result: MeasureResult, protocol: str = "json") -> str:
    """The line of a record that came from a log."""
    if not isinstance(inp.task, LoggedTask):
        refuse("record.encode of a new measurement", "autotvm.callback.log_to_file writes them")
    return inp.task.line


def load_from_buffer(file: Iterable[str]) -> Iterator[Pair]:
    """The records of an open log."""
    for row in file:
        if row.strip() and not row.startswith("#"):
            pair = decode(row)
            if pair is not None:
                yield pair


def load_from_file(filepath: str | os.PathLike) -> Iterator[Pair]:
    """The records of a log. Raises TuningError for a log of AutoTVM's."""
    with open(filepath, encoding="utf-8") as file:
        yield from load_from_buffer(file)


def pick_best(in_file: str | os.PathLike, out_file: str | os.PathLike) -> None:
    """Write the record of each task that `apply_history_best` would apply into another log.

    Where there is no log, as after tuning a model without tasks, both are empty ones, with a warning: scripts remove
    the first afterwards.
    """
    if not Path(in_file).exists():
        warnings.warn(f"{in_file} has no records: nothing was tuned", TuningWarning, stacklevel=2)
        write_text(in_file, "")
    groups: dict[Any, list[LoggedTask]] = {}
    for inp, _ in load_from_file(in_file):
        groups.setdefault(inp.task.record.key, []).append(inp.task)
    write_text(out_file, "")
    for tasks in groups.values():
        best = best_of([task.record for task in tasks])
        for task in tasks:
            if task.record is best:
                append(out_file, task.line)


def results_of(history: Sequence[tuple[Any, Any]], task: Any, space: Any) -> tuple[list[Result], Decision | None]:
    """What records say of a task."""
    records = [inp.task.record for inp, _ in history if isinstance(inp.task, LoggedTask)]
    return known_results(Log(Path("history"), records), task, space)


class DispatchContext:
    """A context of builds that takes configurations from somewhere; entered as often as wanted."""

    def __init__(self) -> None:
        self._entered: list[AbstractContextManager[Any] | None] = []

    def _scope(self) -> AbstractContextManager[Any] | None:
        return None

    def __enter__(self) -> DispatchContext:
        scope = self._scope()
        if scope is not None:
            scope.__enter__()
        self._entered.append(scope)
        return self

    def __exit__(self, *exception: Any) -> None:
        scope = self._entered.pop()
        if scope is not None:
            scope.__exit__(*exception)


class FallbackContext(DispatchContext):
    """The defaults: what a build uses anyway."""

    silent = False

    def clear_cache(self, target: Any, workload: Any) -> None:
        pass


class ApplyHistoryBest(DispatchContext):
    """Within it, builds use the best records.

    records: the path of a log, several paths, an open log, lines of one, or pairs of `record.load_from_file`. A path
             where there is no log, as after tuning a model without tasks, is nothing but a warning
    """

    def __init__(self, records: Any) -> None:
        super().__init__()
        self._sources: list[Any] = []
        self.load(records)

    def load(self, records: Any) -> None:
        """More records."""
        if records is None:
            return
        if isinstance(records, (str, os.PathLike)):
            path = Path(records)
            if path.exists() and path.stat().st_size:
                self._sources.append(path)
            else:
                warnings.warn(f"{path} has no records: defaults are used", TuningWarning, stacklevel=3)
            return
        items = list(records)
        if items and all(
            isinstance(item, (str, os.PathLike)) and not str(item).lstrip().startswith("{") for item in items
        ):
            for item in items:
                self.load(item)
            return
        self._sources.append([item[0].task.record if isinstance(item, tuple) else item for item in items])

    def _scope(self) -> AbstractContextManager[Any] | None:
        if not self._sources:
            return None
        if len(self._sources) == 1:
            return native_history(self._sources[0])
        lines: list[Any] = []
        for source in self._sources:
            lines += source if isinstance(source, list) else Path(source).read_text(encoding="utf-8").splitlines()
        return native_history(lines)


class ApplyGraphBest(ApplyHistoryBest):
    """As ApplyHistoryBest: kernels were the only thing to choose."""


class GraphTuner:
    """Graph tuning chose between layouts for the transforms between them. Activations are NHWC throughout, and weights
    packed at build time: there is no layout to tune, and the records of the kernels are kept as they are."""

    def __init__(self, graph: Any, input_shapes: Any, records: Any, target_ops: Any, target: Any, **_: Any) -> None:
        self._records = records
        warnings.warn(
            "graph tuning: activations are NHWC throughout, so there is no layout to tune; the kernels' records are "
            "kept",
            TuningWarning,
            stacklevel=2,
        )

    def benchmark_layout_transform(self, **_: Any) -> None:
        """Nothing: no layouts are transformed."""

    def run(self, **_: Any) -> None:
        """Nothing."""

    def get_optimal_records(self) -> list[Pair]:
        return list(load_from_file(self._records)) if Path(self._records).exists() else []

    def write_opt_sch2record_file(self, record_file: str | os.PathLike = "graph_opt.log") -> None:
        """The kernels' records once more."""
        if Path(self._records).exists():
            write_text(record_file, Path(self._records).read_text(encoding="utf-8"))
        else:
            write_text(record_file, "")
