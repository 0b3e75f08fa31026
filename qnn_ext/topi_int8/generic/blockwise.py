"""Products with block-wise quantized weights on any CPU or GPU, and their dequantization: plain loops over the packed
bytes. Priority 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from ...numerics import bfloat16, tir
from ...numerics.packed import WIDTHS, unpacked
from ...targets.families import CPU_BACKENDS
from ...targets.features import sharing_of
from ..schedule_util import inline_epilogue, parallel_rows, schedule_root_blocks
from ..strategy import Implementation, register
from ..workload import BlockwiseWorkload
from .operands import Constants, Operand
from .stages import stages

Expr = Any


def real(value: Expr) -> Expr:
    """A scale, a zero point or an activation that is a float, as float32."""
    return bfloat16.from_bits_expression(value) if tir.dtype_of(value) == bfloat16.BITS else value.astype("float32")


def multiplied(workload: BlockwiseWorkload, activation: Expr) -> Expr:
    """An activation in the dtype of sums."""
    return activation.astype("int32") if workload.integers else real(activation)


def integer_at(weight: te.Tensor, row: Expr, column: Expr, dtype: str) -> Expr:
    """The integer at a place of a packed matrix, as int32."""
    each = 8 // WIDTHS[dtype]
    return unpacked(weight(row, column // each), column % each, dtype)


def zero_at(zero_point: te.Tensor, row: Expr, group: Expr, dtype: str) -> Expr:
    """The zero point of a group, int32 or float32."""
    if str(zero_point.dtype) == "int32":
        return zero_point(*(0 for _ in zero_point.shape))
    return (
        integer_at(zero_point, row, group, dtype) if str(zero_point.dtype) == "uint8" else real(zero_point(row, group))
    )


def compute(workload: BlockwiseWorkload, x: te.Tensor, operands: Sequence[te.Tensor], pad_value: int) -> te.Tensor:
    """The product, (M, N). operands: the scales of int8 activations, then weight, scale and zero point as a model holds
    them. `pad_value` is not used."""
    *_, weight, _, zero_point = operands
    dtype, sums = workload.weight_dtype, "int32" if workload.integers else "float32"
    group, depth = workload.group, workload.k

    def term(m: Expr, n: Expr, g: Expr, j: Expr) -> Expr:
        k = g * group + j
        whole = depth % group == 0
        column = k if whole else tirx.min(k, depth - 1)
        zero = zero_at(zero_point, n, g, dtype)
        product = multiplied(workload, x(m, column)) * (
            integer_at(weight, n, column, dtype).astype(tir.dtype_of(zero)) - zero
        ).astype(sums)
        return product if whole else tirx.Select(k < depth, product, tirx.const(0, sums))

    j = te.reduce_axis((0, min(group, depth)), "j")
    dots = te.compute(
        (workload.m, workload.n, workload.groups),
        lambda m, n, g: te.sum(term(m, n, g, j), axis=j),
        name="dots",
    )

    return scaled_sum(workload, dots, operands)


def scaled_sum(workload: BlockwiseWorkload, dots: te.Tensor, operands: Sequence[te.Tensor]) -> te.Tensor:
    """The product (M, N) from the groups' sums of products (M, N, G): Σ_g dots · scale, in the order of g."""
    *scales, _, scale, _ = operands
    g = te.reduce_axis((0, workload.groups), "g")

    def term(m: Expr, n: Expr) -> Expr:
        return scaled(workload, dots(m, n, g), real(scale(n, g)), lambda: scales[0](m, g))

    acc = te.compute((workload.m, workload.n), lambda m, n: te.sum(term(m, n), axis=g), name="blockwise")
    return scaled_rows(workload, acc, scales)


def scaled(workload: BlockwiseWorkload, dot: Expr, unit: Expr, data_scale: Callable[[], Expr]) -> Expr:
    """A group's sum of products as float32, times its scales."""
    if workload.integers and not workload.row_scales:
        unit = data_scale() * unit
    return tir.fence(dot.astype("float32") * unit)


def scaled_rows(workload: BlockwiseWorkload, acc: te.Tensor, scales: Sequence[te.Tensor]) -> te.Tensor:
    """The sums of all groups (M, N) times the rows' scales, if there are such."""
    if not workload.row_scales:
        return acc
    return te.compute((workload.m, workload.n), lambda m, n: tir.fence(acc(m, n) * scales[0](m, 0)), name="by_row")


def schedule(sch: Schedule, workload: BlockwiseWorkload, target: Target) -> None:
    """Each element's groups one after the other, with the epilogue; elements in parallel."""
    accumulator, dots = sch.get_sblock("blockwise"), sch.get_sblock("dots")
    output = inline_epilogue(sch, accumulator)
    schedule_root_blocks(sch, [accumulator, output, dots], target)
    fused = sch.get(output).name_hint != "blockwise"
    innermost = parallel_rows(sch, sch.get_loops(output)[:2], workload.macs, sharing_of(target).plain_macs)[-1]
    if fused:
        sch.compute_at(accumulator, innermost, preserve_unit_loops=True)
    sch.compute_at(dots, sch.get_loops(accumulator)[-1], preserve_unit_loops=True)


register(
    BlockwiseWorkload,
    Implementation(name="blockwise.generic", priority=0, backends=CPU_BACKENDS, compute=compute, schedule=schedule),
)


@stages("qnn.blockwise_dequantize")
def _dequantize(
    constants: Constants,
    shape: tuple[int, ...],
    weight: Operand,
    scale: Operand,
    zero_point: Operand,
    *,
    depth: int,
    weight_dtype: str,
    group_size: int,
) -> te.Tensor:
    weights, scales, zeros = (
        one.tensor if one.tensor is not None else constants.add(one.value) for one in (weight, scale, zero_point)
    )

    def value(n: Expr, k: Expr) -> Expr:
        group = k // group_size
        zero = zero_at(zeros, n, group, weight_dtype)
        integer = integer_at(weights, n, k, weight_dtype)
        if tir.dtype_of(zero) == "int32":
            difference = (integer - zero).astype("float32")
        else:
            difference = integer.astype("float32") - zero
        return tir.fence(difference * real(scales(n, group)))

    return te.compute(shape, value, name="dequantized")
