"""TVM's runtime without its compiler: all that a compiled model needs, in a tenth of the memory and of the time.

Nothing here imports `tvm`, whose compiler library takes some 150 MB; only its small runtime library is loaded. Where
`tvm` is imported too, before or after, both share that library.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from . import forking


@contextlib.contextmanager
def _instead(stand_ins: Mapping[str, ModuleType | None], forget: Iterable[str] = ()) -> Iterator[None]:
    """Imports in here find the stand-ins for modules, or none of them for None, and leave none of `forget` behind; what
    is loaded stays so."""
    replaced = {name: module for name, module in stand_ins.items() if name not in sys.modules}
    left = [name for name in forget if name not in sys.modules]
    sys.modules.update(replaced)  # type: ignore[arg-type]  # None makes an import raise ImportError
    try:
        yield
    finally:
        for name in (*replaced, *left):
            sys.modules.pop(name, None)


class _Distributions(ModuleType):
    """Stands in for `importlib.metadata`, 3 MB with what it imports: finds no package at first, so that tvm_ffi looks
    for its library beside itself; from then on it is the real module, imported when it is used."""

    found_nothing = False
    PackageNotFoundError = LookupError

    def distribution(self, name: str) -> Any:
        if not self.found_nothing:
            self.found_nothing = True
            raise self.PackageNotFoundError(name)
        self.__dict__.update(vars(importlib.import_module("importlib.metadata")))
        return self.__dict__["distribution"](name)


# tvm_ffi imports PyTorch where it is installed, 200 MB that no model needs; a process that has it keeps it. It also
# uses a hash function, for which Python's own will do: OpenSSL takes 3.5 MB.
_STAND_INS = {"torch": None, "_hashlib": None, "importlib.metadata": _Distributions("importlib.metadata")}
with _instead({} if "tvm_ffi" in sys.modules else _STAND_INS, forget=("hashlib",)):
    import tvm_ffi

# What a function raises that C++ calls comes out of C++ as the exception of that name, if it is known, else as a
# RuntimeError: Ctrl-C in a pass would look like an error of the model.
tvm_ffi.register_error("KeyboardInterrupt", KeyboardInterrupt)

_ALIGNMENT = 64  # bytes, what compiled kernels expect of every tensor
_CPU, _POOLED = 1, 2  # DLPack's device type; the virtual machine's kind of allocator


def load_module(path: str | os.PathLike) -> tvm_ffi.Module:
    """A compiled library, which is unloaded with the last that refers to it: no object of it outlives its engine."""
    _load_runtime()
    return tvm_ffi.load_module(os.fspath(path), keep_module_alive=False)


def get_function(name: str) -> Any:
    """One of the runtime's global functions."""
    _load_runtime()
    return tvm_ffi.get_global_func(name)


def symbol(name: str) -> Any:
    """What the runtime's library exports to C++ alone, by its mangled name, for ctypes to call."""
    _load_runtime()
    path = _library("tvm_runtime")
    return ctypes.CDLL(None if path is None else str(path))[name]


def virtual_machine(library: Any) -> tvm_ffi.Module:
    """A virtual machine of a compiled library, with what such libraries call: sorting."""
    _load_extra()
    machine = library["vm_load_executable"]()
    machine["vm_initialization"](_CPU, 0, _POOLED)
    return machine


def tensor(array: np.ndarray) -> tuple[tvm_ffi.Tensor, np.ndarray]:
    """A tensor holding the array's values, and the NumPy view of its memory."""
    view = aligned_empty(array.shape, array.dtype)
    view[...] = array
    return tvm_ffi.from_dlpack(view), view


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array for compiled kernels, not initialised."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def seconds_per_call(
    module: Any, name: str, args: list[Any], number: int, repeat: int, kind: int = _CPU, index: int = 0
) -> tuple[float, ...]:
    """Mean seconds of `number` calls of a module's function, `repeat` times, measured without Python in between.

    kind, index: DLPack's type of the device by whose clock, and which of those
    """
    evaluator = get_function("runtime.RPCTimeEvaluator")
    evaluate = evaluator(module, name, kind, index, number, repeat, 0, 100, 0, 1, 0, "")
    return struct.unpack(f"@{repeat}d", evaluate(*args))


@cache
def _load_runtime() -> None:
    if "tvm" in sys.modules:
        return  # it has loaded the library
    if not _load_library("tvm_runtime"):
        import tvm  # noqa: F401  # laid out differently: let it find its own library


@cache
def _load_extra() -> None:
    """The functions that are not part of the runtime itself, 1 MB."""
    if "tvm" not in sys.modules:
        _load_library("tvm_runtime_extra")


def _load_library(name: str) -> bool:
    """Load a library that lies in TVM's package; whether it is there."""
    path = _library(name)
    if path is not None:
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    return path is not None


def _library(name: str) -> Path | None:
    spec = importlib.util.find_spec("tvm")
    folder = Path(spec.origin).parent / "lib" if spec and spec.origin else Path()
    candidates = (folder / f"lib{name}.so", folder / f"lib{name}.dylib", folder / f"{name}.dll")
    return next((path for path in candidates if path.is_file()), None)


_stderr_lock = forking.lock("stderr")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the C++ side: TVM 0.27 logs "Scope Saving:" and "Scope Loaded:" as warnings whenever it writes or reads
    an executable, with no way to turn that off, and LLVM what it does not know. Errors still arrive, as exceptions."""
    with _stderr_lock:  # file descriptors belong to all threads: the second to come would save the first one's sink
        saved = os.dup(2)
        try:
            with open(os.devnull, "w") as sink:
                os.dup2(sink.fileno(), 2)
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
