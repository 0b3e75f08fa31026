"""Runs a compiled model on a GPU, in TVM's virtual machine: one module of kernels, its memory and constants there.

Launches return at once. `run` copies inputs in and outputs out and waits; `launch` takes and returns tensors on the
device and does not wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import tvm_runtime
from ..errors import InputError
from ..module import Check, State, TensorSpec, check_inputs
from ..tvm_runtime import tvm_ffi
from . import gpu_runtime
from .executors import machine_spans, raise_for
from .kernels import Kernel

_CUDA = 2  # DLPack's device type
_MOST_UNCHECKED = 1024  # launches not yet waited for; each keeps 16 bytes on the device


class DeviceExecutor:
    """An `Executor` for a library whose kernels run on `device`, "cuda:0"."""

    def __init__(
        self,
        library: Any,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        states: Sequence[State],
        checks: Sequence[Check],
        kernels: Sequence[Kernel],
        device: str = "cuda:0",
    ) -> None:
        self._library, self._kernels, self._states = library, kernels, states
        self._checks = checks
        self._unchecked: list[Any] = []  # the status of every launch since the last check
        self._device = tvm_ffi.device(device)
        self._machine = gpu_runtime.virtual_machine(library, self._device)
        self._function = self._machine["main"]
        self._inputs, self._count = inputs, len(outputs)
        self._stream = 0
        self._values: list[Any] = []
        self._buffers = [gpu_runtime.upload(np.zeros(spec.shape, spec.dtype), self._device) for spec in inputs]
        self.reset_state()
        with gpu_runtime.compiling():  # the first launch needs the kernels' binaries
            self._function(*self._buffers, *self._values)
        self._wait()

    def set_inputs(self, arrays: Sequence[np.ndarray]) -> None:
        for buffer, array in zip(self._buffers, arrays, strict=True):
            gpu_runtime.copy(tvm_runtime.tensor(array)[0], buffer)

    def run(self) -> list[np.ndarray]:
        self._switch(0)
        before = self._values
        results = self._step(self._buffers)
        try:
            self.check()
        except InputError:
            self._values = before
            raise
        arrays = [self._array(result) for result in results]
        self._wait()
        return arrays

    def launch(self, values: Sequence[Any], stream: int) -> list[Any]:
        """The outputs as tensors on the device, for inputs there or in NumPy; ready when the stream gets there.

        Tensors are exchanged through DLPack, without a copy. Memory of outputs that are no longer referenced is reused:
        a caller that continues on another stream must wait first, as this does when the stream changes.

        Raises InputError if an input does not fit.
        """
        self._switch(stream)
        with tvm_ffi.use_raw_stream(self._device, stream):
            return self._step([self._taken(*pair) for pair in zip(values, self._inputs, strict=True)])

    def check(self) -> None:
        """Wait, and raise InputError for the first launch in which a check of the model failed."""
        statuses, self._unchecked = self._unchecked, []
        if statuses:
            found = [self._array(status) for status in statuses]
            self._wait()
            for status in found:
                raise_for(status, self._checks)

    def _array(self, tensor: Any) -> np.ndarray:
        """A copy in the host's memory, complete after the next wait."""
        array = tvm_runtime.aligned_empty(tuple(tensor.shape), np.dtype(str(tensor.dtype)))
        gpu_runtime.copy(tensor, tvm_ffi.from_dlpack(array))
        return array

    def _taken(self, value: Any, spec: TensorSpec) -> Any:
        if isinstance(value, np.ndarray):
            return gpu_runtime.upload(check_inputs([value], [spec])[0], self._device)
        tensor = tvm_ffi.from_dlpack(value)
        found = tuple(tensor.shape), str(tensor.dtype), str(tensor.device)
        wanted = tuple(spec.shape), spec.dtype, str(self._device)
        if found != wanted:
            parts = [f"{dtype} of shape {shape} on {device}" for shape, dtype, device in (wanted, found)]
            raise InputError(f"input {spec.name!r} must be {parts[0]}, found {parts[1]}")
        return tensor

    def _step(self, tensors: Sequence[Any]) -> list[Any]:
        if len(self._unchecked) >= _MOST_UNCHECKED:
            self.check()
        results = self._function(*tensors, *self._values)
        given = {tensor.data_ptr() for tensor in tensors}
        states = results[self._count :][: len(self._states)]
        self._values = [self._copied(value) if value.data_ptr() in given else value for value in states]
        if self._checks:
            self._unchecked.append(results[-1])
        return list(results[: self._count])

    def _copied(self, value: Any) -> Any:
        """A copy of a tensor: a state that is an unchanged input must outlive that input."""
        result = gpu_runtime.empty(tuple(value.shape), str(value.dtype), self._device)
        gpu_runtime.copy(value, result)
        return result

    def _switch(self, stream: int) -> None:
        if stream != self._stream:
            self._wait()
            self._stream = stream

    def _wait(self) -> None:
        gpu_runtime.synchronize(self._device, self._stream)

    def reset_state(self) -> None:
        self.set_states([state.initial for state in self._states])

    def state_values(self) -> list[np.ndarray]:
        arrays = [self._array(value) for value in self._values]
        self._wait()
        return arrays

    def set_states(self, values: Sequence[np.ndarray]) -> None:
        self._values = [gpu_runtime.upload(np.asarray(value), self._device) for value in values]

    def seconds(self, number: int, repeat: int) -> tuple[float, ...]:
        """Measured by the device's own clock."""
        self._switch(0)
        args = [*self._buffers, *self._values]
        self._function(*args)
        kind, index = self._device.dlpack_device_type(), self._device.index
        return tvm_runtime.seconds_per_call(self._machine, "main", args, number, repeat, kind, index)

    def spans(self, repeat: int) -> np.ndarray:
        """Waits for the device after each kernel, so some 10 µs of each time are the launch."""
        self._switch(0)
        machine = gpu_runtime.virtual_machine(self._library, self._device)
        return machine_spans(machine, self._kernels, [*self._buffers, *self._values], repeat, self._wait)


def is_on_device(value: Any) -> bool:
    """Whether a value is a tensor in a GPU's memory."""
    device = getattr(value, "__dlpack_device__", None)
    return device is not None and int(device()[0]) == _CUDA


def handle_of(stream: Any) -> int:
    """CUDA's handle of a stream, as a number: for None that of the default stream, for PyTorch's its `cuda_stream`."""
    return int(getattr(stream, "cuda_stream", stream or 0))
