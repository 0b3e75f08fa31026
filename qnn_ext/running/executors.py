"""Executors run a compiled model: as one function if the model allows, in TVM's virtual machine otherwise.

Both take and return NumPy arrays in model order and keep the states of a recurrent model between calls.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import numpy as np

from .. import tvm_runtime
from ..errors import QnnError
from ..module import Check, State, TensorSpec
from .kernels import Kernel
from .model import Layout
from .threads import ThreadCount, on_one_thread, on_threads, threads_for


class Executor(Protocol):
    """A compiled model with memory of its own."""

    def set_inputs(self, arrays: Sequence[np.ndarray]) -> None:
        """Copy the inputs, of the shapes and dtypes that the model declares."""

    def run(self) -> list[np.ndarray]:
        """Compute the outputs, which belong to the caller, and advance the states. If a check of the model fails,
        raises InputError and leaves the states as they were."""

    def reset_state(self) -> None:
        """Set every state back to its initial value."""

    def state_values(self) -> list[np.ndarray]:
        """Copies of the states."""

    def set_states(self, values: Sequence[np.ndarray]) -> None:
        """Copy values, of the states' shapes and dtypes, into the states."""

    def seconds(self, number: int, repeat: int) -> tuple[float, ...]:
        """Mean seconds of `number` runs, `repeat` times, without Python in between and without advancing the states."""

    def spans(self, repeat: int) -> np.ndarray:
        """When each kernel started and ended in `repeat` runs: float64 seconds since the first start, (repeat, kernels,
        2), in the order they run; a kernel in a loop as if it ran once, for as long as it took in all rounds."""


class _Value(NamedTuple):
    """The shape and dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: str


def raise_for(status: np.ndarray, checks: Sequence[Check]) -> None:
    """Raise InputError if the status, the last result of a model with checks, names one that failed."""
    if status[0]:
        index = int(status[0]) - 1
        if not 0 <= index < len(checks):
            raise QnnError(
                f"the compiled code reports a failure of check {index + 1}, but the file describes {len(checks)}: "
                "compile the model again"
            )
        raise checks[index].error(int(status[1]))


_STATUS = _Value((2,), "int64")


class Workspace:
    """Memory for programs that run in turn, with their states at the same places."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._memory: tuple[Any, np.ndarray] | None = None

    def memory(self) -> tuple[Any, np.ndarray, bool]:
        """The tensor and its bytes, and whether nobody has had them yet."""
        is_new = self._memory is None
        if self._memory is None:
            self._memory = tvm_runtime.tensor(np.zeros(self.size, np.uint8))
        return *self._memory, is_new


class ProgramExecutor:
    """Runs `qnn_ext.compiling.program`'s function over one workspace, which holds inputs, states and outputs too.

    workspace: one that other executors of the same model use, too: states are what the last of them left
    """

    def __init__(
        self,
        library: Any,
        weights: np.ndarray,
        layout: Layout,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        states: Sequence[State],
        checks: Sequence[Check],
        tasks: int,
        workspace: Workspace | None = None,
    ) -> None:
        self._module = library
        self._function = library["program"]
        self._tensor, self._workspace, is_new = (workspace or Workspace(layout.workspace)).memory()
        self._regions = self._workspace, weights
        self._tasks = min(tasks, layout.tasks)
        self._threads = threads_for(library, layout.tasks)
        self._counted = ThreadCount(self._tasks, self._threads)
        self._states, self._checks = states, checks
        self._stamps = self._view(0, layout.stamps, (layout.steps + 1,), "int64")
        carried = [_Value(state.initial.shape, str(state.initial.dtype)) for state in states]
        taken = [*(_Value(spec.shape, spec.dtype) for spec in inputs), *carried]
        given = [*(_Value(spec.shape, spec.dtype) for spec in outputs), *carried]
        if checks:
            given.append(_STATUS)
        views = [self._view(0, offset, *value) for offset, value in zip(layout.inputs, taken, strict=True)]
        self._inputs, self._before = views[: len(inputs)], views[len(inputs) :]
        places = zip(layout.outputs, given, strict=True)
        views = [self._view(region, offset, *value) for (region, offset), value in places]
        self._outputs, after = views[: len(outputs)], views[len(outputs) :][: len(states)]
        self._status = views[-1] if checks else None
        # those that the program does not update in place
        self._moved = [pair for pair in zip(self._before, after, strict=True) if _address(pair[0]) != _address(pair[1])]
        addresses = [ctypes.c_void_p(region.ctypes.data) for region in self._regions]
        self._addresses, self._args = addresses, [*addresses, self._tasks, 0]
        if is_new:
            self.reset_state()

    def _view(self, region: int, offset: int, shape: Sequence[int], dtype: str) -> np.ndarray:
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        return self._regions[region][offset : offset + size].view(dtype).reshape(shape)

    def set_inputs(self, arrays: Sequence[np.ndarray]) -> None:
        for view, array in zip(self._inputs, arrays, strict=True):
            view[...] = array

    def run(self) -> list[np.ndarray]:
        if self._tasks == 1:
            on_one_thread(self._function, *self._args)
        else:
            self._counted.run(self._on)
        if self._status is not None:
            raise_for(self._status, self._checks)
        results = [view.copy() for view in self._outputs]
        if self._moved:
            values = [new.copy() for _, new in self._moved]  # all before any is written: one state may become another
            for (view, _), value in zip(self._moved, values, strict=True):
                view[...] = value
        return results

    def _on(self, count: int) -> None:
        self._function(*self._addresses, count, 0)

    def _on_all(self) -> AbstractContextManager[None]:
        """A context for calls on all threads. With one there is no other thread to take, nor a pool to start."""
        return on_threads(self._threads, self._tasks) if self._tasks > 1 else nullcontext()

    def reset_state(self) -> None:
        self.set_states([state.initial for state in self._states])

    def state_values(self) -> list[np.ndarray]:
        return [view.copy() for view in self._before]

    def set_states(self, values: Sequence[np.ndarray]) -> None:
        for view, value in zip(self._before, values, strict=True):
            view[...] = value

    @contextmanager
    def _measuring(self) -> Iterator[None]:
        """A context for calls on all threads, after which the states are what they were: some are updated in place."""
        before = self.state_values()
        try:
            with self._on_all():
                yield
        finally:
            self.set_states(before)

    def seconds(self, number: int, repeat: int) -> tuple[float, ...]:
        with self._measuring():
            self._function(*self._args)
            return tvm_runtime.seconds_per_call(self._module, "program", self._args, number, repeat)

    def spans(self, repeat: int) -> np.ndarray:
        *args, _ = self._args
        rows = []
        with self._measuring():
            begin = self._profiled(args)
            time.sleep(_CALIBRATION)
            for _ in range(repeat):
                end = self._profiled(args)
                rows.append(self._stamps.copy())
        ticks_per_second = (end[1] - begin[1]) / (end[0] - begin[0])
        stamps = np.stack(rows)
        since = (stamps - stamps[0, 0]) / ticks_per_second
        return np.stack([since[:, :-1], since[:, 1:]], axis=-1)

    def _profiled(self, args: list[Any]) -> tuple[float, int]:
        """Run with time stamps; returns the time at the end, in seconds and in ticks."""
        self._function(*args, 1)
        return time.perf_counter(), int(self._stamps[-1])


def _address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


_CALIBRATION = 0.005  # seconds over which the ticks of the CPU's clock are counted


class MachineExecutor:
    """Runs `main` in TVM's virtual machine."""

    def __init__(
        self,
        library: Any,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        states: Sequence[State],
        checks: Sequence[Check],
        kernels: Sequence[Kernel],
        tasks: int,
        most: int,
    ) -> None:
        """most: threads that the library was made for"""
        self._library, self._kernels, self._states, self._tasks = library, kernels, states, min(tasks, most)
        self._checks = checks
        self._threads = threads_for(library, most)
        self._counted = ThreadCount(self._tasks, self._threads)
        self._machine = tvm_runtime.virtual_machine(library)
        self._function = self._machine["main"]
        buffers = [tvm_runtime.tensor(np.zeros(spec.shape, spec.dtype)) for spec in inputs]
        self._buffers = [buffer for buffer, _ in buffers]
        self._views = [view for _, view in buffers]
        self._count = len(outputs)
        self._values: list[Any] = []
        self.reset_state()

    def set_inputs(self, arrays: Sequence[np.ndarray]) -> None:
        for view, array in zip(self._views, arrays, strict=True):
            view[...] = array

    def _called(self) -> list[Any]:
        """Everything that the function returns. Raises QnnError, for example if the description is not the code's."""
        try:
            results = list(self._function(*self._buffers, *self._values))
        except Exception as error:  # what TVM raises has no common type
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise QnnError(f"the model cannot run: {reason}; compile it again") from error
        wanted = self._count + len(self._states) + bool(self._checks)
        if len(results) != wanted:
            raise QnnError(
                f"the compiled code returns {len(results)} results instead of {wanted}: compile the model again"
            )
        return results

    def run(self) -> list[np.ndarray]:
        results = self._counted.run(lambda _: self._called())
        if self._checks:
            raise_for(np.from_dlpack(results[-1]), self._checks)
        self._values = self._kept(results[self._count :][: len(self._states)])
        # copied, as an output may be an input buffer or a constant of the library; through DLPack that takes 1 µs
        return [np.array(np.from_dlpack(result)) for result in results[: self._count]]

    def _kept(self, states: Sequence[Any]) -> list[Any]:
        """The states for the next call. A state that is an unchanged input is copied, before the next input overwrites
        it."""
        arrays = [np.from_dlpack(state) for state in states]
        ours = {view.ctypes.data for view in self._views}
        return [
            tvm_runtime.tensor(array)[0] if array.ctypes.data in ours else state
            for state, array in zip(states, arrays, strict=True)
        ]

    def reset_state(self) -> None:
        self.set_states([state.initial for state in self._states])

    def state_values(self) -> list[np.ndarray]:
        return [np.array(np.from_dlpack(value)) for value in self._values]

    def set_states(self, values: Sequence[np.ndarray]) -> None:
        self._values = [tvm_runtime.tensor(value)[0] for value in values]

    def seconds(self, number: int, repeat: int) -> tuple[float, ...]:
        with on_threads(self._threads, self._tasks):
            self._called()
            args = [*self._buffers, *self._values]
            return tvm_runtime.seconds_per_call(self._machine, "main", args, number, repeat)

    def spans(self, repeat: int) -> np.ndarray:
        """An event costs about 1 µs itself."""
        with on_threads(self._threads, self._tasks):
            self._called()
            machine = tvm_runtime.virtual_machine(self._library)
            return machine_spans(machine, self._kernels, [*self._buffers, *self._values], repeat, lambda: None)


def machine_spans(
    machine: Any, kernels: Sequence[Kernel], args: Sequence[Any], repeat: int, wait: Callable[[], None]
) -> np.ndarray:
    """The spans of the kernels in `repeat` runs of `main`, each up to the end of `wait`.

    machine: must not be used for anything else, since an instrument cannot be removed
    """
    symbols = {kernel.symbol for kernel in kernels}
    spans: list[list[tuple[float, float]]] = []
    started = 0.0

    def instrument(function: Any, symbol: str, before_run: bool, result: Any, *args: Any) -> int:
        nonlocal started
        if symbol in symbols:
            wait()
            now = time.perf_counter()
            if before_run:
                started = time.perf_counter()
            else:
                spans[-1].append((started, now))
        return 0  # go on

    machine["set_instrument"](instrument)
    for _ in range(repeat + 1):
        spans.append([])
        machine["main"](*args)
    if any(len(row) != len(kernels) for row in spans):
        raise QnnError("kernels that run as one CUDA graph cannot be timed one by one: build without `cuda_graph`")
    found = np.asarray(spans[1:]).reshape(repeat, len(kernels), 2)
    return found - found[:1, :1, :1]
