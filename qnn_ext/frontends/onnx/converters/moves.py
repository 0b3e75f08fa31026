"""Operators that only move values, or read their bits: Gather, Pad, Concat, Slice, Tile, CumSum's flips, DepthToSpace,
its inverse, ExpandDims, BitCast."""

from __future__ import annotations

import numpy as np
from tvm import relax

from .... import op as qnn
from ....limits import check_elements
from ....op import compound
from ....op.base import constant, normalize_axis
from ....op.bitcast import DTYPES
from ...building import padded
from ...reversal import reversed_sequences
from ...run_time import checked_indices
from ..indices import index_input
from ..node import Node
from ..registry import MICROSOFT, converter
from ..run_time_sizes import sliced


@converter("Gather")
def gather(node: Node) -> relax.Expr:
    """Slices of the data along an axis; negative indices count from the end."""
    axis = normalize_axis(node.attribute("axis", 0), len(node.shape(0)))
    indices = index_input(node, 1, node.shape(0)[axis], negative=True)
    return relax.op.take(node.input(0), indices, axis, mode="clip")


@converter("Pad", since=1)
def pad(node: Node) -> relax.Expr:
    """Padding with widths and value in attributes."""
    widths = node.attribute("pads", node.attribute("paddings"))
    value = np.asarray(node.attribute("value", 0.0), node.dtype(0))
    return _pad(node, widths, list(range(len(node.shape(0)))), value)


@converter("Pad", since=11)
@converter("Pad", domain=MICROSOFT)
def pad_by_inputs(node: Node) -> relax.Expr:
    """Padding with widths, value and (since version 18) axes as inputs."""
    ndim = len(node.shape(0))
    axes = [normalize_axis(axis, ndim) for axis in node.integers(3)] if node.has_input(3) else list(range(ndim))
    filled = node.has_input(2) and node.attribute("mode", "constant") == "constant"
    value = node.constant(2) if filled else np.zeros((), node.dtype(0))
    return _pad(node, node.integers(1), axes, value)


def _pad(node: Node, widths: list[int] | None, axes: list[int], value: np.ndarray) -> relax.Expr:
    """Modes other than "constant" repeat existing elements, as slices along each axis; negative widths crop."""
    shape, mode = node.shape(0), node.attribute("mode", "constant")
    if widths is None or len(widths) != 2 * len(axes) or len(set(axes)) != len(axes):
        raise node.malformed(f"pads {widths} do not match axes {axes}")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise node.malformed(f"mode must be constant, reflect, edge or wrap, found {mode!r}")
    before, after = [0] * len(shape), [0] * len(shape)
    for axis, low, high in zip(axes, widths[: len(axes)], widths[len(axes) :], strict=True):
        before[axis], after[axis] = low, high
    sizes = [low + length + high for low, length, high in zip(before, shape, after, strict=True)]
    if min(sizes, default=0) < 0:
        raise node.malformed(f"negative pads {widths} remove more than shape {shape} has")
    check_elements([max(size, 1) for size in sizes])
    data = node.input(0)
    for axis, length in enumerate(shape):
        low, high = before[axis], after[axis]
        if mode == "constant":
            cut = [min(low, 0), min(high, 0)]
            if any(cut):
                data = node.emit(relax.op.strided_slice(data, [axis], [-cut[0]], [length + cut[1]]))
        elif low or high:
            data = node.emit(relax.op.take(data, constant(_repeated(node, mode, length, low, high)), axis))
    if mode != "constant":
        return data
    pads = [max(width, 0) for pair in zip(before, after, strict=True) for width in pair]
    if not any(pads):
        return data
    if value.size != 1:
        raise node.malformed(f"the padding value has shape {value.shape}; it must be a scalar")
    return padded(node.emit, data, pads, value.reshape(()).item())


def _repeated(node: Node, mode: str, length: int, low: int, high: int) -> np.ndarray:
    """Which position of the axis each position of the padded axis copies."""
    check_elements((length + low + high,), "the padded axis", "folded")
    positions = np.arange(-low, length + high, dtype=np.int64)
    if mode == "wrap":
        return positions % length
    if mode == "edge":
        return np.clip(positions, 0, length - 1)
    period = max(2 * (length - 1), 1)
    folded = np.abs(positions) % period
    return np.where(folded >= length, period - folded, folded) if length > 1 else np.zeros_like(positions)


@converter("Concat")
def concat(node: Node) -> relax.Expr:
    """Tensors joined along an axis: the second by default before version 4, which requires one."""
    axis = node.attribute("axis", 1 if node.opset < 4 else None)
    if axis is None:
        raise node.malformed("the attribute axis is missing")
    tensors = [node.input(index) for index in range(len(node.inputs))]
    return relax.op.concat(tensors, normalize_axis(axis, len(node.shape(0))))


@converter("Slice")
def slice_by_attributes(node: Node) -> relax.Expr:
    """A range along each of the axes, with ranges and axes in attributes."""
    starts, ends = (node.attribute(name, []) for name in ("starts", "ends"))
    return _sliced(node, starts, ends, node.attribute("axes"), None)


@converter("Slice", since=10)
def slice_by_inputs(node: Node) -> relax.Expr:
    """A range along each of the axes, with ranges, axes and steps as inputs."""
    if not all(node.is_constant(index) for index in range(1, len(node.inputs)) if node.has_input(index)):
        return sliced(node, node.assembly.builder.sizes)
    axes, steps = (node.integers(index) if node.has_input(index) else None for index in (3, 4))
    return _sliced(node, node.integers(1), node.integers(2), axes, steps)


def _sliced(
    node: Node, starts: list[int], ends: list[int], axes: list[int] | None, steps: list[int] | None
) -> relax.Expr:
    """Ranges as in Python: negative bounds count from the end, and bounds beyond an end stop there."""
    shape = node.shape(0)
    chosen = list(range(len(starts))) if axes is None else [normalize_axis(axis, len(shape)) for axis in axes]
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(chosen) == len(steps) or len(set(chosen)) != len(chosen):
        raise node.malformed(f"starts {starts}, ends {ends}, axes {axes} and steps {steps} do not match")
    if 0 in steps or len(chosen) > len(shape):
        raise node.malformed(f"steps {steps} of axes {chosen} do not suit shape {shape}")
    ranges = [
        slice(start, end, step).indices(shape[axis])
        for axis, start, end, step in zip(chosen, starts, ends, steps, strict=True)
    ]
    ranges = [found if len(range(*found)) else (0, 0, 1) for found in ranges]
    parts = [(axis, found) for axis, found in zip(chosen, ranges, strict=True) if found != (0, shape[axis], 1)]
    if not parts:
        return node.input(0)
    chosen, ranges = [axis for axis, _ in parts], [found for _, found in parts]
    firsts, lasts, steps = ([values[index] for values in ranges] for index in range(3))
    # an end of −1 would count from the end again
    lasts = [last if last >= 0 else -shape[axis] - 1 for axis, last in zip(chosen, lasts, strict=True)]
    return relax.op.strided_slice(node.input(0), chosen, firsts, lasts, steps)


@converter("Tile", since=6)
def tile(node: Node) -> relax.Expr:
    """The data repeated along each axis."""
    repeats = node.integers(1)
    if len(repeats) != len(node.shape(0)) or any(count < 0 for count in repeats):
        raise node.malformed(f"repeats {repeats} do not match shape {node.shape(0)}")
    return relax.op.tile(node.input(0), repeats)


@converter("CumSum", since=11)
def cumsum(node: Node) -> relax.Expr:
    """Running sums along an axis, from the end if `reverse`, excluding the element itself if `exclusive`."""
    (axis,) = node.integers(1)
    if not node.shape(0):
        raise node.malformed("the input is a scalar and has no axis to sum along")
    axis = normalize_axis(axis, len(node.shape(0)))
    data = node.input(0)
    if node.attribute("reverse", 0):
        data = node.emit(relax.op.flip(data, axis))
    total = node.emit(relax.op.cumsum(data, axis, exclusive=bool(node.attribute("exclusive", 0))))
    return relax.op.flip(total, axis) if node.attribute("reverse", 0) else total


@converter("ExpandDims", domain=MICROSOFT)
def expand_dims(node: Node) -> relax.Expr:
    """The data with an axis of one element more, before the axis that is given; −1: behind the last one."""
    (axis,) = node.integers(1)
    shape = node.shape(0)
    axis = normalize_axis(axis, len(shape) + 1)
    return compound.reshape(node.input(0), (*shape[:axis], 1, *shape[axis:]), node.emit)


@converter("BitCast", since=26)
def bitcast(node: Node) -> relax.Expr:
    """The bits of each element as a number of another dtype of the same size."""
    dtype = node.target_dtype("to")
    if node.dtype(0) not in DTYPES or dtype not in DTYPES:
        raise node.unsupported(f"the bits of {node.dtype(0)} as {dtype}; supported: {', '.join(DTYPES)}")
    if np.dtype(dtype).itemsize != np.dtype(node.dtype(0)).itemsize:
        raise node.malformed(f"{node.dtype(0)} and {dtype} differ in size")
    return qnn.bitcast(node.input(0), dtype)


@converter("ReverseSequence", since=10)
def reverse_sequence(node: Node) -> relax.Expr:
    """For each sample, its first steps in reverse order, as many as its length says, the others as they are."""
    shape = node.shape(0)
    steps, batch = int(node.attribute("time_axis", 0)), int(node.attribute("batch_axis", 1))
    if {steps, batch} != {0, 1} or len(shape) < 2 or node.shape(1) != (shape[batch],):
        raise node.malformed(f"lengths of shape {node.shape(1)}, time axis {steps} and batch axis {batch} of {shape}")
    lengths = checked_indices(node.emit, node.input(1), shape[steps] + 1, node.label)
    return reversed_sequences(node.emit, node.input(0), lengths, steps, batch)


@converter("DepthToSpace", since=1)
def depth_to_space(node: Node) -> relax.Expr:
    """Blocks of channels become blocks of pixels: reshape, permute, reshape."""
    n, c, h, w = _image(node)
    size = node.attribute("blocksize", 0)
    if size < 1 or c % (size * size):
        raise node.malformed(f"{c} channels cannot be divided by block size {size}")
    inner = c // (size * size)
    if node.attribute("mode", "DCR") == "DCR":
        shape, order = (n, size, size, inner, h, w), (0, 3, 4, 1, 5, 2)
    else:
        shape, order = (n, inner, size, size, h, w), (0, 1, 4, 2, 5, 3)
    return _rearranged(node, shape, order, (n, inner, h * size, w * size))


@converter("SpaceToDepth", since=1)
def space_to_depth(node: Node) -> relax.Expr:
    """Blocks of pixels become blocks of channels: reshape, permute, reshape."""
    n, c, h, w = _image(node)
    size = node.attribute("blocksize", 0)
    if size < 1 or h % size or w % size:
        raise node.malformed(f"an image of {h} × {w} cannot be divided into blocks of {size}")
    order = (0, 3, 5, 1, 2, 4) if node.attribute("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    shape = (n, c, h // size, size, w // size, size)
    return _rearranged(node, shape, order, (n, c * size * size, h // size, w // size))


def _image(node: Node) -> tuple[int, ...]:
    if len(node.shape(0)) != 4:
        raise node.malformed(f"the input must be images (N, C, H, W), found shape {node.shape(0)}")
    return node.shape(0)


def _rearranged(node: Node, shape: tuple[int, ...], order: tuple[int, ...], result: tuple[int, ...]) -> relax.Expr:
    split = node.emit(relax.op.reshape(node.input(0), shape))
    return relax.op.reshape(node.emit(relax.op.permute_dims(split, order)), result)


@converter("OneHot", since=9)
def one_hot(node: Node) -> relax.Expr:
    """The second value where the position along the new axis equals the index, the first elsewhere."""
    depth = int(node.constant(1).reshape(-1)[0])
    check_elements((depth,), "the new axis", "folded")
    axis = normalize_axis(node.attribute("axis", -1), len(node.shape(0)) + 1)
    indices = node.emit(relax.op.expand_dims(node.emit(relax.op.astype(node.input(0), "int64")), axis))
    size = constant(np.asarray(depth, np.int64))
    negative = node.emit(relax.op.less(indices, constant(np.zeros((), np.int64))))
    indices = node.emit(relax.op.where(negative, node.emit(relax.op.add(indices, size)), indices))
    positions = np.arange(depth, dtype=np.int64).reshape((-1,) + (1,) * (len(node.shape(0)) - axis))
    off, on = (node.emit(relax.op.take(node.input(2), constant(np.int64(i)), 0)) for i in (0, 1))
    return relax.op.where(node.emit(relax.op.equal(indices, constant(positions))), on, off)


@converter("GatherElements", since=11)
def gather_elements(node: Node) -> relax.Expr:
    """y[i₀, …, iₖ, …] = x[i₀, …, indices[i₀, …, iₖ, …], …] along `axis`, negative indices counting from its end."""
    shape, places = node.shape(0), node.shape(1)
    axis = normalize_axis(node.attribute("axis", 0), len(shape))
    if len(places) != len(shape) or any(places[i] > size for i, size in enumerate(shape) if i != axis):
        raise node.malformed(f"indices of shape {places} do not match data of shape {shape}")
    return relax.op.gather_elements(node.input(0), index_input(node, 1, shape[axis], negative=True), axis)
