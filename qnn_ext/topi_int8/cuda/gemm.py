"""Convolution, dense and batch_matmul as one matrix product: acc[b, m, n] = Σ_k A[b, m, k] · B[b, n, k].

What the kernels of this folder have in common, whatever their instruction:

    b   groups of a convolution, matrices of a batch_matmul, else 1
    m   pixels of all images, (image, row, column) as one number; rows of x
    n   output channels of a group; rows of the second operand
    k   taps and channels of the window, (r, s, c) as one number; columns of x

A is not a tensor in memory. It is a stage "data" whose index expressions gather the values of the image; a schedule
inlines it into the copy to shared memory. k runs over the whole window without gaps, so only products at its end are
by padding, and every aligned run of k whose length divides the channels of a group is contiguous in memory: 16 bytes if
the channels are a multiple of 16. A first layer's three channels are padded to words of four beforehand, in memory:
locating one byte costs as much as four, and each is in several windows. Stride, dilation and groups only change the
expressions.

All three sizes are padded to multiples of the tile, so that products need no predicate: rows after the last one read
the last one again, B is zero after the last k and n. After "gemm", the stage "logical" has the workload's own shape.

Activations are channels-last: the pipeline converts NCHW models to NHWC as a whole (`passes.layout`), so a layout such
as NCHW4c, which other runtimes use for DP4A, would only add transposes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm_ffi
from tvm import te, tirx
from tvm.ir import Range, TensorLoad, TensorRegion
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.s_tir.schedule import SBlockRV

from ...numerics import bfloat16
from ...numerics.annotations import OPERAND
from ...numerics.tir import dtype_of
from ..schedule_util import changed_block, resolve_groups
from ..workload import AnyWorkload, BatchMatmulWorkload, Conv2dWorkload, DenseWorkload, Workload, is_float

ACCUMULATOR = "gemm"
WORD = 4
"""The least values that a thread loads at once, if they are aligned: a word of bytes, or four floats."""
WIDEST = 16
"""Bytes of the widest access to memory."""

Columns = Callable[[Any], Any]
"""The position of column n in the accumulator: a permutation of the columns within a tile, for kernels
that need other columns side by side."""


@dataclass(frozen=True)
class Gemm:
    """Sizes of a product: `batch` products of m × k by n × k matrices."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def macs(self) -> int:
        return self.batch * self.m * self.n * self.k


@dataclass(frozen=True)
class BlockSize:
    """What a block of threads computes at a time: rows of m and columns of n, with `depth` values of k per step."""

    rows: int
    columns: int
    depth: int

    def pad(self, gemm: Gemm) -> Gemm:
        """The sizes as multiples of the block's."""
        m, n, k = (
            -(-size // step) * step
            for size, step in zip((gemm.m, gemm.n, gemm.k), (self.rows, self.columns, self.depth), strict=True)
        )
        return Gemm(gemm.batch, m, n, k)


def gemm_of(workload: AnyWorkload) -> Gemm:
    """The sizes of a workload's product, without padding."""
    if isinstance(workload, Conv2dWorkload):
        groups = workload.groups
        pixels = workload.batch * workload.out_height * workload.out_width
        window = math.prod(workload.kernel) * channels_of(workload)
        return Gemm(groups, pixels, workload.out_channels // groups, window)
    batch = workload.batch if isinstance(workload, BatchMatmulWorkload) else 1
    return Gemm(batch, workload.m, workload.n, workload.k)


def channels_of(workload: Conv2dWorkload) -> int:
    """Channels of a group, the extent of k for one tap of the window: padded if `_widen` pads them."""
    channels = workload.in_channels // workload.groups
    return -(-channels // WORD) * WORD if _widens(workload) else channels


def _widens(workload: Conv2dWorkload) -> bool:
    """Whether padding pixels to whole words is worth a copy of the image: each pixel is in several windows."""
    overlapping = math.prod(workload.kernel) >= 2 * math.prod(workload.strides)
    return workload.groups == 1 and workload.in_channels % WORD != 0 and overlapping


def run_of(workload: Workload) -> int:
    """How many values of A, starting at a k that is a multiple of that number, are contiguous and aligned in memory: a
    power of two up to 16 bytes. Rows of x also begin at multiples of it."""
    most = WIDEST // np.dtype(workload.data_dtype).itemsize
    return math.gcd(channels_of(workload) if isinstance(workload, Conv2dWorkload) else workload.k, most)


def guarded(workload: Workload) -> bool:
    """Whether some values of A are not in memory because a window extends into the image's padding."""
    return isinstance(workload, Conv2dWorkload) and any(workload.padding)


def pack_weight(
    workload: Conv2dWorkload | DenseWorkload, weight: np.ndarray, block: BlockSize, columns: Columns | None = None
) -> np.ndarray:
    """Weights OHWI or (N, K) to B (b, n, k), row `columns(n)` for channel n, zero where n and k were padded."""
    gemm = gemm_of(workload)
    padded = block.pad(gemm)
    packed = np.zeros((gemm.batch, padded.n, padded.k), weight.dtype)
    rows = np.array([int(columns(n)) for n in range(gemm.n)]) if columns else np.arange(gemm.n)
    if isinstance(workload, Conv2dWorkload):
        weight = np.pad(weight, ((0, 0), (0, 0), (0, 0), (0, channels_of(workload) - weight.shape[-1])))
    packed[:, rows, : gemm.k] = weight.reshape(gemm.batch, gemm.n, gemm.k)
    return packed


def compute(
    workload: Workload,
    x: te.Tensor,
    w: te.Tensor,
    pad_value: int,
    block: BlockSize,
    columns: Columns | None = None,
) -> te.Tensor:
    """The accumulator in the workload's shape: (N, OH, OW, OC), (M, N) or (B, M, N), of the dtype of its sums.

    w: the packed weights, or the unchanged second operand of a batch_matmul
    columns: see `Columns`; the same as for `pack_weight`, the identity for batch_matmul
    """
    gemm = gemm_of(workload)
    padded = block.pad(gemm)
    if isinstance(workload, Conv2dWorkload):
        data = _windows(workload, padded, x, pad_value)
    else:
        data = _rows(workload, x, gemm.m, padded.m, padded.k, "data")
    if isinstance(workload, BatchMatmulWorkload):
        w = _rows(workload, w, gemm.n, padded.n, padded.k, "weight")
    k = te.reduce_axis((0, padded.k), "k")
    lead = len(data.shape) == 3

    def product(b, m, n):
        value = data[b, m, k] if lead else data[m, k]
        return te.sum(_value(workload, value) * _value(workload, w[b, n, k]), axis=k)

    acc = te.compute((gemm.batch, padded.m, padded.n), product, name=ACCUMULATOR)
    return _logical(workload, gemm, acc, columns or (lambda n: n))


def _value(workload: Workload, element: Any) -> Any:
    """An element of an operand, in the dtype of sums."""
    if is_float(workload) and dtype_of(element) == bfloat16.BITS:
        return bfloat16.from_bits_expression(element)
    return element.astype(workload.out_dtype)


def _windows(workload: Conv2dWorkload, padded: Gemm, x: te.Tensor, pad_value: int) -> te.Tensor:
    """A of a convolution: x at tap (r, s) and channel c of window m, for k = (r, s, c) as one number."""
    height, width = workload.height, workload.width
    top, left = workload.padding[:2]
    gemm = gemm_of(workload)
    channels, taps_in_row = channels_of(workload), workload.kernel[1]
    run = run_of(workload)
    x = _widen(workload, x) if _widens(workload) else x

    def window(b, m, k):
        image, y, column = pixel(workload, clamp(m, gemm.m, padded.m))
        # By the number of the run, not by k: this shows that one condition holds for a whole run. After the last k,
        # where B is zero, any integer will do, such as that of an existing row; a float could be infinite.
        tap = k // run // (channels // run)
        r = clamp(tap // taps_in_row, workload.kernel[0], -(-padded.k // (channels * taps_in_row)))
        s = tap % taps_in_row if taps_in_row > 1 else 0
        row = y * workload.strides[0] + r * workload.dilation[0] - top
        column = column * workload.strides[1] + s * workload.dilation[1] - left
        inside = [row >= 0, row < height, column >= 0, column < width] if any(workload.padding) else []
        inside += [k // run < gemm.k // run] if is_float(workload) and padded.k > gemm.k else []
        value = x[image, row, column, b * channels + k // run % (channels // run) * run + k % run]
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(pad_value, x.dtype)) if inside else value

    return te.compute((gemm.batch, padded.m, padded.k), window, name="data", attrs={OPERAND: True})


def _widen(workload: Conv2dWorkload, x: te.Tensor) -> te.Tensor:
    """The image with whole words of channels, in memory: a separate kernel, shared by all windows of a pixel."""

    def word(n, y, column, c):
        value = x[n, y, column, tirx.min(c, workload.in_channels - 1)]  # always read, which needs no branch
        return tirx.if_then_else(c < workload.in_channels, value, tirx.const(0, x.dtype))

    return te.compute((workload.batch, workload.height, workload.width, channels_of(workload)), word, name="words")


def _rows(workload: Workload, x: te.Tensor, rows: int, padded_rows: int, padded_depth: int, name: str) -> te.Tensor:
    """x (..., rows, k) with the last row repeated and k padded with zeros, or x itself if nothing has to be added."""
    depth, run = gemm_of(workload).k, run_of(workload)
    if (rows, depth) == (padded_rows, padded_depth):
        return x

    def padded(*indices):
        *lead, row, k = indices
        value = x(*lead, clamp(row, rows, padded_rows), k)
        inside = k // run < depth // run
        return tirx.if_then_else(inside, value, tirx.const(0, x.dtype)) if padded_depth > depth else value

    return te.compute((*x.shape[:-2], padded_rows, padded_depth), padded, name=name, attrs={OPERAND: True})


def clamp(index: Any, size: int, padded: int) -> Any:
    """The index, or the last one if it is past the end: such rows are computed but not used."""
    return tirx.min(index, size - 1) if padded > size else index


def pixel(workload: Conv2dWorkload, m: Any) -> tuple[Any, Any, Any]:
    """(image, row, column) of row m of the product."""
    columns, pixels = workload.out_width, workload.out_height * workload.out_width
    return m // pixels, m % pixels // columns, m % columns


def _logical(workload: Workload, gemm: Gemm, acc: te.Tensor, columns: Columns) -> te.Tensor:
    if isinstance(workload, Conv2dWorkload):
        shape = (workload.batch, workload.out_height, workload.out_width, workload.out_channels)

        def image(n, y, x, c):
            b, m, channel = _place(workload, n, y, x, c)
            return acc[b, m, columns(channel)]

        return te.compute(shape, image, name="logical")
    if isinstance(workload, DenseWorkload):
        return te.compute((gemm.m, gemm.n), lambda m, n: acc[0, m, columns(n)], name="logical")
    return te.compute((gemm.batch, gemm.m, gemm.n), lambda b, m, n: acc[b, m, n], name="logical")


def _place(workload: Conv2dWorkload, n: Any, y: Any, x: Any, c: Any) -> tuple[Any, Any, Any]:
    """(b, m, n) of an output element of a convolution."""
    m = (n * workload.out_height + y) * workload.out_width + x
    if workload.groups == 1:
        return 0, m, c
    channels = workload.out_channels // workload.groups
    return c // channels, m, c % channels


def as_gemm(sch: Schedule, workload: AnyWorkload, output: SBlockRV) -> None:
    """Give the output block, whatever its shape, loops over (b, m, n), and reads and writes by them; no b if it is 1.

    The output has the workload's shape, or for products without `columns` another order of its elements, such as merged
    heads: then the coordinates are those at which it reads the accumulator.
    """
    variables = [iter_var.var for iter_var in sch.get(output).iter_vars]
    if isinstance(workload, Conv2dWorkload):
        place = _place(workload, *variables)
    elif isinstance(workload, DenseWorkload):
        place = (0, *variables)
    else:
        place = tuple(_accumulator_indices(sch, output))
    axes = [axis for axis in place if not isinstance(axis, (int, tirx.IntImm))]
    if len(axes) == 2 and gemm_of(workload).batch > 1:  # the only row, of every product
        axes.insert(1, tirx.const(0, "int32"))
    sch.transform_block_layout(output, tirx.IndexMap(variables, axes, None))
    if isinstance(workload, Conv2dWorkload):
        if workload.groups > 1:
            resolve_groups(sch, output, 0)
        _resolve_rows(sch, output)


def _accumulator_indices(sch: Schedule, output: SBlockRV) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(sch.get(output).body, (TensorLoad, found.append))
    return next(list(load.indices) for load in found if load.source.name == ACCUMULATOR)


def _resolve_rows(sch: Schedule, output: SBlockRV) -> None:
    """Simplify the accumulator's row to m where it is recomposed from its image, row and column.

    TVM does not always do so, and then cannot tell which rows a tile needs.
    """
    block = sch.get(output)
    rows = block.iter_vars[-2].var
    written = _accumulator_indices(sch, output)[-2]
    if written.same_as(rows) or isinstance(written, tirx.IntImm):  # a single row is row 0
        return

    def resolve(node):
        return rows if tvm_ffi.structural_equal(node, written) else node

    resolved = tvm_ffi.structural_map(block, (type(written), resolve))
    sch.state.replace(sch.get_sref(output), resolved, {block: resolved})


def stage_output(
    sch: Schedule, workload: AnyWorkload, output: SBlockRV, block: BlockSize, run: int, permuted: int
) -> list[SBlockRV]:
    """Split the output block, after `as_gemm`, in two over whole tiles: the epilogue into registers, and their store.

    The loops of both, (b, m, n) without b if it is 1, have the padded extents, so all tiles are whole; nothing beyond
    the last row or column is computed or stored. If `run` neighbours in n belong to one thread, all or none of each
    gcd(run, n) aligned ones are stored, so they can be stored as one vector. `permuted`: how many columns `Columns`
    permutes among themselves, all of which the epilogue declares to read: TVM on its own finds too many.
    """
    gemm = gemm_of(workload)
    padded = block.pad(gemm)
    old = sch.get(output)
    store, variables = old.body, [iter_var.var for iter_var in old.iter_vars]
    extents = [gemm.batch, padded.m, padded.n][-len(variables) :]
    together = math.gcd(run, gemm.n)
    inside = [variables[-2] < gemm.m] if padded.m > gemm.m else []
    inside += [variables[-1] // together < gemm.n // together] if padded.n > gemm.n else []
    registers = tirx.decl_buffer(extents, store.buffer.dtype, f"{store.buffer.name}_local", scope="local")
    here = [Range.from_min_extent(var, 1) for var in variables]
    own = TensorRegion(registers, here, old.writes[0].ty)

    def part(name: str, reads: list[Any], writes: list[Any], statement: Any) -> tirx.Stmt:
        loops = [tirx.Var(name_, "int32") for name_ in "bmn"[-len(variables) :]]
        fresh = [tirx.Var(f"v_{loop.name}", "int32") for loop in loops]
        guarded_ = tirx.IfThenElse(tirx.all(*inside), statement, None) if inside else statement
        renamed = dict(zip(variables, fresh, strict=True))
        axes = [
            tirx.IterVar(Range.from_min_extent(0, size), var, tirx.IterVar.DataPar)
            for size, var in zip(extents, fresh, strict=True)
        ]
        body = SBlock(axes, reads, writes, name, guarded_)
        body = tvm_ffi.structural_map(body, (tirx.Var, lambda var: renamed.get(var, var)))
        nest = SBlockRealize(loops, True, body)
        for loop, size in zip(reversed(loops), reversed(extents), strict=True):
            nest = tirx.For(loop, 0, size, tirx.ForKind.SERIAL, nest)
        return nest

    whole = Range.from_min_extent(variables[-1] // permuted * permuted, permuted)
    reads = [
        TensorRegion(read.source, [*read.region[:-1], whole], read.ty) if read.source.name == ACCUMULATOR else read
        for read in old.reads
    ]
    epilogue = part(f"{old.name_hint}_epilogue", reads, [own], tirx.BufferStore(registers, store.value, variables))
    value = tirx.BufferLoad(registers, variables)
    write = part(old.name_hint, [own], old.writes, tirx.BufferStore(store.buffer, value, store.indices))

    root_block = sch.get_sblock("root")
    root = sch.get(root_block)
    nest = sch.get(sch.get_loops(output)[0])
    parts = [other for other in root.body.seq if not other.same_as(nest)]
    assert len(parts) == len(root.body.seq) - 1
    at = next(i for i, other in enumerate(root.body.seq) if other.same_as(nest))
    parts[at:at] = [epilogue, write]
    new = changed_block(root, body=tirx.SeqStmt(parts), alloc_buffers=[*root.alloc_buffers, registers])
    sch.state.replace(sch.get_sref(root_block), new, {root: new})
    return [sch.get_sblock(f"{old.name_hint}_epilogue"), sch.get_sblock(old.name_hint)]
