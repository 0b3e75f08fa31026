"""Float convolutions of 3 × 3 at every position by Winograd's F(4 × 4, 3 × 3), where that is predicted to be faster.

    conv2d_accumulate(data, weight)  →  winograd_results(conv2d_accumulate(winograd_data(data), transformed weight))

The product in between is a convolution of 1 × 1 in 36 groups and has the kernels of all others. It takes a quarter of
the multiply-adds or a little more, where tiles reach beyond the result; weights take four times the memory.
`numerics/winograd.py` has the matrices, and how far results are from exact sums.

Only float32, by constant weights, where the target has an instruction for the product. Operands in 16 bits would lose
more than they have left.
"""

from __future__ import annotations

from math import prod

from tvm import IRModule, relax
from tvm.target import Target

from .. import op as qnn
from ..numerics.winograd import PRODUCTS, WINDOW, tiles, transformed_weight
from ..op.arguments import factors_of
from ..op.base import call_attributes, constant, constant_value, shape_of
from ..op.winograd import result_size
from ..targets.features import backend_of
from ..topi_int8.generic.winograd import LANES, lanes_of
from .float_products import FLOAT, is_fast
from .rewrite import Emit, op_name, rewrite

REUSE = 12
"""Tiles for which a transformed weight must be read for its multiply-adds to take longer than reading it from memory:
one core of a server reads 30 to 40 GB/s and does 60 to 130 multiply-adds a nanosecond."""

TRANSFORM = 10
"""What an element of transformed data or products costs, in multiply-adds: four operations on it, and a store and a
load that go through the L2 or L3 cache."""

GAIN = 1.2
"""How many times faster it must be predicted to be: it takes memory for weights, and its error is larger."""


def winograd(mod: IRModule, target: Target) -> IRModule:
    """`mod` with the float convolutions that gain by it in Winograd's form."""
    backend = backend_of(target)
    if backend.grid or not backend.float_products:
        return mod

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        return _rewritten(expr, target, emit) if op_name(expr) == "qnn.conv2d_accumulate" else None

    return rewrite(mod, rule)


def _rewritten(call: relax.Call, target: Target, emit: Emit) -> relax.Expr | None:
    data, weight = factors_of(call)
    known, attributes = constant_value(weight), call_attributes(call)
    dtypes = {str(value.ty.dtype) for value in (data, weight)}
    if known is None or dtypes != {FLOAT} or known.shape[1:3] != (WINDOW, WINDOW) or attributes["groups"] != 1:
        return None
    if any(step != 1 for step in (*attributes["strides"], *attributes["dilation"])):
        return None
    n, height, width, _ = shape_of(data)
    size = result_size((height, width), attributes["padding"])
    outputs, _, _, inputs = known.shape
    if predicted_gain(n, size, inputs, outputs) < GAIN:
        return None
    probe = relax.Var("x", relax.TensorType([n, tiles(size[0]), tiles(size[1]), PRODUCTS * inputs], FLOAT))
    stored = constant(transformed_weight(known))
    if not is_fast(_product(probe, stored), target):
        return None
    transformed = emit(qnn.winograd_data(data, attributes["padding"]))
    return emit(qnn.winograd_results(emit(_product(transformed, stored)), size))  # itself: all three get its name


def _product(data: relax.Expr, weight: relax.Expr) -> relax.Call:
    return qnn.conv2d_accumulate(data, weight, groups=PRODUCTS, out_dtype=FLOAT)


def predicted_gain(batch: int, size: tuple[int, int], inputs: int, outputs: int) -> float:
    """How many times faster a convolution with results of this size is; 0 if its channels do not make vectors."""
    vectors = lanes_of(inputs), lanes_of(outputs)
    if min(vectors) < LANES[-1]:
        return 0.0
    count = batch * tiles(size[0]) * tiles(size[1])
    moved = sum(channels * LANES[0] / lanes for channels, lanes in zip((inputs, outputs), vectors, strict=True))
    whole = PRODUCTS * (max(count, REUSE) * inputs * outputs + TRANSFORM * count * moved)
    return WINDOW**2 * batch * prod(size) * inputs * outputs / whole
