"""Float products become those that the kernels of `topi_int8` compute, where the target has an instruction for them.

    nn.conv2d (NHWC, constant weights)  → conv2d_accumulate
    matmul by a constant matrix         → dense_accumulate, all rows as one matrix
    matmul of two computed tensors      → batch_matmul_accumulate

Their sums are rounded in another way than the interpreter's: one accumulator takes all products in order, each with one
rounding, so that a sum of k products differs from the exact one by less than k · 2⁻²⁴ · Σ |a · b|. What no instruction
computes keeps its legalization, see `legalize_float_products`.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import IRModule, relax
from tvm.target import Target

from .. import op as qnn
from ..op.arguments import factors_of
from ..op.base import constant, constant_value, shape_of
from ..targets.features import backend_of
from ..topi_int8 import candidates
from .layout.forms import static_shape
from .lower import workload_of
from .rewrite import Emit, op_name, rewrite
from .sink import sink_reshapes

FLOAT = "float32"


def float_products(mod: IRModule, target: Target) -> IRModule:
    """`mod` with the float products that the target's instructions compute as accumulations."""
    if not backend_of(target).float_products:
        return mod
    changed = False

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        nonlocal changed
        name = op_name(expr)
        found = _conv2d(expr, target) if name == "nn.conv2d" else None
        found = _matmul(expr, target, emit) if name == "matmul" else found
        changed = changed or found is not None
        return found

    rewritten = rewrite(mod, rule)
    return sink_reshapes(rewritten) if changed else mod


def _is_float(call: relax.Call) -> bool:
    factors = factors_of(call)
    static = all(static_shape(value) is not None and 0 not in shape_of(value) for value in factors)
    return static and all(str(value.ty.dtype) == FLOAT for value in factors)


def _is_fast(call: relax.Call, target: Target) -> bool:
    """Whether an instruction computes a product."""
    return not candidates(workload_of(call, target), target)[0].is_generic


def _conv2d(call: relax.Call, target: Target) -> relax.Call | None:
    attrs, (data, weight) = call.attrs, factors_of(call)
    known = constant_value(weight)
    layout = str(attrs.kernel_layout)
    if known is None or not _is_float(call) or set(layout) != set("OHWI"):
        return None
    if not str(attrs.data_layout) == str(attrs.out_layout) == "NHWC":
        return None
    ohwi = np.ascontiguousarray(known.transpose([layout.index(axis) for axis in "OHWI"]))
    geometry: dict[str, Any] = {name: tuple(map(int, attrs[name])) for name in ("strides", "padding", "dilation")}
    product = qnn.conv2d_accumulate(data, constant(ohwi), **geometry, groups=int(attrs.groups), out_dtype=FLOAT)
    return product if _is_fast(product, target) else None


def _matmul(call: relax.Call, target: Target, emit: Emit) -> relax.Expr | None:
    x, y = factors_of(call)
    if not _is_float(call):
        return None
    lhs, rhs, known = shape_of(x), shape_of(y), constant_value(y)
    if len(lhs) < 2 or len(rhs) < 2:
        return None
    if known is not None and len(rhs) == 2:
        probe = _like((prod(lhs[:-1]), lhs[-1]))
        weight = constant(np.ascontiguousarray(known.T))
        if not _is_fast(qnn.dense_accumulate(probe, weight, FLOAT), target):
            return None
        rows = emit(relax.op.reshape(x, [prod(lhs[:-1]), lhs[-1]])) if len(lhs) > 2 else x
        product = qnn.dense_accumulate(rows, weight, FLOAT)
    elif len(lhs) == len(rhs) and lhs[:-2] == rhs[:-2]:
        batch = prod(lhs[:-2])
        shapes = (batch, *lhs[-2:]), (batch, rhs[-1], rhs[-2])
        if not _is_fast(qnn.batch_matmul_accumulate(_like(shapes[0]), _like(shapes[1]), FLOAT), target):
            return None
        columns = emit(relax.op.permute_dims(y, [*range(len(rhs) - 2), len(rhs) - 1, len(rhs) - 2]))
        first, second = (
            value if shape_of(value) == shape else emit(relax.op.reshape(value, list(shape)))
            for value, shape in zip((x, columns), shapes, strict=True)
        )
        product = qnn.batch_matmul_accumulate(first, second, FLOAT)
    else:
        return None
    result = emit(product)
    shape = (*lhs[:-1], rhs[-1])
    return result if shape_of(result) == shape else relax.op.reshape(result, list(shape))


def _like(shape: tuple[int, ...]) -> Any:
    """A variable of this shape."""
    return relax.Var("x", relax.TensorType(list(shape), FLOAT))
