"""Tiles measured while a model is built: the best few by predicted cost, timed on this machine and kept for it.

The records are those of a tuning log, in one file for each machine and version, beside the cache of builds. Tiles do
not change results, so a build differs from one without measuring only in speed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import tvm
from tvm.target import Target

from ..compiling.build import TargetLike
from ..errors import TargetError, TuningError, TuningWarning
from ..module import QnnModule
from ..targets.host import cpu_name, host_caches, host_features
from ..targets.names import make_target
from ..topi_int8.strategy import tiles_from
from .callbacks import LogFile
from .measure import check_target, measure_option
from .progress import TuningProgress
from .records import FORMAT, History, Log, read_log
from .session import tune_task, whole_model
from .space import space_of
from .task import Task, extract_from_program
from .tuners import GridSearchTuner


@dataclass(frozen=True)
class Measure:
    """How `build` measures.

    candidates: tiles to time for each distinct product, besides the one of least predicted cost
    seconds:    after this time no further product is begun; those with most work come first, and the rest keep the
                predicted tiles, until another build with measuring goes on with them
    log:        where results are kept, a tuning log as of `tune`. Default: the cache's folder, in a file for this kind
                of CPU; nothing is kept if there is no cache
    progress:   show live progress on stderr
    """

    candidates: int = 6
    seconds: float = 300.0
    log: str | os.PathLike[str] | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        if self.candidates < 1 or not self.seconds > 0:
            raise TuningError(f"measure: candidates {self.candidates} and seconds {self.seconds} must both be positive")


@contextmanager
def measured_tiles(
    module: QnnModule,
    target: TargetLike | Sequence[TargetLike],
    num_threads: int | None,
    measure: Measure,
    folder: Path | None = None,
) -> Iterator[History]:
    """A context in which builds of a module use the tiles that are fastest here; those not known yet are measured now.

    folder: where results are kept; None: nowhere

    Raises TargetError for a target that this machine cannot run, and TuningError for a log that cannot be used.
    """
    resolved = _target_here(target, num_threads)
    tasks = extract_from_program(module, resolved)
    with _log_file(measure.log, folder) as log:
        _measure(module, tasks, resolved, log, measure)
        history = History(_records_for(log, tasks))
    with tiles_from(history):
        yield history


def _measure(module: QnnModule, found: Sequence[Task], target: Target, log: Path, measure: Measure) -> None:
    """Measure what the log does not have of a module's tasks."""
    tasks = {task: len(space_of(task)) - 1 for task in found}
    tasks = {task: min(count, measure.candidates) for task, count in tasks.items() if count}
    if not tasks:
        return
    started = time.monotonic()
    file, option = LogFile(log), measure_option()
    outcomes = []
    try:
        with TuningProgress(list(tasks), measure.candidates, {}, measure.progress) as live:
            for task, candidates in tasks.items():
                if time.monotonic() - started > measure.seconds:
                    break
                outcomes.append(tune_task(GridSearchTuner(task), candidates, option, None, [file, live]))
        if any(outcome.new for outcome in outcomes):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TuningWarning)  # that the defaults are as fast is no reason to worry
                whole_model(module, target, log, outcomes, option)
    finally:
        option.close()


def _target_here(target: TargetLike | Sequence[TargetLike], num_threads: int | None) -> Target:
    """The one target, if this machine runs it. Raises TargetError."""
    if not isinstance(target, (str, Mapping, Target)):
        raise TargetError("measure takes one target, that of this machine; for others tune over RPC instead")
    resolved = make_target(target, num_threads)
    check_target(resolved, remote=False)
    return resolved


# ---- where results are kept --------------------------------------------------------------------------------------


def machine_log(folder: Path) -> Path:
    """The file for this kind of CPU, the format of the records and this version of TVM."""
    caches = host_caches()
    facts = [FORMAT, tvm.__version__, cpu_name(), sorted(host_features()), caches and asdict(caches)]
    return folder / f"measured-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]}.jsonl"


@contextmanager
def _log_file(given: str | os.PathLike[str] | None, folder: Path | None) -> Iterator[Path]:
    """The log to use: the one given, this machine's in the folder, or, without a usable folder, a passing one."""
    if given is not None:
        yield Path(given)
        return
    if folder is not None:
        with contextlib.suppress(OSError):
            folder.mkdir(0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            yield machine_log(folder)
            return
    with tempfile.TemporaryDirectory(prefix="qnn-ext-measured-") as passing:
        yield Path(passing) / "measured.jsonl"


def _records_for(log: Path, tasks: Sequence[Task]) -> Log:
    """The log's records of some tasks; that there are others is no reason for a warning."""
    if not log.exists():
        return Log(log, [])
    found = read_log(log)
    wanted = {task.key() for task in tasks}
    return Log(log, [record for record in found.records if record.key in wanted], found.ignored)
