"""Operators that move, slice, join or copy elements, integer or float."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
from tvm import relax

from .... import op as qnn
from ....op.base import constant, constant_value
from ..node import Node
from ..reader import DTYPES
from ..registry import converter
from ..scales import F32, Range, scale_of
from . import uncalibrated

# ---- copies ------------------------------------------------------------------------------------------------------


@converter("_copy", "identity", "BlockGrad", "stop_gradient", "make_loss", "MakeLoss", "LinearRegressionOutput",
           "MAERegressionOutput", "_identity_with_attr_like_rhs")  # fmt: skip
def convert_copy(node: Node) -> relax.Expr:
    """The input itself."""
    return node.input(0)


@converter("Dropout")
def convert_dropout(node: Node) -> relax.Expr:
    """A no-op at inference."""
    node.choice("mode", "training", "training")
    return node.input(0)


@converter("LogisticRegressionOutput")
def convert_logistic_output(node: Node) -> relax.Expr:
    """The sigmoid of the input."""
    return relax.op.sigmoid(node.input(0))


@converter("Cast", "cast")
def convert_cast(node: Node) -> relax.Expr:
    """A cast."""
    known = [np.dtype(code).name for code in DTYPES.values()]
    return relax.op.astype(node.input(0), node.choice("dtype", "", *known))


# ---- shapes ------------------------------------------------------------------------------------------------------


@converter("Flatten", "flatten")
def convert_flatten(node: Node) -> relax.Expr:
    """(N, everything else)."""
    shape = node.shape(0)
    if not shape:
        raise node.malformed("a scalar cannot be flattened")
    return relax.op.reshape(node.input(0), (shape[0], math.prod(shape[1:])))


@converter("_contrib_quantized_flatten")
def convert_quantized_flatten(node: Node) -> list[relax.Expr]:
    """The same for integers; the range is unchanged."""
    return [convert_flatten(node), node.input(1), node.input(2)]


@converter("Reshape", "reshape")
def convert_reshape(node: Node) -> relax.Expr:
    """MXNet's special sizes: 0 copies a dimension, −1 is inferred, −2 copies the rest, −3 merges two, −4 splits one
    into the next two sizes."""
    shape, wanted = node.shape(0), node.integers("shape")
    if node.flag("reverse"):
        if -4 in wanted:
            raise node.unsupported("reverse with a split (−4)")
        sizes = _reshaped(node, shape[::-1], wanted[::-1])[::-1]
    else:
        sizes = _reshaped(node, shape, wanted)
    if sizes.count(-1) > 1 or (-1 not in sizes and math.prod(sizes) != math.prod(shape)):
        raise node.malformed(f"shape {wanted} does not match data of shape {shape}")
    return relax.op.reshape(node.input(0), sizes)


def _reshaped(node: Node, shape: tuple[int, ...], wanted: tuple[int, ...]) -> list[int]:
    result: list[int] = []
    left, sizes = list(shape), iter(wanted)
    for size in sizes:
        if size == -2:
            result += left
            left = []
        elif size == -3:
            result.append(_take(node, left) * _take(node, left))
        elif size == -4:
            result += _split(node, _take(node, left), list(islice(sizes, 2)))
        elif size == 0:
            result.append(_take(node, left))
        elif size >= -1:
            result.append(size)
            left[:1] = []
        else:
            raise node.malformed(f"size {size} in shape {wanted} is not valid")
    return result


def _take(node: Node, left: list[int]) -> int:
    if not left:
        raise node.malformed(f"shape {node.text('shape')} copies more dimensions than the data of {node.shape(0)} has")
    return left.pop(0)


def _split(node: Node, size: int, parts: list[int]) -> list[int]:
    if len(parts) != 2 or parts.count(-1) > 1 or 0 in parts:
        raise node.malformed(f"−4 splits a dimension into two sizes, found {parts}")
    if -1 in parts:
        known = parts[1] if parts[0] == -1 else parts[0]
        parts = [size // known if part == -1 else part for part in parts]
    if min(parts) < 1 or math.prod(parts) != size:
        raise node.malformed(f"a dimension of {size} cannot be split into {parts}")
    return parts


@converter("transpose")
def convert_transpose(node: Node) -> relax.Expr:
    """Permutes the axes; reverses them when `axes` is not given."""
    axes = node.integers("axes", ()) or tuple(reversed(range(len(node.shape(0)))))
    if sorted(axes) != list(range(len(node.shape(0)))):
        raise node.malformed(f"axes {axes} are not a permutation of {len(node.shape(0))} dimensions")
    return relax.op.permute_dims(node.input(0), list(axes))


@converter("SwapAxis", "swapaxes")
def convert_swap_axes(node: Node) -> relax.Expr:
    """Swaps two axes."""
    axes = list(range(len(node.shape(0))))
    one, two = node.axis("dim1", 0, len(axes)), node.axis("dim2", 0, len(axes))
    axes[one], axes[two] = axes[two], axes[one]
    return relax.op.permute_dims(node.input(0), axes)


@converter("expand_dims")
def convert_expand_dims(node: Node) -> relax.Expr:
    """Inserts a dimension of size 1."""
    return relax.op.expand_dims(node.input(0), node.axis("axis", 0, len(node.shape(0)) + 1))


@converter("squeeze")
def convert_squeeze(node: Node) -> relax.Expr:
    """Removes dimensions of size 1."""
    return relax.op.squeeze(node.input(0), list(node.integers("axis", ())) or None)


@converter("broadcast_to")
def convert_broadcast_to(node: Node) -> relax.Expr:
    """A size of 0 keeps the dimension."""
    sizes = node.integers("shape")
    if len(sizes) != len(node.shape(0)):
        raise node.malformed(f"shape {sizes} does not match data of shape {node.shape(0)}")
    return relax.op.broadcast_to(node.input(0), [s or dim for s, dim in zip(sizes, node.shape(0), strict=True)])


# ---- joining and slicing -----------------------------------------------------------------------------------------


@converter("Concat", "concat")
def convert_concat(node: Node) -> relax.Expr:
    """All inputs concatenated along `dim`."""
    axis = node.axis("dim", 1, len(node.shape(0)))
    return relax.op.concat(node.inputs, axis) if len(node.inputs) > 1 else node.input(0)


@converter("_contrib_quantized_concat")
def convert_quantized_concat(node: Node) -> list[relax.Expr]:
    """Rescales all inputs to the widest range, int8 if one of them is: saturate(rint(f32(q) · f32(s_out / s_in)))."""
    count = node.integer("num_args")
    if count < 1 or len(node.inputs) != 3 * count:
        raise node.malformed(f"num_args={count} needs {3 * count} inputs, found {len(node.inputs)}")
    axis = node.axis("dim", 1, len(node.shape(0)))
    if not all(node.range_is_known(count + 2 * i) for i in range(count)):
        return uncalibrated.concatenate(node, count, axis)
    dtypes = [node.dtype(i) for i in range(count)]
    spans = [node.range(count + 2 * i) for i in range(count)]
    target = Range(min(F32(0), *(s.low for s in spans)), max(F32(0), *(s.high for s in spans)))
    dtype = "int8" if "int8" in dtypes else "uint8"
    scale = scale_of(dtype, target)
    factors = [F32(scale / scale_of(d, s)) for d, s in zip(dtypes, spans, strict=True)]
    if any(scale_of(d, s) == scale and d != dtype for d, s in zip(dtypes, spans, strict=True)):
        raise node.unsupported("joining int8 and uint8 of the same scale, which MXNet itself cannot run")
    data = node.inputs[:count]
    joined = qnn.concatenate(data, factors, [0] * count, 1.0, 0, axis=axis, out_dtype=dtype)
    return node.with_range(joined, target)


@converter("stack")
def convert_stack(node: Node) -> relax.Expr:
    """All inputs stacked along a new axis."""
    axis = node.axis("axis", 0, len(node.shape(0)) + 1)
    return relax.op.concat([node.emit(relax.op.expand_dims(value, axis)) for value in node.inputs], axis)


@converter("SliceChannel", "split")
def convert_split(node: Node) -> list[relax.Expr]:
    """Equal parts along `axis`."""
    axis, count = node.axis("axis", 1, len(node.shape(0))), node.integer("num_outputs")
    size = node.shape(0)[axis]
    if not 1 <= count <= 1024 or size % count:
        raise node.malformed(f"a dimension of {size} cannot be split into {count} equal parts")
    step = size // count
    parts = [_slice(node, axis, i * step, (i + 1) * step) for i in range(count)]
    if node.flag("squeeze_axis"):
        parts = [relax.op.squeeze(node.emit(part), [axis]) for part in parts]
    return parts


@converter("slice_axis")
def convert_slice_axis(node: Node) -> relax.Expr:
    """begin … end along one axis; negative numbers count from its end, and end may be None."""
    axis = node.axis("axis", 0, len(node.shape(0)))
    size, begin = node.shape(0)[axis], node.integer("begin")
    end = node.integer("end") if node.has("end") else size
    begin, end = (index + size if index < 0 else index for index in (begin, end))
    if not 0 <= begin < end <= size:
        raise node.malformed(f"begin {begin} and end {end} do not fit a dimension of {size}")
    return _slice(node, axis, begin, end)


@converter("slice", "crop")
def convert_slice(node: Node) -> relax.Expr:
    """begin … end with steps along the first axes; None takes a whole axis."""
    bounds = [node.optional_integers(key) for key in ("begin", "end")]
    steps = node.optional_integers("step") if node.has("step") else ()
    count = len(bounds[0])
    if len(bounds[1]) != count or count > len(node.shape(0)) or len(steps) not in (0, count):
        raise node.malformed(f"begin {bounds[0]}, end {bounds[1]} and step {steps} do not match data {node.shape(0)}")
    ranges = []
    for axis in range(count):
        step = (steps[axis] if steps else None) or 1
        if step < 1:
            raise node.unsupported(f"step {step}; only positive steps are supported")
        begin, end, _ = slice(bounds[0][axis], bounds[1][axis], step).indices(node.shape(0)[axis])
        if begin >= end:
            raise node.malformed(f"the slice of axis {axis} is empty")
        ranges.append((begin, end, step))
    begins, ends, strides = ([r[i] for r in ranges] for i in range(3))
    return relax.op.strided_slice(node.input(0), list(range(count)), begins, ends, strides)


@converter("slice_like")
def convert_slice_like(node: Node) -> relax.Expr:
    """The start of the data, cut to the second input's length along `axes`."""
    shape, like = node.shape(0), node.shape(1)
    rank = len(shape)
    given = node.integers("axes", ()) or tuple(range(min(rank, len(like))))
    if any(not -rank <= axis < rank or axis % rank >= len(like) for axis in given):
        raise node.malformed(f"axes {given} do not match shapes {shape} and {like}")
    axes = sorted({axis % rank for axis in given})
    if any(like[axis] > shape[axis] for axis in axes):
        raise node.malformed(f"data of shape {shape} is smaller than {like}")
    return relax.op.strided_slice(node.input(0), axes, [0] * len(axes), [like[axis] for axis in axes])


def _slice(node: Node, axis: int, begin: int, end: int) -> relax.Expr:
    return relax.op.strided_slice(node.input(0), [axis], [begin], [end])


# ---- more elements -----------------------------------------------------------------------------------------------


@converter("Pad", "pad")
def convert_pad(node: Node) -> relax.Expr:
    """pad_width holds (before, after) of every dimension."""
    mode = node.choice("mode", "", "constant", "reflect", "edge")
    widths = node.integers("pad_width")
    if len(widths) != 2 * len(node.shape(0)) or min(widths, default=0) < 0:
        raise node.malformed(f"pad_width {widths} does not match data of shape {node.shape(0)}")
    if mode == "constant":
        value = node.real("constant_value", 0.0)
        return relax.op.nn.pad(node.input(0), list(widths), pad_mode="constant", pad_value=value)
    if mode == "reflect" and any(w >= node.shape(0)[i // 2] for i, w in enumerate(widths) if w):
        raise node.malformed(f"pad_width {widths} reflects more than data of shape {node.shape(0)} has")
    pad_mode = "replicate" if mode == "edge" else mode
    return relax.op.nn.pad(node.input(0), list(widths), pad_mode=pad_mode)


@converter("UpSampling")
def convert_upsampling(node: Node) -> relax.Expr:
    """Every pixel repeated `scale` times in both directions."""
    node.check_rank(4)
    node.choice("sample_type", "", "nearest")
    scale = node.integer("scale")
    if len(node.inputs) != 1 or not 1 <= scale <= 1024:
        raise node.unsupported(f"{len(node.inputs)} inputs with scale {scale}")
    rows = node.emit(relax.op.repeat(node.input(0), scale, 2))
    return relax.op.repeat(rows, scale, 3)


@converter("Embedding")
def convert_embedding(node: Node) -> relax.Expr:
    """Rows of the weights; indices beyond them are clipped."""
    return _rows(node, 1)


@converter("_contrib_quantized_embedding")
def convert_quantized_embedding(node: Node) -> list[relax.Expr]:
    """Rows of int8 weights, with the weights' range."""
    return [_rows(node, 1), node.input(2), node.input(3)]


def _rows(node: Node, weight: int) -> relax.Expr:
    table = node.constant(weight)
    if table.ndim != 2 or not table.size:
        raise node.malformed(f"the weights must be a matrix, found shape {table.shape}")
    known = constant_value(node.input(0))
    if known is not None:
        return constant(table[np.clip(known.astype(np.int64), 0, len(table) - 1)])
    clipped = relax.op.clip(node.input(0), 0, len(table) - 1)
    return relax.op.take(constant(table), node.emit(relax.op.astype(node.emit(clipped), "int32")), axis=0, mode="clip")
