"""TVM's runtime without its compiler: all that a compiled model needs, in a tenth of the memory and load time.

Nothing here imports `tvm`, whose compiler library takes about 150 MB; only its small runtime library is loaded. If
`tvm` is also imported, before or after, both share that library.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import struct
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from .processes import forking
from .processes.cores import default_threads
from .stand_ins import instead


class _Distributions(ModuleType):
    """A stand-in for `importlib.metadata`, which takes 3 MB with its imports: the first lookup finds no package, so
    that tvm_ffi looks for its library next to itself; after that it is the real module, imported on first use."""

    found_nothing = False
    PackageNotFoundError = LookupError

    def distribution(self, name: str) -> Any:
        if not self.found_nothing:
            self.found_nothing = True
            raise self.PackageNotFoundError(name)
        self.__dict__.update(vars(importlib.import_module("importlib.metadata")))
        return self.__dict__["distribution"](name)


# tvm_ffi uses a hash function, for which Python's own will do: OpenSSL takes 3.5 MB.
_STAND_INS = {"_hashlib": None, "importlib.metadata": _Distributions("importlib.metadata")}
with instead({} if "tvm_ffi" in sys.modules else _STAND_INS, forget=("hashlib",)):
    import tvm_ffi

_ALIGNMENT = 64  # bytes, expected of every tensor by compiled kernels
_CPU, _POOLED = 1, 2  # DLPack's device type; the kind of the virtual machine's allocator


@cache
def set_up() -> None:
    """Process-wide settings of TVM that have no narrower form. Made once, when the process first imports, builds or
    loads a model, not when qnn_ext is imported."""
    # An exception raised in a function that C++ calls comes back from C++ as the exception of that name if it is
    # registered, otherwise as a RuntimeError: Ctrl-C in a pass would look like an error in the model.
    tvm_ffi.register_error("KeyboardInterrupt", KeyboardInterrupt)
    # By default TVM pins the calling thread to core 0, and with it every thread that it starts later: several processes
    # on one machine would share that core, and NumPy and other runtimes would be confined to it.
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    # By default its pool has half as many threads as an x86 machine has cores, since it takes every second one for a
    # hyper-thread: on a virtual machine with two cores that is one. Here `num_threads` decides; OMP_NUM_THREADS, which
    # TVM reads too, still limits it.
    if "OMP_NUM_THREADS" not in os.environ:
        os.environ.setdefault("TVM_NUM_THREADS", str(default_threads()))


def is_set_up() -> bool:
    """Whether this process has imported, built or loaded a model."""
    return set_up.cache_info().currsize > 0


def load_module(path: str | os.PathLike) -> tvm_ffi.Module:
    """A compiled library, which is unloaded with its last reference: no object of it outlives its engine."""
    _load_runtime()
    return tvm_ffi.load_module(os.fspath(path), keep_module_alive=False)


def get_function(name: str) -> Any:
    """One of the runtime's global functions."""
    _load_runtime()
    return tvm_ffi.get_global_func(name)


def most_threads() -> int:
    """The most threads that a call may run on: TVM_NUM_THREADS, else OMP_NUM_THREADS, else the number of cores."""
    return int(symbol("_ZN3tvm7runtime9threading14MaxConcurrencyEv")())  # tvm::runtime::threading::MaxConcurrency


def symbol(name: str) -> Any:
    """A function that the runtime's library exports only for C++, by its mangled name, for ctypes to call."""
    _load_runtime()
    path = _library("tvm_runtime")
    return ctypes.CDLL(None if path is None else str(path))[name]


def virtual_machine(library: Any) -> tvm_ffi.Module:
    """A virtual machine for a compiled library, with the functions that such libraries call: sorting."""
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
    """An uninitialized array, aligned for compiled kernels."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def seconds_per_call(
    module: Any, name: str, args: list[Any], number: int, repeat: int, kind: int = _CPU, index: int = 0
) -> tuple[float, ...]:
    """Mean seconds of `number` calls of a module's function, for each of `repeat` runs, timed without Python between.

    kind, index: DLPack's type and the index of the device whose clock measures
    """
    evaluator = get_function("runtime.RPCTimeEvaluator")
    evaluate = evaluator(module, name, kind, index, number, repeat, 0, 100, 0, 1, 0, "")
    return struct.unpack(f"@{repeat}d", evaluate(*args))


@cache
def _load_runtime() -> None:
    set_up()
    if "tvm" in sys.modules:
        return  # `tvm` has loaded the library
    if not _load_library("tvm_runtime"):
        import tvm  # noqa: F401  # laid out differently: let it find its own library


@cache
def _load_extra() -> None:
    """The functions that are not part of the runtime itself, 1 MB."""
    if "tvm" not in sys.modules:
        _load_library("tvm_runtime_extra")


def _load_library(name: str) -> bool:
    """Load a library from TVM's package; returns whether it exists."""
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
    an executable, with no way to turn that off, and LLVM logs what it does not know. Errors still raise exceptions."""
    with _stderr_lock:  # threads share file descriptors: a second one would save the first one's sink as its stderr
        saved = os.dup(2)
        try:
            with open(os.devnull, "w") as sink:
                os.dup2(sink.fileno(), 2)
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
