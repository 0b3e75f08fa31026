"""Runs generated CUDA sources on this machine's GPU, through the driver: what the emulator does, in hardware.

    QNN_EXT_TEST_GPU=1 python -m pytest tests/cuda tests/topi_int8 -k "cuda or sm_"

Every test that executes kernels on the emulator then executes them here. Arrays lie between guards, and each program
runs twice: outputs must be equal, and the guards untouched.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from qnn_ext.targets import cuda_compiler, gpus

if TYPE_CHECKING:
    from .emulator import Array, Launch

GUARD = 4096  # bytes before and after every array
PATTERN = 0x5A  # of guards and workspaces
STATIC_SHARED = 48 * 1024  # dynamic shared memory beyond this has to be asked for
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
RUNS = 2
SCALARS: dict[str, Callable[[Any], Any]] = {
    "int": ctypes.c_int32,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "float": ctypes.c_float,
}


class GpuError(AssertionError):
    """The driver refused something, a result changed between two runs, or a kernel wrote outside its arrays."""


def wanted() -> bool:
    """Whether tests shall run kernels on the GPU."""
    return bool(os.environ.get("QNN_EXT_TEST_GPU"))


@cache
def _driver() -> Any:
    driver = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    for code in (driver.cuInit(0), driver.cuDeviceGet(ctypes.byref(device), 0)):
        _check(code, "starting the driver")
    _check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "opening the GPU")
    _check(driver.cuCtxSetCurrent(context), "opening the GPU")
    return driver


def _check(code: int, what: str) -> None:
    if code:
        raise GpuError(f"{what}: the driver returned {code}")


def execute(
    source: str,
    arrays: Sequence[Array],
    launches: Sequence[Launch],
    values: Sequence[np.ndarray],
    outputs: Sequence[str],
) -> list[bytes]:
    """Run a CUDA source on the parameters' values. Returns the bytes of each output, equal in both runs."""
    driver = _driver()
    module = ctypes.c_void_p()
    compiled = cuda_compiler.binary(source, gpus.architecture_of("cuda"))
    _check(driver.cuModuleLoadData(ctypes.byref(module), compiled), "loading the kernels")
    memory = {array.name: _Array(driver, array.bytes) for array in arrays}
    given = dict(zip((array.name for array in arrays if array.is_parameter), values, strict=True))
    try:
        results = []
        for _ in range(RUNS):
            for name, array in memory.items():
                array.fill(np.ascontiguousarray(given[name]).tobytes() if name in given else None)
            for launch in launches:
                _launch(driver, module, source, launch, memory)
            _check(driver.cuCtxSynchronize(), f"running {[launch.kernel for launch in launches]}")
            results.append({name: array.read() for name, array in memory.items()})
    finally:
        for array in memory.values():
            array.free()
        driver.cuModuleUnload(module)
    if any(results[0][name] != results[1][name] for name in outputs):
        raise GpuError("two runs differ: a barrier is missing")
    return [results[0][name] for name in outputs]


def _launch(driver: Any, module: ctypes.c_void_p, source: str, launch: Launch, memory: dict[str, _Array]) -> None:
    function = ctypes.c_void_p()
    _check(driver.cuModuleGetFunction(ctypes.byref(function), module, launch.kernel.encode()), launch.kernel)
    if launch.shared > STATIC_SHARED:
        _check(driver.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED, launch.shared), f"memory of {launch.kernel}")
    types = [parameter.split()[0] for parameter in parameters_of(launch.kernel, source)]
    held = [
        ctypes.c_uint64(memory[argument].address) if argument in memory else SCALARS[kind](_number(argument))
        for kind, argument in zip(types, launch.arguments, strict=True)
    ]
    pointers = (ctypes.c_void_p * len(held))(*(ctypes.addressof(value) for value in held))
    code = driver.cuLaunchKernel(function, *launch.grid, *launch.block, launch.shared, None, pointers, None)
    _check(code, f"launching {launch.kernel}")


def parameters_of(kernel: str, source: str) -> list[str]:
    """The parameters of a kernel as its source declares them, types and names."""
    signature = re.search(rf"__global__ void [^;{{]*\b{kernel}\(([^)]*)\)", source)
    assert signature, f"kernel {kernel} is not in the source"
    return [parameter.strip() for parameter in signature[1].split(",")]


def _number(text: str) -> int | float:
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


class _Array:
    """Device memory between two guards."""

    def __init__(self, driver: Any, size: int) -> None:
        self._driver, self._size, self._start = driver, size, ctypes.c_uint64()
        _check(driver.cuMemAlloc_v2(ctypes.byref(self._start), ctypes.c_size_t(size + 2 * GUARD)), "memory")

    @property
    def address(self) -> int:
        return self._start.value + GUARD

    def fill(self, content: bytes | None) -> None:
        """`content`, or the pattern, and guards around it."""
        guard = bytes([PATTERN]) * GUARD
        whole = guard + (bytes([PATTERN]) * self._size if content is None else content) + guard
        assert len(whole) == self._size + 2 * GUARD, "a value of another size than its array"
        _check(self._driver.cuMemcpyHtoD_v2(self._start, whole, ctypes.c_size_t(len(whole))), "copying to the GPU")

    def read(self) -> bytes:
        """The content, with the guards checked."""
        whole = ctypes.create_string_buffer(self._size + 2 * GUARD)
        _check(self._driver.cuMemcpyDtoH_v2(whole, self._start, ctypes.c_size_t(len(whole))), "copying from the GPU")
        before, content, after = whole.raw[:GUARD], whole.raw[GUARD:-GUARD], whole.raw[-GUARD:]
        if set(before + after) != {PATTERN}:
            raise GpuError("a kernel wrote outside its array")
        return content

    def free(self) -> None:
        self._driver.cuMemFree_v2(self._start)
