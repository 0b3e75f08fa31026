"""The machine's peak: its int8 dot-product instruction with all operands in registers, and memory reads.

Both are TVM kernels like the real ones, run by the same thread pool, and measured in turns with them.
"""

from __future__ import annotations

import math

import numpy as np
import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.target import Target

from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8.cpu.dot import DotInstruction
from qnn_ext.topi_int8.x86.intrin import INSTRUCTIONS

from .runners import READS, Runner

STEPS = 2048  # activations of 4 bytes: 8 KB, within the L1 cache
PASSES = 32


def peak_runner(threads: int) -> Runner:
    """Calls of the fastest int8 dot-product instruction of this CPU; `work` is in operations, two per product.

    Raises LookupError where the CPU has none.
    """
    target = make_target("native", threads)
    instruction = next((found for found in INSTRUCTIONS if found.available(target)), None)
    if instruction is None:
        raise LookupError("no dot-product instruction is known for this CPU")
    kernel, shapes = _dot_kernel(instruction, threads, target)
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 100, shape).astype(dtype) for shape, dtype in shapes]
    work = 2 * math.prod(shapes[-1][0]) * PASSES * STEPS * instruction.depth
    return _runner(f"peak ({instruction.name})", kernel, arrays, threads, work)


def read_runner(place: str, threads: int) -> Runner:
    """Sums over a buffer of the size that READS gives for `place`; `work` is in bytes."""
    target = make_target("native", threads)
    lanes, rows = 64, 64 * threads
    columns = READS[place] // 4 // lanes // rows
    data = te.placeholder((rows, columns, lanes), "int32", name="data")
    column = te.reduce_axis((0, columns), "column")
    total = te.compute((rows, lanes), lambda r, i: te.sum(data[r, column, i], axis=column), name="total")
    sch = Schedule(te.create_prim_func([data, total]))
    block = sch.get_sblock("total")
    local = sch.cache_write(block, 0, "global")
    row, lane, column = sch.get_loops(block)
    sch.reorder(row, column, lane)
    sch.reverse_compute_at(local, row)
    sch.vectorize(lane)
    sch.vectorize(sch.get_loops(local)[-1])
    sch.parallel(row)
    sch.decompose_reduction(block, column)
    kernel = tvm.compile(sch.mod, target=target)
    arrays = [np.ones((rows, columns, lanes), np.int32), np.zeros((rows, lanes), np.int32)]
    return _runner(f"reads from {place}", kernel, arrays, threads, READS[place])


def _dot_kernel(instruction: DotInstruction, threads: int, target: Target) -> tuple[object, list]:
    """C[p, t, lane] = Σ_{pass, n, k} A[n, k] · B[t, lane, k]: every thread p holds all t accumulators in registers.

    An accumulating instruction keeps its weights in one register and accumulators in the others: enough of them that
    none waits for the previous one. One that does not accumulate needs different weights per accumulator, since equal
    products would be computed once, and is followed by an addition, which takes one cycle.
    """
    lanes, depth = instruction.lanes, instruction.depth
    tiles = instruction.registers - 6 if instruction.accumulates else (instruction.registers - 4) // 2
    weights = 1 if instruction.accumulates else tiles
    shapes = [
        ((STEPS, depth), instruction.data_dtype),
        ((weights, lanes, depth), instruction.weight_dtype),
        ((threads, tiles, lanes), "int32"),
    ]
    data, weight = (te.placeholder(shape, dtype) for shape, dtype in shapes[:2])
    axes = [te.reduce_axis((0, extent)) for extent in (PASSES, STEPS, depth)]
    total = te.compute(
        shapes[2][0],
        lambda p, t, lane: te.sum(
            data[axes[1], axes[2]].astype("int32") * weight[t % weights, lane, axes[2]].astype("int32"), axis=axes
        ),
        name="total",
    )
    sch = Schedule(te.create_prim_func([data, weight, total]))
    block = sch.get_sblock("total")
    local = sch.cache_write(block, 0, "global")
    p, t, lane, passes, step, product = sch.get_loops(block)
    sch.reorder(p, passes, step, t, lane, product)
    sch.reverse_compute_at(local, p)
    sch.vectorize(sch.get_loops(local)[-1])
    sch.unroll(sch.get_loops(local)[-2])
    sch.parallel(p)
    start = sch.decompose_reduction(block, passes)
    sch.vectorize(sch.get_loops(start)[-1])
    sch.unroll(sch.get_loops(start)[-2])
    sch.tensorize(lane, instruction.tensor_intrin)
    sch.unroll(t)
    return tvm.compile(sch.mod, target=target), shapes


def _runner(name: str, kernel: object, arrays: list[np.ndarray], threads: int, work: float) -> Runner:
    """Its `seconds` are those of the fastest call: what is wanted is the machine's maximum."""
    tvm.get_global_func("runtime.config_threadpool")(1, threads)
    buffers = [tvm.runtime.tensor(array) for array in arrays]
    evaluate = kernel.mod.time_evaluator  # type: ignore[attr-defined]

    def seconds(number: int) -> float:
        return min(map(float, evaluate("main", tvm.cpu(), number=1, repeat=number)(*buffers).results))

    return Runner(name, lambda inputs: [], seconds, work=work)
