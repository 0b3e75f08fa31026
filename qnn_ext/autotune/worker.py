"""The code of the worker processes: compiling a configuration, and checking and timing the result.

`main` answers the requests of `pool`. Over RPC, the worker stays here and talks to a server with `tvm.rpc`; a
kernel is compiled and its data made in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from ..compiling.codegen import generate_code
from ..errors import ArtifactError
from ..processes.channel import Channel, Closed, to_parent
from ..targets.backend import threads_of
from ..targets.linking import export_library
from ..targets.names import check_runs_here, target_architecture
from ..tvm_runtime import set_up
from .kernel import Product, kernel_of, product
from .space import Configuration
from .task import Task
from .timing import Timer, race

REPEAT = 4  # measurements in one batch, of which the minimum counts
UNWRITTEN = 0x5A


@dataclass(frozen=True)
class Tracker:
    """TVM's RPC tracker, to which servers report; the key of the servers to use, seconds that a session may take."""

    host: str
    port: int
    key: str
    timeout: float


@dataclass(frozen=True)
class Timing:
    """How a race is run, see `timing.race`."""

    rounds: int
    batch_seconds: float
    number: int | None


class WrongResult(Exception):
    """A kernel's result differs from the interpreter's."""


def compile_candidate(task: Task, configuration: Configuration | None, path: str) -> str:
    """Compile a configuration's kernel to a library, with its constants in an .npz beside it; returns the library's
    path.

    It is a shared library if this machine can link for the target, else LLVM IR as text, which TVM on the other side
    compiles when it loads it.
    """
    kernel = kernel_of(task, configuration)
    executable = generate_code(kernel.module, task.target)
    np.savez(f"{path}.npz", *kernel.constants)
    try:
        export_library(executable, f"{path}.so", target_architecture(task.target))
    except ArtifactError:
        executable.mod.write_to_file(f"{path}.ll")
        return f"{path}.ll"
    return f"{path}.so"


def measure(task: Task, paths: Sequence[str], timing: Timing, tracker: Tracker | None) -> list[float | str]:
    """Seconds of one call of each library, timed in turns; the text of the error for one with a wrong result.

    Each is compared with the interpreter before it is timed.
    """
    set_up()
    session = _connect(tracker) if tracker else None
    if session is None:
        check_runs_here(task.target)
    device = session.cpu(0) if session else tvm.cpu()
    find = session.get_function if session else tvm.get_global_func
    find("runtime.config_threadpool")(1, threads_of(task.target.attrs))
    data = product(task.workload)
    inputs = [tvm.runtime.tensor(value, device=device) for value in data.inputs]
    timers: list[Timer] = []
    results: list[int | str] = []
    for path in paths:
        if session:
            session.upload(path)
        library = session.load_module(Path(path).name) if session else tvm.runtime.load_module(path)
        arguments = [*inputs, *_constants(path, device), _output(data, device)]
        try:
            check(library["main"], arguments, data)
        except WrongResult as error:
            results.append(str(error))
            continue
        results.append(len(timers))
        timers.append(_timer(library, device, arguments))
    rounds, batch = timing.rounds, timing.batch_seconds
    seconds = race([_fixed(timer, timing.number) for timer in timers], rounds, batch) if timers else []
    return [value if isinstance(value, str) else seconds[value] for value in results]


def check(function: Any, arguments: Sequence[Any], data: Product) -> None:
    """Run a kernel and compare every output with the interpreter's. Raises WrongResult."""
    function(*arguments)
    found = arguments[-1].numpy()
    wrong = found != data.expected
    if wrong.any():
        at = tuple(int(index) for index in np.argwhere(wrong)[0])
        raise WrongResult(
            f"{int(wrong.sum())} of {wrong.size} outputs differ from the interpreter's: "
            f"{found[at]} instead of {data.expected[at]} at {at}"
        )


def _connect(tracker: Tracker) -> Any:
    from tvm.s_tir.meta_schedule.runner import RPCConfig

    timeout = int(tracker.timeout)
    return RPCConfig(tracker.host, tracker.port, tracker.key, session_timeout_sec=timeout).connect_server()


def _constants(path: str, device: Any) -> list[Any]:
    with np.load(Path(path).with_suffix(".npz"), allow_pickle=False) as file:
        return [tvm.runtime.tensor(file[f"arr_{index}"], device=device) for index in range(len(file.files))]


def _output(data: Product, device: Any) -> Any:
    return tvm.runtime.tensor(np.full(data.expected.shape, UNWRITTEN, data.expected.dtype), device=device)


def _timer(library: Any, device: Any, arguments: Sequence[Any]) -> Timer:
    return lambda number: library.time_evaluator("main", device, number=number, repeat=REPEAT)(*arguments).min


def _fixed(timer: Timer, number: int | None) -> Timer:
    return timer if number is None else lambda _: timer(number)


# ---- the process -------------------------------------------------------------------------------------------------


def main() -> None:
    """Say that everything is imported, then answer one request after the other."""
    with to_parent() as parent:
        parent.send(None)
        while True:
            parent.send(_answer(parent))


def _answer(parent: Channel) -> tuple[bool, Any]:
    """Whether the next request succeeded, and its result or the error's text."""
    try:
        function, arguments = parent.receive()
        return True, function(*arguments)
    except Closed:
        raise
    except Exception as error:
        return False, f"{type(error).__name__}: {str(error).strip().splitlines()[-1] if str(error) else ''}"
