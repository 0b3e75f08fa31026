"""Whole models on emulated ARM CPUs: `emulated(engine)` is used like any other engine.

A model that is one function (`qnn_ext.compiling.program`) needs only a C library. A model for TVM's virtual machine
runs with the runtime libraries of TVM's aarch64 wheel, which `scripts.emulators` unpacks.
"""

from __future__ import annotations

import ctypes
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm.target import Target

import qnn_ext
from qnn_ext.module import State, TensorSpec
from qnn_ext.running.executors import MachineExecutor, ProgramExecutor
from qnn_ext.targets import families
from qnn_ext.targets.features import backend_of
from qnn_ext.targets.linking import export_library
from scripts.emulators import SITE

from . import emulator
from .emulator import AARCH64, CHANGED_POINTER, READ, READ_POINTER, Argument, EmulationError, integer


def emulated(engine: qnn_ext.Engine, cpu: str = "") -> qnn_ext.Engine:
    """An engine built for an ARM target, from now on running on an emulated CPU, by default its target's plainest."""
    assert engine._built is not None
    target = Target(engine.target)
    emulator.require(target)
    cpu = cpu or emulator.plainest_cpu(target)
    model = engine.inputs, engine.outputs, engine._model.states, engine._model.checks
    before, weights = engine._executor, engine._built.weights
    if weights is not None:
        linked = before._module if isinstance(before, ProgramExecutor) else None
        library = replace(linked, cpu=cpu) if isinstance(linked, Program) else Program.of(engine, target, cpu)
        engine._executor = ProgramExecutor(library, weights, engine._variant.program, *model, engine.num_threads)
    elif backend_of(target) is families.AARCH64:
        engine._executor = MachineExecutor(Machine(engine, cpu), *model, engine.kernels, 1, 1)
    else:
        pytest.skip("TVM's runtime library, which this model needs, has no wheel for 32-bit ARM")
    return engine


@dataclass(frozen=True)
class Program:
    """Stands in for the library of a model that is one function: `ProgramExecutor` calls `program(workspace, weights,
    tasks, profile)` with addresses in this process."""

    path: Path
    folder: Any  # keeps the file alive
    arch: emulator.Architecture
    cpu: str
    sizes: tuple[int, int]

    @classmethod
    def of(cls, engine: qnn_ext.Engine, target: Target, cpu: str) -> Program:
        """The linked library of an engine."""
        assert engine._built is not None and engine._built.weights is not None
        folder, arch = tempfile.TemporaryDirectory(dir=emulator.scratch()), emulator.architecture(target)
        path = emulator.link(engine._built.executable, "program", arch, Path(folder.name))
        return cls(path, folder, arch, cpu, (engine._variant.program.workspace, engine._built.weights.size))

    def __getitem__(self, name: str) -> Any:
        assert name == "program"
        return self._call

    def _call(self, workspace: Any, weights: Any, tasks: int, profile: int) -> None:
        memory, constants = map(_bytes_at, (workspace, weights), self.sizes)
        arrays = Argument(CHANGED_POINTER, memory), Argument(READ_POINTER, constants)
        arguments = [*arrays, integer(tasks), integer(profile)]
        (memory[...],) = emulator.call(self.path, arguments, self.arch, self.cpu, tasks)


def _bytes_at(address: ctypes.c_void_p, size: int) -> np.ndarray:
    if size == 0:  # a model may have no weights
        return np.empty(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address.value or 0))


class Machine:
    """Stands in for the library of a model for TVM's virtual machine, and for the machine itself."""

    def __init__(self, engine: qnn_ext.Engine, cpu: str) -> None:
        assert engine._built is not None
        self._cpu = cpu
        self._results: list[TensorSpec | State] = [*engine.outputs, *engine._model.states]
        self._runner = _machine_runner()
        self._folder = tempfile.TemporaryDirectory(dir=emulator.scratch())
        self._library = Path(self._folder.name) / "model.so"
        export_library(engine._built.executable, str(self._library), AARCH64.name)

    def __getitem__(self, name: str) -> Any:
        return {"vm_load_executable": lambda: self, "vm_initialization": lambda *_: None, "main": self._main}[name]

    def _main(self, *tensors: Any) -> list[np.ndarray]:
        arguments = [Argument(READ, np.from_dlpack(tensor)) for tensor in tensors]
        with emulator.request(arguments) as (asked, result):
            emulator.run_program([self._runner, self._library, asked, result], AARCH64, self._cpu)
            return _split(result.read_bytes(), self._results)


def _split(data: bytes, results: Sequence[TensorSpec | State]) -> list[np.ndarray]:
    arrays, start = [], 0
    for result in results:
        shape, dtype = (
            (result.initial.shape, result.initial.dtype)
            if isinstance(result, State)
            else (result.shape, np.dtype(result.dtype))
        )
        array = np.frombuffer(data, dtype, int(np.prod(shape)), start).reshape(shape)
        arrays.append(array.copy())
        start += array.nbytes
    if start != len(data):
        raise EmulationError(f"the model wrote {len(data)} bytes instead of {start}")
    return arrays


@cache
def _machine_runner() -> Path:
    """`machine.cc` linked with the runtime libraries of the aarch64 wheels; skips the test without them."""
    folders = [SITE / package / "lib" for package in ("tvm", "tvm_ffi")]
    if not all(folder.is_dir() for folder in folders):
        pytest.skip("no wheels for aarch64 in the virtual environment: python -m scripts.emulators")
    compiler = f"{AARCH64.prefix}g++"
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} not found: python -m scripts.emulators")
    path = emulator.scratch() / "machine"
    libraries = [*(f"-L{folder}" for folder in folders), *(f"-Wl,-rpath,{folder}" for folder in folders)]
    source = emulator.HERE / "machine.cc"
    linked = ["-Wl,--no-as-needed", "-ltvm_runtime", "-ltvm_runtime_extra", "-ltvm_ffi"]
    emulator.command(compiler, "-std=c++17", "-O1", *emulator.includes(), source, *libraries, *linked, "-o", path)
    return path
