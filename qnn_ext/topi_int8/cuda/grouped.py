"""Products of many rows with block-wise quantized weights, as matrix products of a GPU: a language model that reads.

    acc[m, n] = Σ_g (Σ_{k in g} A[m, k] · B[n, k] − (zero[n, g] − offset) · Σ_{k in g} A[m, k]) · scale[n, g]

What the kernels for tensor cores and those for tiles of threads have in common. A is a stage of `gemm`, rows of x. B
stays packed in global memory: a block of threads copies the bytes of its columns' next step to shared memory and
unpacks them there, once for all of its rows, by the instructions of `unpacking`. Values of B are q − offset, with an
offset of 2^(bits − 1) for unsigned q, else 0; zero points act on a group's sum of x.

Each group's k are padded with zeros to whole instructions, and to whole steps if it has several; a step may also have
several groups. No group is added: a term of zero would change the sign of a sum of −0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.target import Target

from ...numerics.annotations import OPERAND
from ...numerics.packed import WIDTHS, packed_bytes
from ...numerics.tir import dtype_of
from ...targets.families import CUDA
from ..generic.blockwise import integer_at, multiplied, real, scaled, scaled_rows, zero_at
from ..strategy import Implementation, register
from ..workload import BlockwiseWorkload
from . import blockwise, gemm
from .registration import cheapest
from .unpacking import Form

DOTS, WEIGHT, PACKED, SUMS = "dots", "weight", "packed", "group_sums"
PARAMETERS = ("scales", "data_scales", "zeros", "sums_of_rows")
"""Stages with a value for each group of a row or a column."""
FIRST = -2
"""Of the places in a loop where TVM may compute a block."""

Expr = Any


@dataclass(frozen=True)
class Steps:
    """How K is divided. width: of a group, padded; depth: of a step."""

    width: int
    depth: int

    @property
    def of_group(self) -> int:
        """Steps of a group."""
        return max(1, self.width // self.depth)

    @property
    def groups(self) -> int:
        """Groups of a step."""
        return max(1, self.depth // self.width)


def steps_of(workload: BlockwiseWorkload, depth: int, unit: int) -> Steps | None:
    """The division into steps of `depth` values, by instructions that take `unit` of them; None if there is none."""
    width = -(-workload.group // unit) * unit
    if width >= depth:
        return Steps(-(-width // depth) * depth, depth)
    return Steps(width, depth) if depth % width == 0 and workload.groups % (depth // width) == 0 else None


def offset_of(weight_dtype: str) -> int:
    """What is subtracted from integers of a dtype."""
    return 1 << (WIDTHS[weight_dtype] - 1) if weight_dtype.startswith("u") else 0


def centered(workload: BlockwiseWorkload) -> bool:
    """Whether the offset is the zero point of all groups, so that no sums of x are needed."""
    return workload.zero_point == offset_of(workload.weight_dtype)


def _split_bytes(workload: BlockwiseWorkload) -> str | None:
    """Why the bytes of a group cannot be copied."""
    within = workload.groups > 1 and workload.group * WIDTHS[workload.weight_dtype] % 8
    return f"groups of {workload.group} {workload.weight_dtype} values, no whole bytes" if within else None


def run_of(workload: BlockwiseWorkload) -> int:
    """How many values of x are contiguous, aligned and in one group: a power of two up to 16 bytes."""
    most = gemm.WIDEST // np.dtype(workload.data_dtype).itemsize
    return math.gcd(workload.k, most, *([workload.group] if workload.groups > 1 else []))


def run_of_bytes(workload: BlockwiseWorkload) -> int:
    """The same for packed weights, in bytes."""
    bits = WIDTHS[workload.weight_dtype]
    of_group = [workload.group * bits // 8] if workload.groups > 1 else []
    return math.gcd(packed_bytes(workload.k, workload.weight_dtype), gemm.WIDEST, *of_group)


def parameters(workload: BlockwiseWorkload, rows: int, columns: int) -> list[int]:
    """How many values each of a group's PARAMETERS has in a tile."""
    of_data = [rows] if workload.integers and not workload.row_scales else []
    of_zeros = [] if centered(workload) else [rows] + ([columns] if workload.zero_point is None else [])
    return [columns, *of_data, *of_zeros]


def instructions(workload: BlockwiseWorkload) -> int:
    """Issue slots that scale a sum of a group and add it: a product and an addition; for integers a conversion, which
    half of the lanes do, and a shift; one for its zero point, one for the scale of its activations."""
    shifted = workload.integers and WIDTHS[workload.weight_dtype] < 8
    of_data = workload.integers and not workload.row_scales
    return 2 + 2 * workload.integers + shifted + (not centered(workload)) + of_data


def compute(
    workload: BlockwiseWorkload, x: te.Tensor, operands: Sequence[te.Tensor], block: gemm.BlockSize, form: Form
) -> te.Tensor:
    """The product, (M, N). operands: as of `generic.blockwise.compute`; form: of the values that are multiplied."""
    *scales, weight, scale, zero_point = operands
    steps = steps_of(workload, block.depth, form.unit)
    assert steps is not None, "tiles divide K"
    rows, columns, width, groups = (
        _padded(workload.m, block.rows),
        _padded(workload.n, block.columns),
        steps.width,
        workload.groups,
    )
    data = _data(workload, x, rows, width, form)
    values = _values(workload, weight, columns, width, form)

    def row(m: Expr) -> Expr:
        return gemm.clamp(m, workload.m, rows)

    def column(n: Expr) -> Expr:
        return gemm.clamp(n, workload.n, columns)

    def parameter(name: str, size: int, value: Any) -> te.Tensor:
        return te.compute((groups, size), value, name=name)

    j = te.reduce_axis((0, width), "j")
    dots = te.compute(
        (groups, rows, columns),
        lambda g, m, n: te.sum(form.value(data(m, g * width + j)) * form.value(values(n, g * width + j)), axis=j),
        name=DOTS,
    )
    units = parameter("scales", columns, lambda g, n: real(scale(column(n), g)))
    if workload.integers and not workload.row_scales:
        of_data = parameter("data_scales", rows, lambda g, m: scales[0](row(m), g))
    if not centered(workload):
        sums = _sums(workload, x, form)
        of_rows = parameter("sums_of_rows", rows, lambda g, m: sums(row(m), g))
        if workload.zero_point is None:
            offset = tirx.const(offset_of(workload.weight_dtype), "float32" if workload.float_zeros else "int32")
            zeros = parameter(
                "zeros", columns, lambda g, n: zero_at(zero_point, column(n), g, workload.weight_dtype) - offset
            )

    def dot(g: Expr, m: Expr, n: Expr) -> Expr:
        total = form.unscaled(dots(g, m, n), WIDTHS[workload.weight_dtype])
        if centered(workload):
            return total
        if workload.zero_point is None:
            zero = zeros(g, n)
        else:
            zero = tirx.const(workload.zero_point - offset_of(workload.weight_dtype), "int32")
        return total - zero.astype(form.sums) * of_rows(g, m)

    g = te.reduce_axis((0, groups), "g")
    acc = te.compute(
        (1, rows, columns),
        lambda b, m, n: te.sum(scaled(workload, dot(g, m, n), units(g, n), lambda: of_data(g, m)), axis=g),
        name=gemm.ACCUMULATOR,
    )
    logical = te.compute((workload.m, workload.n), lambda m, n: acc(0, m, n), name="logical")
    return scaled_rows(workload, logical, scales)


def _padded(size: int, step: int) -> int:
    return -(-size // step) * step


def _data(workload: BlockwiseWorkload, x: te.Tensor, rows: int, width: int, form: Form) -> te.Tensor:
    """A, of the values that are multiplied."""
    placed = Placed(workload.m, rows, workload.groups, workload.group, workload.k, width, run_of(workload))
    return _spread(x, placed, "data", OPERAND, lambda value: value if x.dtype == form.dtype else real(value))


def _values(workload: BlockwiseWorkload, weight: te.Tensor, columns: int, width: int, form: Form) -> te.Tensor:
    """B, from its packed bytes."""
    bits, dtype = WIDTHS[workload.weight_dtype], workload.weight_dtype
    of_group = workload.group * bits // 8 if workload.groups > 1 else packed_bytes(workload.k, dtype)
    size = packed_bytes(workload.k, dtype)
    placed = Placed(workload.n, columns, workload.groups, of_group, size, width * bits // 8, run_of_bytes(workload))
    packed = _spread(weight, placed, PACKED)
    offset = offset_of(dtype)

    def value(n: Expr, k: Expr) -> Expr:
        return form.stored(integer_at(packed, n, k, dtype) - tirx.const(offset, "int32"), bits)

    return te.compute((columns, workload.groups * width), value, name=WEIGHT)


@dataclass(frozen=True)
class Placed:
    """A matrix (rows, size) with each `group` columns in `width`, behind them zeros, and the last row repeated. Runs of
    `run` columns exist or do not."""

    rows: int
    padded_rows: int
    groups: int
    group: int
    size: int
    width: int
    run: int


def _spread(
    source: te.Tensor,
    placed: Placed,
    name: str,
    mark: str | None = None,
    converted: Callable[[Expr], Expr] = lambda value: value,
) -> te.Tensor:
    """`source` as `placed`, its values `converted`."""
    run, width, group = placed.run, placed.width, placed.group
    shape = (placed.padded_rows, placed.groups * width)

    def value(n: Expr, k: Expr) -> Expr:
        r = k // run
        g, within = (r // (width // run), r % (width // run)) if placed.groups > 1 else (0, r)
        start = g * (group // run) + within
        inside = [within < group // run] if width > group and placed.groups > 1 else []
        shorter = placed.groups * group > placed.size or (placed.groups == 1 and width > group)
        inside += [start < placed.size // run] if shorter else []
        found = converted(source(gemm.clamp(n, placed.rows, placed.padded_rows), start * run + k % run))
        return tirx.if_then_else(tirx.all(*inside), found, tirx.const(0, dtype_of(found))) if inside else found

    return te.compute(shape, value, name=name, attrs={mark: True} if mark else None)


def _sums(workload: BlockwiseWorkload, x: te.Tensor, form: Form) -> te.Tensor:
    """Sums of x over each group (M, G), in memory: a kernel of its own."""
    whole = workload.k % workload.group == 0
    j = te.reduce_axis((0, workload.group), "j")

    def term(m: Expr, g: Expr) -> Expr:
        k = g * workload.group + j
        if whole:
            return multiplied(workload, x(m, k))
        found = multiplied(workload, x(m, tirx.min(k, workload.k - 1)))
        return tirx.Select(k < workload.k, found, tirx.const(0, form.sums))

    return te.compute((workload.m, workload.groups), lambda m, g: te.sum(term(m, g), axis=j), name=SUMS)


def parameters_of(sch: Schedule) -> list[SBlockRV]:
    """The blocks of PARAMETERS."""
    names = {sch.get(block).name_hint for block in sch.get_child_blocks(sch.get_sblock("root"))}
    return [sch.get_sblock(name) for name in PARAMETERS if name in names]


Tiles = Callable[[BlockwiseWorkload], dict[Any, float]]


def register_method(
    method: str,
    priority: int,
    refuses: Callable[[BlockwiseWorkload, Target], str | None],
    few_rows_cost: Callable[[BlockwiseWorkload], float],
    tiles: Tiles,
    form: Form,
    schedule: Callable[[Schedule, BlockwiseWorkload, Target, Any], None],
) -> Implementation:
    """Register a method, such as "mma", as "blockwise_mma.cuda".

    refuses:       as of an `Implementation`, for what costs no time to find out
    few_rows_cost: workload -> the predicted cost of the kernel for few rows, `blockwise`, in the unit of `tiles`
    tiles:         workload -> its tiles with their predicted cost, cheapest first; a tile's `block` is its `BlockSize`
    schedule:      (schedule, workload, target, tile) -> None
    """

    def refused(workload: BlockwiseWorkload, target: Target) -> str | None:
        reason = refuses(workload, target) or _split_bytes(workload)
        if reason:
            return reason
        costs = tiles(workload)
        if not costs:
            return f"no tile divides groups of {workload.group} values"
        fewer = blockwise.refuses(workload, target) is None and few_rows_cost(workload) <= min(costs.values())
        return f"{workload.m} rows, too few to gain" if fewer else None

    def computed(
        workload: BlockwiseWorkload, x: te.Tensor, operands: Sequence[te.Tensor], pad_value: int, tile: Any = None
    ) -> te.Tensor:
        return compute(workload, x, operands, (tile or cheapest(tiles, workload)).block, form)

    def scheduled(sch: Schedule, workload: BlockwiseWorkload, target: Target, tile: Any = None) -> None:
        schedule(sch, workload, target, tile or cheapest(tiles, workload))

    return register(
        BlockwiseWorkload,
        Implementation(
            name=f"blockwise_{method}.cuda",
            priority=priority,
            backends=(CUDA,),
            refuses=refused,
            compute=computed,
            schedule=scheduled,
            tiles=tiles,
        ),
    )
