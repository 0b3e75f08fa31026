"""What computing a node at import would cost, known from shapes and attributes before anything is allocated.

Only operators with a cost rule here are folded; all others go to their converters, which take constants as well.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...limits import exceeded, most_folded
from ...op.base import normalize_axis
from .reader import Operator

_MOST_WORK = 2**30  # multiply-accumulates of one node: about a second
_MOST_STEPS = 2**18  # elements that the reference implementation computes one by one, in Python

Arrays = Sequence["np.ndarray | None"]

# The result has the shape that the inputs broadcast to
_BROADCASTS = {
    "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Clip", "Div", "Equal", "Greater",
    "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum",
    "Where", "Xor",
}  # fmt: skip
# The result is no larger than the largest input
_NO_GROWTH = {
    "Abs", "Acos", "Acosh", "ArgMax", "ArgMin", "Asin", "Asinh", "Atan", "Atanh", "BatchNormalization", "BitwiseNot",
    "Cast", "CastLike", "Ceil", "Celu", "Compress", "Cos", "Cosh", "CumSum", "DepthToSpace", "Det",
    "DynamicQuantizeLinear", "Elu", "Erf", "Exp", "EyeLike", "Flatten", "Floor", "Gelu", "GlobalAveragePool",
    "GlobalMaxPool", "GroupNormalization", "HardSigmoid", "HardSwish", "Hardmax", "Identity", "InstanceNormalization",
    "IsInf", "IsNaN", "LayerNormalization", "LeakyRelu", "Log", "LogSoftmax", "MeanVarianceNormalization", "Mish",
    "Neg", "NonZero", "Not", "QuantizeLinear", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp",
    "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "Round",
    "Selu", "Shape", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Size", "Slice", "Softmax", "Softplus", "Softsign",
    "SpaceToDepth", "Split", "Sqrt", "Squeeze", "Swish", "Tan", "Tanh", "ThresholdedRelu", "TopK", "Transpose",
    "Trilu", "Unique", "Unsqueeze",
}  # fmt: skip
# As above, computed element by element
_STEP_BY_STEP = {"GatherElements", "Scatter", "ScatterElements", "ScatterND"}


def is_affordable(operator: Operator, inputs: Arrays) -> bool:
    """Whether a node may be computed at import: its cost is known, and it takes no more than a second or so.

    Raises LimitError when the result is beyond the limit on folded constants.
    """
    sizes = [value.size for value in inputs if value is not None]
    kind = operator.op_type
    if kind in _STEP_BY_STEP:
        return sum(sizes) <= _MOST_STEPS
    if kind not in _BROADCASTS and kind not in _NO_GROWTH and kind not in _GROWTH:
        return False
    try:
        size = _GROWTH.get(kind, _broadcast if kind in _BROADCASTS else _largest)(operator, inputs)
        work = _work(operator, inputs)
    except (IndexError, AttributeError, TypeError, ValueError):
        return False  # invalid inputs: the converter reports which
    if size > most_folded():
        raise exceeded("folded", size, "the result")
    return work <= _MOST_WORK


def _largest(operator: Operator, inputs: Any) -> int:
    return max((value.size for value in inputs if value is not None), default=0)


def _together(operator: Operator, inputs: Any) -> int:
    return sum(value.size for value in inputs if value is not None)


def _broadcast(operator: Operator, inputs: Any) -> int:
    return math.prod(np.broadcast_shapes(*(value.shape for value in inputs if value is not None)))


# ---- operators whose results can outgrow their inputs: (operator, inputs) -> elements of the result --------------


def _constant_of_shape(operator: Operator, inputs: Any) -> int:
    return math.prod(_integers(inputs[0]))


def _expand(operator: Operator, inputs: Any) -> int:
    return math.prod(
        max(pair)
        for pair in zip(*_aligned(inputs[0].shape, _integers(inputs[1])), strict=True)  # as NumPy broadcasts
    )


def _tile(operator: Operator, inputs: Any) -> int:
    return inputs[0].size * math.prod(max(count, 1) for count in _integers(inputs[1]))


def _pad(operator: Operator, inputs: Any) -> int:
    widths = _integers(inputs[1]) if len(inputs) > 1 else operator.attributes.get("pads", ())
    shape = inputs[0].shape
    if len(inputs) > 3 and inputs[3] is not None:
        shape = [shape[axis] for axis in _integers(inputs[3])]
    grown = math.prod(dim + max(low, 0) + max(high, 0) for dim, low, high in _sides(shape, widths))
    return grown * inputs[0].size // max(math.prod(shape), 1)


def _one_hot(operator: Operator, inputs: Any) -> int:
    return inputs[0].size * max(*_integers(inputs[1]), 1)


def _range(operator: Operator, inputs: Any) -> int:
    start, stop, step = (float(value.reshape(())) for value in inputs)
    return math.ceil(abs((stop - start) / step)) if step and math.isfinite(start + stop + step) else 2**62


def _window(operator: Operator, inputs: Any) -> int:
    return max(*_integers(inputs[0]), 1)


def _gather(operator: Operator, inputs: Any) -> int:
    axis = normalize_axis(operator.attributes.get("axis", 0), inputs[0].ndim)
    return inputs[0].size // max(inputs[0].shape[axis], 1) * inputs[1].size


def _gather_nd(operator: Operator, inputs: Any) -> int:
    width = inputs[1].shape[-1]
    first = operator.attributes.get("batch_dims", 0)
    return inputs[1].size // max(width, 1) * math.prod(inputs[0].shape[first + width :])


def _product(operator: Operator, inputs: Any) -> int:
    rows, _, columns, batch = _matrices(operator, inputs)
    return batch * rows * columns


def _einsum(operator: Operator, inputs: Any) -> int:
    """The result is bounded by the product of all label lengths."""
    return _label_space(operator, inputs)


_GROWTH: dict[str, Callable[[Operator, Any], int]] = {
    "Concat": _together,
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Tile": _tile,
    "Pad": _pad,
    "OneHot": _one_hot,
    "Range": _range,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "MatMul": _product,
    "MatMulInteger": _product,
    "Gemm": _product,
    "Einsum": _einsum,
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow"), _window),
}


def _work(operator: Operator, inputs: Any) -> int:
    """Multiply-accumulates of a product, 0 for everything else."""
    if operator.op_type == "Einsum":
        return _label_space(operator, inputs)
    if operator.op_type in ("MatMul", "MatMulInteger", "Gemm"):
        return math.prod(_matrices(operator, inputs))
    return 0


def _matrices(operator: Operator, inputs: Any) -> tuple[int, int, int, int]:
    """Rows, length of the sums, columns and batch count of a matrix product."""
    left, right = inputs[0].shape, inputs[1].shape
    left = (1, *left) if len(left) == 1 else left
    right = (*right, 1) if len(right) == 1 else right
    rows, depth = reversed(left[-2:]) if operator.attributes.get("transA", 0) else left[-2:]
    columns = right[-2] if operator.attributes.get("transB", 0) else right[-1]
    return rows, depth, columns, math.prod(np.broadcast_shapes(left[:-2], right[:-2]))


def _label_space(operator: Operator, inputs: Any) -> int:
    """Product of the lengths of all labels; the dimensions of an ellipsis count once per operand."""
    terms = operator.attributes["equation"].partition("->")[0].replace(" ", "").split(",")
    lengths: Counter[str] = Counter()
    rest = 1
    for term, value in zip(terms, inputs, strict=True):
        labels = term.replace("...", "")
        for label, length in zip(labels, value.shape if len(labels) == value.ndim else (), strict=False):
            lengths[label] = max(lengths[label], length)
        if len(labels) != value.ndim:
            rest *= value.size
    return math.prod(lengths.values()) * rest


def _integers(value: Any) -> list[int]:
    return [int(item) for item in value.reshape(-1)]


def _aligned(*shapes: Sequence[int]) -> list[tuple[int, ...]]:
    """The shapes padded with leading ones to the length of the longest."""
    rank = max(map(len, shapes))
    return [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]


def _sides(shape: Sequence[int], widths: Sequence[int]) -> Any:
    return zip(shape, widths[: len(shape)], widths[len(shape) :], strict=True)
