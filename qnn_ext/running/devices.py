"""What runs the code of a compiled model: this machine's CPU or its GPU, by the `device` of the target's backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

import numpy as np

from ..errors import QnnError
from ..module import Check, State, TensorSpec
from ..targets import gpus
from ..targets.backend import threads_of
from ..targets.families import backend_described
from .executors import Executor, MachineExecutor, ProgramExecutor, Workspace
from .model import Model, Variant

Code: TypeAlias = tuple[Any, np.ndarray | None]  # the library, and the weights stored outside it


class Device(Protocol):
    """A device that engines run on.

    sources: the kinds of source available for its code, besides "tir"
    """

    @property
    def sources(self) -> tuple[str, ...]: ...

    def check(self) -> None:
        """Raise TargetError if this process can no longer use the device."""

    def loading(self) -> Any:
        """The context in which libraries with code for the device are loaded."""

    def executor(
        self, code: Code, model: Model, variant: Variant, threads: int, workspace: Workspace | None = None
    ) -> Executor:
        """What runs a loaded library, in a workspace that others use too, if one is given."""

    def holds(self, value: Any) -> bool:
        """Whether an input is in the device's own memory."""

    def launch(self, executor: Executor, values: Sequence[Any], stream: Any) -> list[Any]:
        """Outputs in the device's own memory, ready when the stream gets there. Raises QnnError if it has none."""

    def source(self, kind: str, module: Any, target: Mapping[str, Any]) -> str:
        """The source of a compiled module; `kind` is one of `sources`."""


def _interface(model: Model) -> tuple[Sequence[TensorSpec], Sequence[TensorSpec], Sequence[State], Sequence[Check]]:
    return model.inputs, model.results, model.states, model.checks


class _Cpu:
    sources = ("ll", "asm")

    def check(self) -> None:
        pass

    @contextmanager
    def loading(self) -> Iterator[None]:
        yield

    def executor(
        self, code: Code, model: Model, variant: Variant, threads: int, workspace: Workspace | None = None
    ) -> Executor:
        library, weights = code
        if weights is None or variant.program is None:
            most = threads_of(variant.target)
            return MachineExecutor(library, *_interface(model), variant.kernels, threads, most)
        return ProgramExecutor(library, weights, variant.program, *_interface(model), threads, workspace)

    def holds(self, value: Any) -> bool:
        return False

    def launch(self, executor: Executor, values: Sequence[Any], stream: Any) -> list[Any]:
        raise QnnError("only an engine built for a GPU launches on a stream")

    def source(self, kind: str, module: Any, target: Mapping[str, Any]) -> str:
        return "\n".join(part.inspect_source(kind) for part in [module, *module.imports] if part.kind == "llvm")


class _Gpu:
    """A GPU. Its modules are imported at first use: on CPUs they would only take memory."""

    sources = ("ll", "asm", "cuda", "ptx")

    def check(self) -> None:
        gpus.check_not_forked()

    @contextmanager
    def loading(self) -> Iterator[None]:
        from . import gpu_runtime

        gpu_runtime.load()
        with gpu_runtime.compiling():
            yield

    def executor(
        self, code: Code, model: Model, variant: Variant, threads: int, workspace: Workspace | None = None
    ) -> Executor:
        from .gpu_executor import DeviceExecutor

        library, _ = code
        return DeviceExecutor(library, *_interface(model), variant.kernels)

    def holds(self, value: Any) -> bool:
        from .gpu_executor import is_on_device

        return is_on_device(value)

    def launch(self, executor: Executor, values: Sequence[Any], stream: Any) -> list[Any]:
        from .gpu_executor import DeviceExecutor, handle_of

        assert isinstance(executor, DeviceExecutor)
        return executor.launch(values, handle_of(stream))

    def source(self, kind: str, module: Any, target: Mapping[str, Any]) -> str:
        if kind == "ll":
            return _CPU.source(kind, module, target)
        from ..targets import cuda_compiler

        source, architecture = cuda_compiler.source_of(module), str(target["arch"])
        compiled = {"ptx": cuda_compiler.ptx, "asm": cuda_compiler.machine_code}
        return compiled[kind](source, architecture) if kind in compiled else source


_CPU = _Cpu()
_DEVICES: dict[str, Device] = {"cpu": _CPU, "gpu": _Gpu()}
SOURCES = ("tir", *dict.fromkeys(kind for device in _DEVICES.values() for kind in device.sources))


def device_of(target: Mapping[str, Any]) -> Device:
    """What runs code for a target, given as in a `.qnn` file's description."""
    return _DEVICES[backend_described(target).device]
