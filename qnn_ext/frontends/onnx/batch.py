"""Whether a model treats the samples of a batch one by one, so that its program for one sample serves any batch.

The model is imported twice, for one sample and for two. Both modules must have the same operators with the same
attributes, and every value that depends on the inputs must have the batch as its first dimension. Operator by operator,
the rules below say whether sample i of the result depends on sample i of the arguments alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm_ffi
from tvm import relax, tirx

from ...errors import QnnError, UnsupportedOperatorError
from ...module import QnnModule
from ...op.arguments import data_of, factors_of
from ...op.base import call_attributes, constant_value, definition_of

# Every element of the result depends on the elements at its own position, after broadcasting
_ELEMENTWISE_NAMES = """
    add subtract multiply divide floor_divide mod floor_mod power maximum minimum clip astype where equal not_equal less
    less_equal greater greater_equal logical_and logical_or logical_xor logical_not abs negative exp log sqrt rsqrt
    square sign floor ceil round trunc tanh sigmoid erf sin cos tan sinh cosh asin acos atan asinh acosh atanh isnan
    isinf isfinite bitwise_and bitwise_or bitwise_xor bitwise_not nn.relu nn.relu6 nn.leakyrelu nn.gelu nn.gelu_tanh
    nn.silu nn.selu nn.softplus qnn.quantize qnn.dequantize qnn.requantize qnn.add qnn.subtract qnn.mul qnn.fma
    qnn.simulated_quantize qnn.simulated_dequantize qnn.qlinear_add qnn.qlinear_mul qnn.check_bounds qnn.check_divisor
"""
_ELEMENTWISE = {f"relax.{name}" for name in _ELEMENTWISE_NAMES.split()}
# The first dimension of the data is the batch by the operator's definition, for data in an N… layout
_BATCHED = {
    "relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d", "relax.nn.conv1d_transpose", "relax.nn.conv2d_transpose",
    "relax.nn.conv3d_transpose", "relax.nn.max_pool1d", "relax.nn.max_pool2d", "relax.nn.max_pool3d",
    "relax.nn.avg_pool1d", "relax.nn.avg_pool2d", "relax.nn.avg_pool3d", "relax.nn.adaptive_avg_pool1d",
    "relax.nn.adaptive_avg_pool2d", "relax.nn.adaptive_avg_pool3d", "relax.image.resize2d", "relax.image.resize3d",
    "relax.nn.pixel_shuffle", "relax.qnn.conv2d", "relax.qnn.conv2d_transpose", "relax.qnn.dense",
    "relax.qnn.avg_pool2d", "relax.qnn.max_pool2d", "relax.qnn.resize", "relax.qnn.qlinear_avg_pool",
}  # fmt: skip


def check_batch_axis(single: QnnModule, import_double: Callable[[], QnnModule], remedy: str) -> None:
    """Raise UnsupportedOperatorError, naming the operator, unless every sample is computed independently.

    single, import_double: the model imported for one sample, and a function that imports it for two
    """
    try:
        try:
            double = import_double()
        except QnnError as error:
            raise _Mixed(f"it only works for one sample: {error}") from None
        _Comparison(single, double).run()
    except _Mixed as error:
        raise UnsupportedOperatorError(
            f"the model leaves its batch size open, but {error}; fix the batch size: {remedy}"
        ) from None


class _Mixed(Exception):
    """Samples depend on each other, or cannot be shown not to."""


class _Comparison:
    """Walks the bindings of both modules in step. `batched` holds the variables that depend on the inputs."""

    def __init__(self, single: QnnModule, double: QnnModule) -> None:
        self.one, self.two = single.ir["main"], double.ir["main"]
        self.batched: set[relax.Var] = set()

    def run(self) -> None:
        self.batched.update(self.one.params)
        for first, second in zip(self.one.params, self.two.params, strict=True):
            self._check_shapes(first.name, first, second)
        ones = [binding for block in self.one.body.blocks for binding in block.bindings]
        twos = [binding for block in self.two.body.blocks for binding in block.bindings]
        if len(ones) != len(twos):
            raise _Mixed("it consists of other operators for two samples than for one")
        results: set[relax.Var] = set()
        for first, second in zip(ones, twos, strict=True):
            self._check(first.var.name, first.value, second.value)
            if self._depends(first.value):
                self.batched.add(first.var)
                self._check_shapes(first.var.name, first.var, second.var)
            results.add(first.var)
        last = ones[-1].value if ones else self.one.body.body
        for field in last.fields if isinstance(last, relax.Tuple) else []:
            if not self._depends(field):
                raise _Mixed("an output does not depend on the inputs")

    def _depends(self, expr: Any) -> bool:
        if isinstance(expr, relax.Tuple):
            return any(map(self._depends, expr.fields))
        if isinstance(expr, relax.TupleGetItem):
            return self._depends(expr.tuple_value)
        if isinstance(expr, relax.Call):
            return any(map(self._depends, expr.args))
        return isinstance(expr, relax.Var) and expr in self.batched

    def _check_shapes(self, name: str, first: Any, second: Any) -> None:
        for one, two in zip(_tensor_types(first.ty), _tensor_types(second.ty), strict=True):
            shape, double = _dims(one), _dims(two)
            if not shape or shape[0] != 1 or double != (2, *shape[1:]):
                raise _Mixed(f"'{name}' has shape {shape} for one sample and {double} for two")

    def _check(self, name: str, first: Any, second: Any) -> None:
        """One binding. Raises _Mixed unless both do the same, sample by sample."""
        if type(first) is not type(second):
            raise _Mixed(f"'{name}' is a different operator for two samples than for one")
        if isinstance(first, relax.Tuple):
            for one, two in zip(first.fields, second.fields, strict=True):
                self._check_argument(name, one, two)
        elif isinstance(first, relax.Call):
            same = first.op == second.op and len(first.args) == len(second.args)
            if not same or not tvm_ffi.structural_equal(first.attrs, second.attrs):
                raise _Mixed(f"'{name}' is a different operator for two samples than for one")
            for one, two in zip(first.args, second.args, strict=True):
                self._check_argument(name, one, two)
            if self._depends(first):
                operator = first.op.name
                rule = _RULES.get(operator)
                if rule is None or not rule(self, first, second):
                    raise _Mixed(f"'{name}' ({operator.removeprefix('relax.')}) may mix the samples")
        elif not isinstance(first, (relax.Var, relax.TupleGetItem)) and constant_value(first) is None:
            raise _Mixed(f"'{name}' is a {type(first).__name__}")

    def _check_argument(self, name: str, one: Any, two: Any) -> None:
        """Constants must be the same for both, or made of one row per sample, all equal."""
        first = constant_value(one)
        if isinstance(one, relax.Tuple):
            for a, b in zip(one.fields, two.fields, strict=True):
                self._check_argument(name, a, b)
        elif first is not None:
            second = constant_value(two)
            same = second is not None and _repeats(first, second)
            if not same:
                raise _Mixed(f"a constant of '{name}' depends on the batch size")

    def is_batched(self, expr: Any) -> bool:
        """Whether the first dimension of an argument is the batch: computed, or a constant with a row per sample."""
        return self._depends(expr)


def _repeats(first: np.ndarray, second: np.ndarray) -> bool:
    if first.dtype != second.dtype:
        return False
    if first.shape == second.shape:
        return first.tobytes() == second.tobytes()
    doubled = first.ndim > 0 and first.shape[0] == 1 and second.shape == (2, *first.shape[1:])
    return doubled and first[0].tobytes() == second[0].tobytes() == second[1].tobytes()


def _tensor_types(ty: Any) -> list[Any]:
    if isinstance(ty, relax.TupleType):
        return [leaf for field in ty.fields for leaf in _tensor_types(field)]
    return [ty] if isinstance(ty, relax.TensorType) else []


def _dims(ty: Any) -> tuple[int, ...]:
    return tuple(int(dim) for dim in ty.shape)


# ---- rules: (comparison, the call for one sample, the call for two) -> whether samples stay apart ------------------


def _data_first(comparison: _Comparison, one: relax.Call, two: relax.Call) -> bool:
    """The data has the batch dimension, and every other argument is the same for all samples."""
    data, *others = one.args
    return comparison.is_batched(data) and not any(map(comparison.is_batched, others))


def _elementwise(comparison: _Comparison, one: relax.Call, two: relax.Call) -> bool:
    """Batched arguments must have the result's rank: otherwise broadcasting shifts their first dimension."""
    rank = len(one.ty.shape)
    tensors = [arg for arg in one.args if isinstance(getattr(arg, "ty", None), relax.TensorType)]
    return all(len(arg.ty.shape) == rank for arg in tensors if comparison.is_batched(arg))


def _axes_but_first(name: str) -> Callable[..., bool]:
    """The axes in the attribute exclude the first dimension; no axes at all mean all of them."""

    def rule(comparison: _Comparison, one: relax.Call, two: relax.Call) -> bool:
        rank = len(_tensor_types(data_of(one).ty)[0].shape)
        ours = definition_of(one) is not None
        axes = call_attributes(one).get(name) if ours else getattr(one.attrs, name, None)
        if axes is None:
            return False
        axes = [axes] if isinstance(axes, (int, tirx.IntImm)) else list(axes)
        return all(int(axis) % max(rank, 1) != 0 for axis in axes)

    return rule


def _permute(comparison: _Comparison, one: relax.Call, two: relax.Call) -> bool:
    return one.attrs.axes is not None and int(one.attrs.axes[0]) == 0


def _reshape(comparison: _Comparison, one: relax.Call, two: relax.Call) -> bool:
    """Elements keep their order, and the batch comes first on both sides, so each sample keeps its elements."""
    return True


def _expand_dims(comparison: _Comparison, one: relax.Call, two: relax.Call) -> bool:
    return all(int(axis) % len(one.ty.shape) != 0 for axis in one.attrs.axis)


def _matmul(comparison: _Comparison, one: relax.Call, two: relax.Call) -> bool:
    """Rows of the left side are samples; or both sides are stacks of matrices, one per sample."""
    factors = factors_of(one)
    left, right = map(comparison.is_batched, factors)
    ranks = [len(factor.ty.shape) for factor in factors]
    if right:
        return ranks[1] >= 3 and ranks[1] == len(one.ty.shape) and (not left or ranks[0] == ranks[1])
    return left and ranks[0] >= 2 and ranks[0] >= ranks[1] and (ranks[0] > 2 or ranks[1] <= 2)


def _strided_slice(comparison: _Comparison, one: relax.Call, two: relax.Call) -> bool:
    data, axes, *_ = one.args
    fields = axes.fields if isinstance(axes, relax.Tuple) else []
    values = [int(axis.value) if isinstance(axis, tirx.IntImm) else getattr(axis, "value", 0) for axis in fields]
    rank = len(data.ty.shape)
    return bool(values) and all(int(value) % rank != 0 for value in values)


def _take(comparison: _Comparison, one: relax.Call, two: relax.Call) -> bool:
    """Indexing the batch along a later axis, or a constant table by batched indices."""
    data, indices = map(comparison.is_batched, one.args)
    axis = 0 if one.attrs.axis is None else int(one.attrs.axis)
    if data and not indices:
        return one.attrs.axis is not None and axis % len(data_of(one).ty.shape) != 0
    return indices and not data and axis == 0


def _pad(comparison: _Comparison, one: relax.Call, two: relax.Call) -> bool:
    widths = [int(width) for width in one.attrs.pad_width]
    return widths[:2] == [0, 0]


def _broadcast(comparison: _Comparison, one: relax.Call, two: relax.Call) -> bool:
    return len(data_of(one).ty.shape) == len(one.ty.shape)


def _concat(comparison: _Comparison, one: relax.Call, two: relax.Call) -> bool:
    return one.attrs.axis is not None and int(one.attrs.axis) % len(one.ty.shape) != 0


_RULES: dict[str, Callable[[_Comparison, relax.Call, relax.Call], bool]] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_BATCHED, _data_first),
    **dict.fromkeys(
        (f"relax.{name}" for name in ("sum", "mean", "max", "min", "prod", "argmax", "argmin", "variance", "std")),
        _axes_but_first("axis"),
    ),
    **dict.fromkeys(
        ("relax.nn.softmax", "relax.nn.log_softmax", "relax.split", "relax.flip", "relax.cumsum", "relax.topk",
         "relax.sort", "relax.argsort", "relax.nn.prelu", "relax.qnn.softmax", "relax.repeat"),
        _axes_but_first("axis"),
    ),
    **dict.fromkeys(
        ("relax.nn.layer_norm", "relax.nn.rms_norm", "relax.nn.instance_norm", "relax.nn.group_norm"),
        _axes_but_first("axes"),
    ),
    "relax.permute_dims": _permute,
    "relax.reshape": _reshape,
    "relax.squeeze": _reshape,
    "relax.expand_dims": _expand_dims,
    "relax.matmul": _matmul,
    "relax.strided_slice": _strided_slice,
    "relax.take": _take,
    "relax.nn.pad": _pad,
    "relax.broadcast_to": _broadcast,
    "relax.concat": _concat,
}  # fmt: skip
