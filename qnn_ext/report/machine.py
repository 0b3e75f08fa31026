"""The machine's peak: its fastest multiply-add instructions with all operands in registers, and reads from memory.

They are TVM kernels like the real ones, run by the same thread pool.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.target import Target

from ..compiling.codegen import generate_code
from ..running.threads import on_own_pool, use_tvm_threads
from ..targets.features import backend_of
from ..targets.names import check_runs_here, make_target
from ..topi_int8.cpu.dot import DotInstruction
from ..topi_int8.cpu.fma import instructions_of
from ..topi_int8.cpu.matrix import MatrixDot, mark_tile
from ..topi_int8.x86.amx import TDPBF16PS, TDPBUSD
from ..topi_int8.x86.intrin import BFLOAT16_DOTS, INSTRUCTIONS
from ..tvm_runtime import set_up

STEPS = 2048  # activations of up to 16 bytes: 32 KB at most, which is what L1 caches hold
PASSES = 32

Seconds = Callable[[int], float]
"""The time of the fastest of so many calls: what is wanted is the machine's maximum."""


@dataclass(frozen=True)
class Machine:
    """What this machine's kernels can reach at most, on so many threads.

    integer, floating: operations per second, two for each multiply-add; None where no such instruction is known
    bandwidth:         bytes read per second, from a buffer of `bytes` bytes: a small one stays in the caches
    """

    threads: int
    instruction: str
    integer: float | None
    floating: float | None
    bytes: int
    bandwidth: float

    def seconds(self, macs: int, moved: int, floats: bool) -> tuple[float, float]:
        """The least time that multiply-accumulates take, and that reading and writing so many bytes takes."""
        rate = self.floating if floats else self.integer
        return (2 * macs / rate if rate else 0.0), moved / self.bandwidth


def measure(threads: int, size: int, repeat: int = 20) -> Machine:
    """Measure this machine. size: bytes of the buffer whose reads are timed, those of a model's weights and feature
    maps."""
    return on_own_pool(lambda: _measured(threads, size, repeat))


def _measured(threads: int, size: int, repeat: int) -> Machine:
    target = make_target("native", threads)
    rates: list[float | None] = []
    names = []
    for instruction in (fastest(arithmetic, target) for arithmetic in ("int8", "float32")):
        if instruction is None:
            rates.append(None)
            continue
        seconds, work = dot_products(instruction, threads)
        rates.append(work / seconds(repeat))
        names.append(instruction.name)
    size = 1 << max(14, math.ceil(math.log2(size)))
    seconds, moved = reads(size, threads)
    return Machine(threads, ", ".join(names), rates[0], rates[1], moved, moved / seconds(repeat))


ARITHMETIC = ("int8", "float32", "bfloat16")
"""What products multiply. Sums of int8 are of int32, the others' of float32."""


def fastest(arithmetic: str, target: Target) -> DotInstruction | None:
    """The instruction with the most multiply-adds of a kind that a CPU has; None where none is known, as for integers
    on all CPUs but x86, whose peak is not measured."""
    kinds = {
        "int8": (TDPBUSD, *INSTRUCTIONS),
        "float32": instructions_of(backend_of(target)),
        "bfloat16": (TDPBF16PS, *BFLOAT16_DOTS),
    }
    return next((found for found in kinds[arithmetic] if found.available(target)), None)


@cache
def dot_products(instruction: DotInstruction, threads: int) -> tuple[Seconds, int]:
    """Calls of an instruction, and their number of operations, two per product.

    C[p, t, lane] = Σ_{pass, n, k} A[n, k] · B[t, lane, k]: every thread p holds all t accumulators in registers.

    An accumulating instruction keeps its weights in one register (one for each step of a chain) and accumulators in
    the others: enough of them that none waits for the previous one. One that does not accumulate needs different
    weights per accumulator, since equal products would be computed once, and is followed by an addition, which takes
    one cycle.
    """
    target = make_target("native", threads)
    check_runs_here(target)
    if isinstance(instruction, MatrixDot):
        return _matrix_products(instruction, target, threads)
    lanes, depth, span = instruction.lanes, instruction.depth, instruction.span
    tiles = instruction.registers - 5 - span // depth if instruction.accumulates else (instruction.registers - 4) // 2
    weights = 1 if instruction.accumulates else tiles
    chained = instruction.chain > 1
    weight_shape = (weights, span, lanes, 1) if chained else (weights, lanes, depth)
    dtypes = instruction.data_dtype, instruction.weight_dtype, instruction.sum_dtype
    shapes = (STEPS, span), weight_shape, (threads, tiles, lanes)
    data, weight = (te.placeholder(shape, dtype) for shape, dtype in zip(shapes[:2], dtypes[:2], strict=True))
    axes = [te.reduce_axis((0, extent)) for extent in (PASSES, STEPS, span)]

    def product(t: Any, lane: Any) -> Any:
        factor = weight[t % weights, axes[2], lane, 0] if chained else weight[t % weights, lane, axes[2]]
        return instruction.value(data[axes[1], axes[2]]) * instruction.value(factor)

    total = te.compute(shapes[2], lambda p, t, lane: te.sum(product(t, lane), axis=axes), name="total")
    sch = Schedule(te.create_prim_func([data, weight, total]))
    block = sch.get_sblock("total")
    local = sch.cache_write(block, 0, "global")
    p, t, lane, passes, step, inner = sch.get_loops(block)
    sch.reorder(p, passes, step, t, lane, inner)
    sch.reverse_compute_at(local, p)
    sch.vectorize(sch.get_loops(local)[-1])
    sch.unroll(sch.get_loops(local)[-2])
    sch.parallel(p)
    start = sch.decompose_reduction(block, passes)
    sch.vectorize(sch.get_loops(start)[-1])
    sch.unroll(sch.get_loops(start)[-2])
    sch.tensorize(lane, instruction.tensor_intrin)
    sch.unroll(t)
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 100, shape).astype(dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    operations = 2 * math.prod(shapes[2]) * PASSES * STEPS * span
    return _timed(generate_code(sch.mod, target), arrays, threads), operations


def _matrix_products(instruction: MatrixDot, target: Target, threads: int) -> tuple[Seconds, int]:
    """The same for an instruction on matrices, with two of each operand: its loads, from L1, run beside the products.

    C[p, m, t, lane] = Σ_{pass, k} A[m, k] · B[t, k, lane]
    """
    rows, tiles, steps = 2 * instruction.rows, 2, 8
    axes = [te.reduce_axis((0, PASSES * STEPS // steps)), te.reduce_axis((0, steps))]
    axes += [te.reduce_axis((0, size)) for size in (instruction.chain, instruction.depth)]
    _, step, word, part = axes
    data_shape, shape = (rows, steps * instruction.span), (threads, rows, tiles, instruction.lanes)
    weight_shape = (tiles, steps * instruction.chain, instruction.lanes, instruction.depth)
    data = te.placeholder(data_shape, instruction.data_dtype)
    weight = te.placeholder(weight_shape, instruction.weight_dtype)

    def products(p: Any, m: Any, t: Any, lane: Any) -> Any:
        words = step * instruction.chain + word
        value = instruction.value(data[m, words * instruction.depth + part])
        return te.sum(value * instruction.value(weight[t, words, lane, part]), axis=axes)

    sch = Schedule(te.create_prim_func([data, weight, te.compute(shape, products, name="total")]))
    block = sch.get_sblock("total")
    local = sch.cache_write(block, 0, "global")
    p = sch.get_loops(block)[0]
    sch.reverse_compute_at(local, p)
    sch.vectorize(sch.get_loops(local)[-1])
    sch.parallel(p)
    mark_tile(sch, block, 1)
    rng = np.random.default_rng(0)
    dtypes = instruction.data_dtype, instruction.weight_dtype, instruction.sum_dtype
    shapes = data_shape, weight_shape, shape
    arrays = [rng.integers(0, 100, size).astype(dtype) for size, dtype in zip(shapes, dtypes, strict=True)]
    operations = 2 * math.prod(shape) * math.prod(int(axis.dom.extent) for axis in axes)
    return _timed(generate_code(sch.mod, target), arrays, threads), operations


@cache
def reads(size: int, threads: int) -> tuple[Seconds, int]:
    """Sums over a buffer of about `size` bytes, and its exact size."""
    target = make_target("native", threads)
    lanes, rows = 64, 64 * threads
    columns = max(1, size // 4 // lanes // rows)
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
    arrays = [np.ones((rows, columns, lanes), np.int32), np.zeros((rows, lanes), np.int32)]
    return _timed(tvm.compile(sch.mod, target=target), arrays, threads), arrays[0].nbytes


def _timed(kernel: Any, arrays: Sequence[np.ndarray], threads: int) -> Seconds:
    set_up()  # or TVM's pool has a thread for every second core
    buffers = [tvm.runtime.tensor(array) for array in arrays]
    evaluate = kernel.mod.time_evaluator

    def seconds(number: int) -> float:
        use_tvm_threads(threads)
        return min(map(float, evaluate("main", tvm.cpu(), number=1, repeat=number)(*buffers).results))

    return seconds
