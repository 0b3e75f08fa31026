"""Operators that move or repeat whole blocks: reshape, transpose, concatenation, splitting, tiling, filling.

They move the stored integers, whatever the quantization; only CONCATENATION may have to requantize.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tvm import relax

from .... import limits
from .... import op as qnn
from ....op.base import constant, constant_value, shape_of
from ... import sized_shapes as shapes
from ...bounded_values import bounds_of
from ..node import Node
from ..registry import converter

Shape = tuple[int, ...]


# ---- helpers that other converters share -------------------------------------------------------------------------


def check_elements(node: Node, shape: Sequence[int], limit: str = "elements", exempt: int = 0) -> Shape:
    """`shape` as a tuple. Raises ModelFormatError when a dimension is negative, LimitError when the tensor would be
    too big."""
    return limits.check_elements(shape, f"{node.label}: a tensor", limit, exempt)


def reshape(node: Node, expr: relax.Expr, shape: Sequence[int]) -> relax.Expr:
    """`expr` in another shape; itself when the shape is the same."""
    current = shape_of(expr)
    if current == tuple(shape):
        return expr
    if math.prod(current) != math.prod(shape):
        raise node.malformed(f"{current} cannot be reshaped to {tuple(shape)}: the numbers of elements differ")
    if 0 in shape:  # which Relax's reshape reads as the size of the same dimension before
        return constant(np.zeros(shape, str(expr.ty.dtype)))
    return node.emit(relax.op.reshape(expr, tuple(shape)))


def block(
    node: Node, expr: relax.Expr, axes: Sequence[int], begin: Sequence[int], end: Sequence[int], strides: Sequence[int]
) -> relax.Expr:
    """expr[begin:end:strides] along `axes`, Python's slice rule after normalization; no call if the axes are whole."""
    shape = [int(dim) for dim in expr.ty.shape]
    whole = [
        (b, e, s) == (0, shape[axis], 1) for axis, b, e, s in zip(axes, begin, end, strides, strict=True)
    ]  # only proper slices remain
    keep = [i for i, same in enumerate(whole) if not same]
    if not keep:
        return expr
    picked = [[sequence[i] for i in keep] for sequence in (axes, begin, end, strides)]
    # TVM reads an end of −1 with a negative stride as "the last element": say "before the first" as −size − 1.
    stops = [e if e >= 0 else -shape[axis] - 1 for axis, e in zip(picked[0], picked[2], strict=True)]
    return node.emit(relax.op.strided_slice(expr, picked[0], picked[1], stops, picked[3]))


def take(node: Node, expr: relax.Expr, indices: np.ndarray, axis: int) -> relax.Expr:
    """The elements `indices` of `expr`, known at import, along one axis; `expr` itself if they are all, in order."""
    check_elements(node, indices.shape, "folded")
    if len(indices) == int(expr.ty.shape[axis]) and np.array_equal(indices, np.arange(int(expr.ty.shape[axis]))):
        return expr
    return node.emit(relax.op.take(expr, constant(np.asarray(indices, np.int32)), axis=axis, mode="clip"))


def from_file(node: Node, index: int) -> bool:
    """Whether the input is a constant of the file, and so may contain the batch size the model was converted with."""
    return node.tensor(index).is_constant


def batch_changed(node: Node, index: int = 0) -> bool:
    """Whether the input's first dimension differs from the file's, because the import changed it."""
    declared, actual = node.tensor(index).shape, node.shape(index)
    return bool(node.assembly.shapes) and len(declared) == len(actual) > 0 and declared[0] != actual[0]


# ---- the same elements in another shape --------------------------------------------------------------------------


@converter("RESHAPE", max_version=1)
def convert_reshape(node: Node) -> relax.Expr:
    """The target is an input or an option; −1 is inferred. A batch size within it follows the input's."""
    shape = node.shape(0)
    if node.has_input(1) and len(node.shape(1)) == 1 and node.dtype(1) in ("int32", "int64"):
        target = node.integers(1)
        rebatch = from_file(node, 1)
    else:
        target = [int(dim) for dim in node.options["new_shape"]]
        target = [] if target == [0] else target  # how old converters encode a scalar
        rebatch = True
    if rebatch and batch_changed(node):
        target = _rebatched(target, node.tensor(0).shape, shape)
    return reshape(node, node.input(0), _inferred(node, target, shape))


def _inferred(node: Node, target: list[int], shape: Shape) -> list[int]:
    """The target with −1 resolved."""
    if target.count(-1) > 1 or any(dim < -1 for dim in target):
        raise node.malformed(f"{target} is not a shape")
    if -1 not in target:
        return target
    known = -math.prod(target)
    if known == 0 or math.prod(shape) % known:
        raise node.malformed(f"{shape} cannot be reshaped to {target}")
    return [math.prod(shape) // known if dim == -1 else dim for dim in target]


def _rebatched(target: list[int], declared: Shape, actual: Shape) -> list[int]:
    """The target for another batch size. Elements stay in row-major order, so the first dimension scales with the batch
    whenever it was a multiple of it before."""
    if -1 in target and (known := -math.prod(target)) > 0:
        target = [math.prod(declared) // known if dim == -1 else dim for dim in target]
    if not target or declared[0] == 0 or target[0] % declared[0]:
        return target
    return [target[0] // declared[0] * actual[0], *(-1 if actual[1:] != declared[1:] else dim for dim in target[1:])]


@converter("SQUEEZE", max_version=2)
def convert_squeeze(node: Node) -> relax.Expr:
    """Drop the named dimensions of size 1, or all of them."""
    shape = node.shape(0)
    dims = [int(dim) for dim in node.options["squeeze_dims"]]
    if any(not -len(shape) <= dim < len(shape) or shape[dim] != 1 for dim in dims):
        raise node.malformed(f"cannot squeeze dimensions {dims} of shape {shape}")
    dropped = {dim % len(shape) for dim in dims} if dims else {i for i, dim in enumerate(shape) if dim == 1}
    return reshape(node, node.input(0), [dim for i, dim in enumerate(shape) if i not in dropped])


@converter("EXPAND_DIMS", max_version=1)
def convert_expand_dims(node: Node) -> relax.Expr:
    """A new dimension of size 1 before the axis."""
    shape = list(node.shape(0))
    (axis,) = node.axes(1, len(shape) + 1)
    return reshape(node, node.input(0), [*shape[:axis], 1, *shape[axis:]])


@converter("TRANSPOSE", max_version=7)
def convert_transpose(node: Node) -> relax.Expr:
    """Transposes: output axis i is input axis order[i]."""
    order = node.axes(1, len(node.shape(0)))
    if sorted(order) != list(range(len(node.shape(0)))):
        raise node.malformed(f"{order} is not a permutation of the axes of {node.shape(0)}")
    return node.input(0) if order == sorted(order) else relax.op.permute_dims(node.input(0), order)


# ---- joining and splitting ---------------------------------------------------------------------------------------


@converter("CONCATENATION", max_version=5)
def convert_concatenation(node: Node) -> relax.Expr:
    """Parts whose QParams differ from the output's are requantized first. LiteRT does that for uint8 only, in its own
    kernel even when XNNPACK is on; it copies int16 unchanged and refuses int8."""
    ndim = len(node.shape(0))
    axis = _axis(node, node.options["axis"], ndim)
    parts = [node.input(i) for i in range(node.input_count)]
    for i in range(node.input_count):
        others = [dim for j, dim in enumerate(node.shape(i)) if j != axis]
        if len(others) != ndim - 1 or others != [dim for j, dim in enumerate(node.shape(0)) if j != axis]:
            raise node.malformed(f"cannot join {node.shape(i)} and {node.shape(0)} along axis {axis}")
    if not _scales_differ(node):
        return node.activate(relax.op.concat(parts, axis=axis) if len(parts) > 1 else parts[0])
    target = node.output_qparams()
    scales, points = zip(*((node.qparams(i).scale, node.qparams(i).zero_point) for i in range(len(parts))), strict=True)
    joined = qnn.concatenate(
        parts,
        scales,
        points,
        target.scale,
        target.zero_point,
        axis=axis,
        rounding="TFLITE",
        out_dtype=target.dtype,
    )
    return node.activate(joined)


def _scales_differ(node: Node) -> bool:
    """Whether any part has to be requantized."""
    if not node.is_quantized(0) or node.dtype() == "int16":
        return False
    return any(node.qparams(i) != node.output_qparams() for i in range(node.input_count))


def _axis(node: Node, axis: int, ndim: int) -> int:
    if not -ndim <= axis < ndim:
        raise node.malformed(f"axis {axis} is out of range for {ndim} dimensions")
    return axis % ndim


def _parts(node: Node, index: int, axis: int, sizes: Sequence[int]) -> list[relax.Expr]:
    """The input split along an axis into consecutive parts, one per output."""
    if len(sizes) != len(node.operator.outputs):
        raise node.malformed(f"splits into {len(sizes)} parts, but has {len(node.operator.outputs)} outputs")
    if any(size < 0 for size in sizes) or sum(sizes) != node.shape(index)[axis]:
        raise node.malformed(f"sizes {list(sizes)} do not add up to dimension {axis} of {node.shape(index)}")
    ends = np.cumsum(sizes).tolist()
    return [block(node, node.input(index), [axis], [end - n], [end], [1]) for n, end in zip(sizes, ends, strict=True)]


@converter("SPLIT", max_version=4)
def convert_split(node: Node) -> list[relax.Expr]:
    """Equal parts; input 0 is the axis."""
    (axis,) = node.axes(0, len(node.shape(1)))
    count, length = node.options["num_splits"], node.shape(1)[axis]
    if count != len(node.operator.outputs) or length % count:
        parts = f"{count} parts for {len(node.operator.outputs)} outputs"
        raise node.malformed(f"dimension {axis} of {node.shape(1)} cannot be divided into {parts}")
    return _parts(node, 1, axis, [length // count] * count)


@converter("SPLIT_V", max_version=2)
def convert_split_v(node: Node) -> list[relax.Expr]:
    """Parts of given sizes, one of which may be −1: the remainder."""
    (axis,) = node.axes(2, len(node.shape(0)))
    sizes = node.integers(1)
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = node.shape(0)[axis] - sum(sizes) - 1
    return _parts(node, 0, axis, sizes)


@converter("PACK", max_version=4)
def convert_pack(node: Node) -> relax.Expr:
    """Tensors of one shape joined along a new axis."""
    shape = list(node.shape(0))
    axis = _axis(node, node.options["axis"], len(shape) + 1)
    if node.options["values_count"] != node.input_count:
        raise node.malformed(f"packs {node.options['values_count']} values, but has {node.input_count} inputs")
    expanded = [*shape[:axis], 1, *shape[axis:]]
    parts = [reshape(node, node.input(i), expanded) for i in range(node.input_count)]
    return relax.op.concat(parts, axis=axis) if len(parts) > 1 else parts[0]


@converter("UNPACK", max_version=4)
def convert_unpack(node: Node) -> list[relax.Expr]:
    """The slices along an axis, that axis dropped."""
    shape = list(node.shape(0))
    axis = _axis(node, node.options["axis"], len(shape))
    if node.options["num"] != shape[axis] or shape[axis] != len(node.operator.outputs):
        raise node.malformed(f"cannot unpack {node.options['num']} parts of dimension {axis} of {tuple(shape)}")
    parts = _parts(node, 0, axis, [1] * shape[axis])
    return [reshape(node, part, shape[:axis] + shape[axis + 1 :]) for part in parts]


# ---- repeating and reversing -------------------------------------------------------------------------------------


@converter("TILE", max_version=3)
def convert_tile(node: Node) -> relax.Expr:
    """Axis i repeated multiples[i] times."""
    multiples = node.integers(1)
    if len(multiples) != len(node.shape(0)) or any(count < 1 for count in multiples):
        raise node.malformed(f"cannot repeat {node.shape(0)} by {multiples}")
    check_elements(node, [dim * count for dim, count in zip(node.shape(0), multiples, strict=True)])
    return relax.op.tile(node.input(0), multiples) if set(multiples) - {1} else node.input(0)


@converter("BROADCAST_TO", max_version=3)
def convert_broadcast_to(node: Node) -> relax.Expr:
    """NumPy's broadcast to a given shape."""
    shape = node.shape(0)
    target = node.integers(1)
    if (
        from_file(node, 1)
        and batch_changed(node)
        and len(target) == len(shape)
        and target[0] == node.tensor(0).shape[0]
    ):
        target[0] = shape[0]
    return broadcast(node, node.input(0), target)


def broadcast(node: Node, expr: relax.Expr, target: Sequence[int]) -> relax.Expr:
    """`expr` broadcast to `target`. Raises ModelFormatError when the shapes do not match."""
    shape = shape_of(expr)
    check_elements(node, target, "folded" if constant_value(expr) is not None else "elements")
    fits = len(target) >= len(shape) and all(
        a in (1, b) for a, b in zip(reversed(shape), reversed(target), strict=False)
    )
    if not fits:
        raise node.malformed(f"{shape} does not broadcast to {tuple(target)}")
    return expr if shape == tuple(target) else relax.op.broadcast_to(expr, tuple(target))


@converter("REVERSE_V2", max_version=3)
def convert_reverse(node: Node) -> relax.Expr:
    """The elements in reverse order along the given axes."""
    result = node.input(0)
    for axis in sorted(set(node.axes(1, len(node.shape(0))))):
        result = node.emit(relax.op.flip(result, axis))
    return result


# ---- values derived from shapes -------------------------------------------------------------------------------------


@converter("SHAPE", max_version=1)
def convert_shape(node: Node) -> relax.Expr:
    """The input's shape, which is known at import."""
    return constant(np.array(node.shape(0), node.options["out_type"]))


@converter("RANK", max_version=1)
def convert_rank(node: Node) -> relax.Expr:
    """The number of dimensions, known at import."""
    return constant(np.array(len(node.shape(0)), np.int32))


@converter("BROADCAST_ARGS", max_version=1)
def convert_broadcast_args(node: Node) -> relax.Expr:
    """The shape to which two constant shapes broadcast."""
    first, second = node.integers(0), node.integers(1)
    rank = max(len(first), len(second))
    pairs = zip([1] * (rank - len(first)) + first, [1] * (rank - len(second)) + second, strict=True)
    result = [b if a == 1 else a for a, b in pairs]
    if any(dim not in (1, out) for dims in (first, second) for dim, out in zip(dims[::-1], result[::-1], strict=False)):
        raise node.malformed(f"shapes {first} and {second} do not broadcast")
    return constant(np.array(result, node.dtype(0)))


@converter("FILL", max_version=4)
def convert_fill(node: Node) -> relax.Expr:
    """A tensor of the shape in input 0, every element the scalar in input 1."""
    if math.prod(node.shape(1)) != 1:
        raise node.malformed(f"the value must be a scalar, found shape {node.shape(1)}")
    if node.is_quantized(1) and node.qparams(1) != node.output_qparams():
        raise node.malformed("the value's quantization differs from the output's")
    return broadcast(node, reshape(node, node.input(1), ()), node.integers(0))


@converter("ZEROS_LIKE", max_version=1)
def convert_zeros_like(node: Node) -> relax.Expr:
    """Zeros of the input's shape and dtype."""
    if node.dtype() not in ("float32", "int32", "int64"):
        raise node.unsupported(f"ZEROS_LIKE of {node.dtype()}; supported: float32, int32 and int64")
    return constant(np.zeros(check_elements(node, node.shape(0), "folded"), node.dtype()))


@converter("RANGE", max_version=2)
def convert_range(node: Node) -> relax.Expr:
    """start, start + delta, … before limit. Floats are accumulated as in TFLite, so that errors add up alike."""
    if constant_value(node.input(1)) is None:
        return _range_up_to(node)
    start, limit, delta = (node.constant(i).reshape(()) for i in range(3))
    if node.dtype() not in ("int32", "int64", "float32"):
        raise node.unsupported(f"RANGE of {node.dtype()}")
    if not np.isfinite([start, limit, delta]).all() or delta == 0 or (limit - start) * np.sign(delta) < 0:
        raise node.malformed(f"there is no range from {start} to {limit} in steps of {delta}")
    exact = start.dtype.kind == "i"
    distance, step = abs(int(limit) - int(start)) if exact else abs(limit - start), abs(delta)
    count = -(-distance // int(step)) if exact else math.ceil(distance / step)
    check_elements(node, [count], "folded")
    values = np.full(count, delta, start.dtype)
    values[:1] = start
    return constant(np.cumsum(values, dtype=start.dtype))


def _range_up_to(node: Node) -> relax.Expr:
    """A range with a limit that is computed at run time and must not be below the start."""
    sizes, limit = node.assembly.builder.sizes, node.input(1)
    start, delta = node.integer(0), node.integer(2)
    bounds = bounds_of(node.assembly.builder, limit)
    if bounds is None or delta < 1 or math.prod(node.shape(1)) != 1:
        raise node.unsupported(
            f"a limit computed at run time ('{node.tensor(1).name}') whose largest value is not known, or steps of "
            f"{delta}; compute the range outside of the model, or limit it (tf.minimum)"
        )
    low, high = bounds
    if low < start:
        limit = node.emit(qnn.check_bounds(limit, start, max(high, start), node.label))
    distance = node.emit(relax.op.astype(reshape(node, limit, ()), "int64"))
    count = node.emit(relax.op.add(distance, constant(np.int64(delta - 1 - start))))
    count = node.emit(relax.op.floor_divide(count, constant(np.int64(delta))))
    most = max(-(-(high - start) // delta), 1)
    check_elements(node, [most], "folded")
    return shapes.counting(sizes, start, sizes.size(count, most, node.label), delta, node.dtype(0))
