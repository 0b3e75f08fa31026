"""Runs generated CUDA sources on the CPU: the host's launches and the kernels as one C++ program.

The program is compiled with emulator.h and ptx.h, which are a GPU's threads, barriers, warp instructions and
asynchronous copies. It runs everything twice, with threads, warps and blocks in opposite orders (see emulator.h).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from .inline_ptx import translate

HERE = Path(__file__).parent
FLAGS = ["-std=c++17", "-O1", "-w", "-fwrapv", "-fno-strict-aliasing", "-ffp-contract=off"]
CHECKS = ["-fsanitize=alignment,bounds,integer-divide-by-zero", "-fno-sanitize-recover=all"]
TIMEOUT_S = 300
ORDERS = 2


class EmulationError(AssertionError):
    """What the GPU would not have done either: a misaligned access, a barrier not all reach, a write out of bounds."""


@dataclass(frozen=True)
class Array:
    """An array in device memory: a parameter of the host function or a workspace between its kernels."""

    name: str
    bytes: int
    is_parameter: bool


@dataclass(frozen=True)
class Launch:
    """A kernel with what it is given: the names of arrays or C constants; sizes of grid and block by axis."""

    kernel: str
    arguments: tuple[str, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]


def compiler() -> str:
    """The C++ compiler; skips the test without one."""
    found = shutil.which("g++") or shutil.which("c++")
    if found is None:
        pytest.skip("no C++ compiler (g++) to execute CUDA sources with")
    return found


def kernels_of(source: str) -> str:
    """The kernels in a source that TVM has generated and their functions, without includes and other definitions."""
    match = re.search(r'^extern "C" __global__', source, re.MULTILINE)
    assert match, "no kernel in this source"
    functions = re.findall(r"^__forceinline__ __device__ .*?^}\n", source[: match.start()], re.MULTILINE | re.DOTALL)
    body = "".join([*functions, source[match.start() :]])
    body = re.sub(r"extern __shared__ ([^\[;]*)\[\];", r"__shared__ \1[DYNAMIC_SHARED];", body)
    return re.sub(r"__shared__ (?:__align__|alignas)(\(\d+\))", r"alignas\1 __shared__", body)


def program(source: str, arrays: Sequence[Array], launches: Sequence[Launch], outputs: Sequence[str]) -> str:
    """The C++ program: reads all parameters from stdin, runs the launches, writes the outputs to stdout, twice."""
    kernels = translate(kernels_of(source))
    parameters = [array for array in arrays if array.is_parameter]
    lines = [f"std::vector<unsigned char> {array.name}_given({array.bytes});" for array in parameters]
    lines += [f"emulator::read_all({array.name}_given.data(), {array.bytes});" for array in parameters]
    lines += [f"for (emulator::order = 0; emulator::order < {ORDERS}; ++emulator::order) {{"]
    lines += [f"  auto {array.name} = emulator::device_array({array.bytes});" for array in arrays]
    lines += [f"  memcpy({array.name}.data, {array.name}_given.data(), {array.bytes});" for array in parameters]
    lines += [f"  {_launch(launch, kernels, {array.name for array in arrays})}" for launch in launches]
    lines += [f'  emulator::device_check({array.name}, "{array.name}");' for array in arrays]
    sizes = {array.name: array.bytes for array in arrays}
    lines += [f"  fwrite({name}.data, 1, {sizes[name]}, stdout);" for name in outputs]
    lines += ["}"]
    body = "\n".join(f"  {line}" for line in lines)
    return f'#include "ptx.h"\nconstexpr int DYNAMIC_SHARED = 232448;\n{kernels}\nint main() {{\n{body}\n}}\n'


def _launch(launch: Launch, kernels: str, arrays: set[str]) -> str:
    signature = re.search(rf"__global__ void [^;{{]*\b{launch.kernel}\(([^)]*)\)", kernels)
    assert signature, f"kernel {launch.kernel} is not in the source"
    types = [re.sub(r"(__restrict__ )?\w+$", "", parameter.strip()) for parameter in signature[1].split(",")]
    values = [
        f"({kind})({argument}.data)" if argument in arrays else f"({kind})({argument})"
        for kind, argument in zip(types, launch.arguments, strict=True)
    ]
    grid, block = ("{" + ", ".join(map(str, sizes)) + "}" for sizes in (launch.grid, launch.block))
    return f"emulator::launch({grid}, {block}, [&] {{ {launch.kernel}({', '.join(values)}); }});"


def execute(
    source: str,
    arrays: Sequence[Array],
    launches: Sequence[Launch],
    values: Sequence[np.ndarray],
    outputs: Sequence[str],
) -> list[bytes]:
    """Run a CUDA source on the parameters' values. Returns the bytes of each output, equal in both orders."""
    text = program(source, arrays, launches, outputs)
    with tempfile.TemporaryDirectory() as folder:
        code, binary = Path(folder, "kernel.cpp"), Path(folder, "kernel")
        code.write_text(text)
        _run([compiler(), *FLAGS, *CHECKS, f"-I{HERE}", str(code), "-o", str(binary)], text)
        result = _run([str(binary)], text, b"".join(np.ascontiguousarray(value).tobytes() for value in values))
    sizes = {array.name: array.bytes for array in arrays}
    assert len(result) == ORDERS * sum(sizes[name] for name in outputs)
    first, second = result[: len(result) // 2], result[len(result) // 2 :]
    if first != second:
        raise EmulationError("the result depends on the order in which threads run: a barrier is missing")
    parts, at = [], 0
    for name in outputs:
        parts.append(first[at : at + sizes[name]])
        at += sizes[name]
    return parts


def _run(command: list[str], text: str, stdin: bytes = b"") -> bytes:
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip() or f"ended with code {done.returncode}"
        if done.returncode < 0:
            message += f" (signal {-done.returncode}: an access outside all arrays)"
        raise EmulationError(f"{message[-2000:]}\n\n{text[-6000:]}")
    return done.stdout
