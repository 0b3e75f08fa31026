"""TVM's CUDA runtime without its compiler: its library, tensors on the device, and how kernels become binaries.

A compiled model holds its kernels as CUDA source; the runtime gets their binary from a compile function in TVM's
registry. Ours is registered only while one of our models is built or loaded, since others compile with other flags.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from .. import tvm_runtime
from ..errors import TargetError
from ..targets import cuda_compiler
from ..tvm_runtime import tvm_ffi

_COMPILE, _POSTPROCESS = "tvm_callback_cuda_compile", "tvm_callback_cuda_postproc"
_CPU, _POOLED = 1, 2  # DLPack's device type; the virtual machine's kind of allocator
_LIBRARIES = {
    "linux": ("libtvm_runtime_cuda.so", "libcudart.so.13"),
    "win32": ("tvm_runtime_cuda.dll", "cudart64_13.dll"),
}
_lock = threading.RLock()


def _free_lock() -> None:
    """Free the lock in a forked process, which has none of the threads that may hold it."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_lock)


@cache
def load() -> None:
    """Load TVM's CUDA runtime. Raises TargetError and says what is missing."""
    tvm_runtime.get_function("runtime.GetDeviceAttr")  # the library it is linked to
    if "device_api.cuda" in tvm_ffi.registry.list_global_func_names():
        return
    name, cudart = _LIBRARIES.get(sys.platform, _LIBRARIES["linux"])
    spec = importlib.util.find_spec("tvm")
    path = Path(spec.origin).parent / "lib" / name if spec and spec.origin else Path(name)
    if not path.is_file():
        raise TargetError(
            "this installation of TVM has no CUDA runtime: install apache-tvm's wheel for Linux, which has it"
        )
    for candidate in (cudart, *_from_pip(cudart)):
        with contextlib.suppress(OSError):
            ctypes.CDLL(candidate, ctypes.RTLD_GLOBAL)
            break
    try:
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise TargetError(
            f"TVM's CUDA runtime cannot be loaded: {error}; it needs NVIDIA's driver and {cudart} "
            "(pip install nvidia-cuda-runtime, or a CUDA 13 toolkit)"
        ) from error


def _from_pip(library: str) -> list[str]:
    spec = importlib.util.find_spec("nvidia")
    roots = spec.submodule_search_locations or () if spec else ()
    return [str(path) for root in roots for path in Path(root).glob(f"*/lib/{library}")]


@contextlib.contextmanager
def compiling(architecture: str | None = None) -> Iterator[None]:
    """In this context, kernel sources are compiled by `cuda_compiler`, and new ones are marked for it."""
    with _lock, contextlib.ExitStack() as stack:
        other = tvm_ffi.get_global_func(_COMPILE, allow_missing=True)

        def binary(source: str) -> bytes:
            return cuda_compiler.on_load(source, architecture, other)

        stack.enter_context(_registered(_COMPILE, binary))
        if architecture is not None:
            before = tvm_ffi.get_global_func(_POSTPROCESS, allow_missing=True)

            def marked(source: str, target: Any) -> str:
                return cuda_compiler.MARK + (source if before is None else before(source, target))

            stack.enter_context(_registered(_POSTPROCESS, marked))
        yield


@contextlib.contextmanager
def _registered(name: str, function: Any) -> Iterator[None]:
    """Register `function` under a name in TVM's registry within the context, then restore the previous one."""
    before = tvm_ffi.get_global_func(name, allow_missing=True)
    tvm_ffi.register_global_func(name, function, override=True)
    try:
        yield
    finally:
        if before is None:
            tvm_ffi.registry.remove_global_func(name)
        else:
            tvm_ffi.register_global_func(name, before, override=True)


def virtual_machine(library: Any, device: Any) -> Any:
    """A virtual machine that runs on the device, with its constants there."""
    machine = library["vm_load_executable"]()
    devices = [(device.dlpack_device_type(), device.index)]
    devices += [(_CPU, 0)] if devices[0][0] != _CPU else []  # for shapes
    machine["vm_initialization"](*(value for kind, index in devices for value in (kind, index, _POOLED)))
    return machine


def empty(shape: Sequence[int], dtype: str, device: Any) -> Any:
    """A tensor on the device, not initialised."""
    allocate = tvm_runtime.get_function("runtime.TVMTensorAllocWithScope")
    return allocate(tvm_ffi.Shape(tuple(shape)), tvm_ffi.dtype(dtype), device, None)


def copy(source: Any, target: Any) -> None:
    """Copy between tensors on any devices, in the order of the current stream."""
    tvm_runtime.get_function("runtime.TVMTensorCopyFromTo")(source, target)


def upload(array: np.ndarray, device: Any) -> Any:
    """A tensor on the device with the array's values."""
    result = empty(array.shape, str(array.dtype), device)
    copy(tvm_runtime.tensor(array)[0], result)
    return result


def synchronize(device: Any, stream: int = 0) -> None:
    """Wait for everything launched on a stream of the device."""
    tvm_runtime.get_function("runtime.Device_StreamSync")(device, stream)
