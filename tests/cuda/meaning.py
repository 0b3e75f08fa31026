"""The meaning of scheduled CUDA kernels, without a GPU: their generated source is executed on the CPU.

`tests.topi_int8.kernels.check` with a CUDA target goes through here and compares with the NumPy reference.

The source is what a GPU would get, after TVM's whole pipeline: index arithmetic, predicates, data movement through
shared memory and registers, barriers, `__dp4a`, ldmatrix, mma.sync, WMMA, cp.async, shuffles and the float operations
of epilogues all run. What this does not check: nvcc and the GPU themselves (float functions are those of the C library,
exact for +, −, ·, /, fma and rounding only), instructions that ptx.h describes wrongly, races that show in neither of
the two orders in which threads run, and limits on registers, shared memory and time; test_compile.py asks ptxas for
those.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.ir.instrument import pass_instrument
from tvm.target import Target

from qnn_ext.compiling.codegen import generate_code
from qnn_ext.targets.cuda_compiler import source_of

from .emulator import Array, Launch, execute

HOST = {"kind": "llvm"}
UNWRITTEN = 0x5A
"""The content of outputs before a kernel writes them."""


def cuda_target(arch: str = "sm_80") -> Target:
    """A CUDA target with the limits that schedules ask for."""
    limits = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 49152, "thread_warp_size": 32}
    return Target({"kind": "cuda", "arch": arch, **limits}, host=HOST)


@pass_instrument
class _Split:
    """Captures the module once host and device are separate functions with typed parameters."""

    module: tvm.IRModule | None = None

    def run_before_pass(self, module: tvm.IRModule, info: Any) -> None:
        if info.name == "tirx.MakePackedAPI":
            self.module = module


def lowered(module: tvm.IRModule, target: Target) -> tuple[str, tvm.IRModule]:
    """The CUDA source of a scheduled module, and the functions on the host that launch its kernels."""
    split = _Split()
    with tvm.transform.PassContext(instruments=[split]):
        executable = generate_code(module, target)
    assert split.module is not None, "the pipeline has no MakePackedAPI, or runs in a PassContext of its own"
    source = source_of(executable.mod)
    assert source, "no GPU code: the function runs on the host"
    return source, split.module


def host_program(function: tirx.PrimFunc) -> tuple[list[Array], list[Launch]]:
    """Arrays and launches of a function on the host, which must be a plain sequence of launches."""
    arrays: list[Array] = []
    names: dict[Any, str] = {}

    def add(buffer: tirx.Buffer, is_parameter: bool) -> None:
        names[buffer] = f"a{len(arrays)}"
        arrays.append(Array(names[buffer], _bytes(buffer), is_parameter))

    for parameter in function.params:
        add(parameter, True)
    launches: list[Launch] = []

    def walk(node: Any) -> None:
        match node:
            case tirx.SeqStmt():
                for statement in node.seq:
                    walk(statement)
            case tirx.AllocBuffer():
                add(node.buffer, False)
            case tirx.DeclBuffer():
                names[node.buffer] = names[node.data.args[0]]
            case tirx.Evaluate():
                launches.append(_launch(node.value, names))
            case tirx.AttrStmt():
                walk(node.body)
            case _:
                raise AssertionError(f"the host does more than launch kernels: {type(node).__name__}\n{node}")

    walk(function.body)
    return arrays, launches


def _bytes(buffer: tirx.Buffer) -> int:
    dtype = tvm.DataType(str(buffer.dtype))
    return prod(int(size) for size in buffer.shape) * dtype.bits * dtype.lanes // 8


def _launch(call: tvm.ir.Call, names: dict[Any, str]) -> Launch:
    axes = [str(axis) for axis in call.attrs["launch_params"]]
    name, *values = call.args
    arguments, extents = values[: len(values) - len(axes)], values[len(values) - len(axes) :]
    sizes = dict(zip(axes, (int(size) for size in extents), strict=True))
    grid, block = (tuple(sizes.get(f"{kind}.{axis}", 1) for axis in "xyz") for kind in ("blockIdx", "threadIdx"))
    shared = sizes.get("tirx.use_dyn_shared_memory", 0)
    return Launch(name.value, tuple(_argument(value, names) for value in arguments), grid, block, shared)  # type: ignore[arg-type]


def _argument(value: Any, names: dict[Any, str]) -> str:
    """The name of the array that an argument points to, or the constant itself."""
    return names[value.args[0]] if isinstance(value, tvm.ir.Call) else str(value)


def run(
    module: tvm.IRModule, target: Target, inputs: Sequence[np.ndarray], output: tuple[list[int], str]
) -> np.ndarray:
    """Execute the only function of a scheduled module: `inputs` are its first parameters, the last is its output."""
    source, functions = lowered(module, target)
    (host,) = [function for function in functions.functions.values() if "tirx.is_entry_func" in function.attrs]
    arrays, launches = host_program(host)
    shape, dtype = output
    blank = np.full(prod(shape) * np.dtype(dtype).itemsize, UNWRITTEN, np.uint8)
    last = [array.name for array in arrays if array.is_parameter][-1]
    (result,) = execute(source, arrays, launches, [*inputs, blank], [last])
    return np.frombuffer(result, dtype).reshape(shape)
