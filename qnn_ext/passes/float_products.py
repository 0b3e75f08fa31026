"""Float products become those that the kernels of `topi_int8` compute, where the target has an instruction for them.

    nn.conv2d (NHWC)                → conv2d_accumulate
    matmul by a constant matrix     → dense_accumulate, all rows as one matrix
    matmul of two computed tensors  → batch_matmul_accumulate; by one matrix, all rows as one matrix
    blockwise_dense                 → the same of activations in 16 bits

Their sums are rounded in another way than the interpreter's: one accumulator takes all products in order, each with one
rounding, so that a sum of k products differs from the exact one by less than k · 2⁻²⁴ · Σ |a · b|. What no instruction
computes keeps its legalization, see `legalize_float_products`.

Operands that `low_precision` has rounded are multiplied in 16 bits where an instruction does that. Otherwise their
weights are stored in 16 bits and widened when they are loaded, or both are rounded values in float32.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import IRModule, relax
from tvm.target import Target

from .. import op as qnn
from ..numerics import bfloat16
from ..numerics.bfloat16 import BITS
from ..op.arguments import data_of, factors_of, with_data
from ..op.base import constant, constant_value, shape_of
from ..op.relax_table import traits_of
from ..targets.features import backend_of
from ..topi_int8 import candidates
from .layout.forms import static_shape
from .lower import packs_at_run_time, workload_of
from .rewrite import Emit, op_name, rewrite
from .sink import sink_reshapes
from .sink_shuffles import sink_shuffles

FLOAT = "float32"


def float_products(mod: IRModule, target: Target) -> IRModule:
    """`mod` with the float products that the target's instructions compute as accumulations."""
    if not backend_of(target).float_products:
        return mod
    operands, changed = _Operands(), False

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        nonlocal changed
        name = op_name(expr)
        if name == "qnn.bfloat16" or (traits_of(expr).rearranges and operands.rounded(data_of(expr))):
            return operands.note(emit(expr), expr)
        found = _conv2d(expr, target, operands, emit) if name == "nn.conv2d" else None
        found = _matmul(expr, target, operands, emit) if name == "matmul" else found
        found = _blockwise(expr, target, operands, emit) if name == "qnn.blockwise_dense" else found
        changed = changed or found is not None
        return found

    rewritten = rewrite(mod, rule)
    return sink_reshapes(sink_shuffles(rewritten)) if changed else mod


class _Operands:
    """The operands of products in the dtypes that instructions take.

    Values rounded to bfloat16 are known by the operator that rounds them, with moves behind it; their bits are those of
    what it rounds, moved in the same way.
    """

    def __init__(self) -> None:
        self._sources: dict[Any, relax.Call] = {}
        self._bits: dict[Any, relax.Expr] = {}

    def note(self, var: relax.Expr, call: relax.Call) -> relax.Expr:
        """Remember that a variable is rounded, by the call that is bound to it; returns the variable."""
        self._sources[var] = call
        return var

    def rounded(self, value: relax.Expr) -> bool:
        """Whether all values are bfloat16: of a variable that was noted, or a constant."""
        array = constant_value(value)
        if array is None:
            return value in self._sources
        return str(array.dtype) == FLOAT and np.array_equal(bfloat16.rounded(array), array)

    def forms(self, first: relax.Expr, second: relax.Expr) -> list[tuple[str, str]]:
        """The dtypes in which the operands may be multiplied, best first."""
        known = constant_value(second) is not None
        if str(first.ty.dtype) == "float16":
            return [("float16", "float16"), *([(FLOAT, "float16")] if known else []), (FLOAT, FLOAT)]
        if self.rounded(first) and self.rounded(second):
            return [(BITS, BITS), *([(FLOAT, BITS)] if known else []), (FLOAT, FLOAT)]
        return [(FLOAT, FLOAT)]

    def cast(self, value: relax.Expr, dtype: str, emit: Emit) -> relax.Expr:
        """An operand in one of the dtypes that `forms` gives for it."""
        if str(value.ty.dtype) == dtype:
            return value
        array = constant_value(value)
        if array is not None:
            return constant(bfloat16.bits_of(array) if dtype == BITS else array.astype(dtype))
        return self._bits_of(value, emit) if dtype == BITS else emit(relax.op.astype(value, dtype))

    def _bits_of(self, value: relax.Expr, emit: Emit) -> relax.Expr:
        if value not in self._bits:
            call = self._sources[value]
            if op_name(call) == "qnn.bfloat16":
                self._bits[value] = emit(qnn.bfloat16(call.args[0], BITS))
            else:
                self._bits[value] = emit(with_data(call, self._bits_of(data_of(call), emit)))
        return self._bits[value]


def _is_float(call: relax.Call) -> bool:
    """Whether it multiplies tensors of static shapes, both float32 or both float16, to float32."""
    factors = factors_of(call)
    static = all(static_shape(value) is not None and 0 not in shape_of(value) for value in factors)
    dtypes = {str(value.ty.dtype) for value in factors}
    return static and dtypes in ({FLOAT}, {"float16"}) and str(call.attrs.out_dtype or dtypes.pop()) == FLOAT


def is_fast(call: relax.Call, target: Target) -> bool:
    """Whether an instruction computes a product."""
    return not candidates(workload_of(call, target), target)[0].is_generic


def _conv2d(call: relax.Call, target: Target, operands: _Operands, emit: Emit) -> relax.Call | None:
    attrs, (data, weight) = call.attrs, factors_of(call)
    layout = str(attrs.kernel_layout)
    if not _is_float(call) or set(layout) != set("OHWI"):
        return None
    if not str(attrs.data_layout) == str(attrs.out_layout) == "NHWC":
        return None
    order = [layout.index(axis) for axis in "OHWI"]
    known = constant_value(weight)
    geometry: dict[str, Any] = {name: tuple(map(int, attrs[name])) for name in ("strides", "padding", "dilation")}
    geometry["groups"] = int(attrs.groups)
    if known is None:
        like = _like(tuple(shape_of(weight)[axis] for axis in order), FLOAT)
        probe = qnn.conv2d_accumulate(_like(shape_of(data), FLOAT), like, **geometry, out_dtype=FLOAT)
        if not packs_at_run_time(workload_of(probe, target)) or not is_fast(probe, target):
            return None
        ohwi = weight if order == sorted(order) else emit(relax.op.permute_dims(weight, order))
        return qnn.conv2d_accumulate(data, ohwi, **geometry, out_dtype=FLOAT)
    ohwi = constant(np.ascontiguousarray(known.transpose(order)))
    for data_dtype, weight_dtype in operands.forms(data, weight):
        stored = operands.cast(ohwi, weight_dtype, emit)
        probe = qnn.conv2d_accumulate(_like(shape_of(data), data_dtype), stored, **geometry, out_dtype=FLOAT)
        if is_fast(probe, target):
            first = operands.cast(data, data_dtype, emit)
            return qnn.conv2d_accumulate(first, stored, **geometry, out_dtype=FLOAT)
    return _of_three_channels(data, ohwi, geometry, target, emit)


def _of_three_channels(
    data: relax.Expr, weight: relax.Expr, geometry: dict[str, Any], target: Target, emit: Emit
) -> relax.Call | None:
    """A convolution of one or two channels, of which no step of an instruction is whole, with channels of zeros added:
    an instruction still is some times faster than TVM's loops, and starts at a bias."""
    shape, known = shape_of(data), constant_value(weight)
    if str(data.ty.dtype) != FLOAT or known is None or geometry["groups"] > 1 or shape[-1] >= 3:
        return None
    missing = 3 - shape[-1]
    more = constant(np.pad(known, [(0, 0)] * 3 + [(0, missing)]))
    probe = qnn.conv2d_accumulate(_like((*shape[:-1], 3), FLOAT), more, **geometry, out_dtype=FLOAT)
    if not is_fast(probe, target):
        return None
    padded = emit(relax.op.nn.pad(data, [0] * 7 + [missing]))
    return qnn.conv2d_accumulate(padded, more, **geometry, out_dtype=FLOAT)


def _matmul(call: relax.Call, target: Target, operands: _Operands, emit: Emit) -> relax.Expr | None:
    x, y = factors_of(call)
    if not _is_float(call):
        return None
    lhs, rhs, known = shape_of(x), shape_of(y), constant_value(y)
    if len(lhs) < 2 or len(rhs) < 2:
        return None
    if known is not None and len(rhs) == 2:
        product = _by_constant(x, known, target, operands, emit)
    elif len(rhs) == 2 or lhs[:-2] == rhs[:-2]:
        product = _of_two(x, y, target, operands, emit)
    else:
        return None
    if product is None:
        return None
    result = emit(product)
    shape = (*lhs[:-1], rhs[-1])
    return result if shape_of(result) == shape else relax.op.reshape(result, list(shape))


def _by_constant(
    x: relax.Expr, known: np.ndarray, target: Target, operands: _Operands, emit: Emit
) -> relax.Call | None:
    """x · known, all rows of x as one matrix."""
    lhs = shape_of(x)
    matrix = (prod(lhs[:-1]), lhs[-1])
    transposed = constant(np.ascontiguousarray(known.T))
    for data_dtype, weight_dtype in operands.forms(x, transposed):
        weight = operands.cast(transposed, weight_dtype, emit)
        if is_fast(qnn.dense_accumulate(_like(matrix, data_dtype), weight, FLOAT), target):
            data = operands.cast(x, data_dtype, emit)
            rows = emit(relax.op.reshape(data, list(matrix))) if len(lhs) > 2 else data
            return qnn.dense_accumulate(rows, weight, FLOAT)
    return None


def _of_two(x: relax.Expr, y: relax.Expr, target: Target, operands: _Operands, emit: Emit) -> relax.Call | None:
    """x · y for operands with the same batch axes; all rows of x as one matrix if y is one."""
    lhs, rhs = shape_of(x), shape_of(y)
    batch, rows = prod(rhs[:-2]), prod(lhs[:-1]) if len(rhs) == 2 else lhs[-2]
    shapes = (batch, rows, lhs[-1]), (batch, rhs[-1], rhs[-2])
    for form in operands.forms(x, y):
        left, right = (_like(shape, dtype) for shape, dtype in zip(shapes, form, strict=True))
        if not is_fast(qnn.batch_matmul_accumulate(left, right, FLOAT), target):
            continue
        data, other = (operands.cast(value, dtype, emit) for value, dtype in zip((x, y), form, strict=True))
        columns = emit(relax.op.permute_dims(other, [*range(len(rhs) - 2), len(rhs) - 1, len(rhs) - 2]))
        first, second = (
            value if shape_of(value) == shape else emit(relax.op.reshape(value, list(shape)))
            for value, shape in zip((data, columns), shapes, strict=True)
        )
        return qnn.batch_matmul_accumulate(first, second, FLOAT)
    return None


def _blockwise(call: relax.Call, target: Target, operands: _Operands, emit: Emit) -> relax.Call | None:
    """A product with block-wise quantized weights, of activations in the dtype that a kernel takes."""
    data, weight = factors_of(call)
    shape = static_shape(data)
    if str(data.ty.dtype) == BITS:
        return None
    for dtype in dict.fromkeys(dtype for dtype, _ in operands.forms(data, data)):
        probe = with_data(call, _like(shape, dtype), weight) if shape is not None else None
        if dtype == FLOAT or (probe is not None and is_fast(probe, target)):
            return None if str(data.ty.dtype) == dtype else with_data(call, operands.cast(data, dtype, emit), weight)
    return None


def _like(shape: tuple[int, ...], dtype: str) -> Any:
    """A variable of this shape and dtype."""
    return relax.Var("x", relax.TensorType(list(shape), dtype))
