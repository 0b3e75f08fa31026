"""Convolutions of 3 × 3 at every position by Winograd's algorithm, where that is predicted to be faster.

    conv2d_accumulate(data, weight)  →  winograd_results(conv2d_accumulate(winograd_data(data), transformed weight))

The product in between is a convolution of 1 × 1 with a group for each product of a tile, and has the kernels of all
others. `numerics/winograd.py` has the matrices.

float32 takes F(4 × 4): a quarter of the multiply-adds or a little more, where tiles reach beyond the result; weights
take four times the memory, and results are as far from exact sums as that module says. Operands in 16 bits would lose
more than they have left.

8-bit integers take F(2 × 2): four of nine multiply-adds, of 16 bits, and exact results. That gains on CPUs which
multiply 16 bits in any case: x86 without VNNI, ARM without dot products.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import IRModule, relax
from tvm.target import Target

from .. import op as qnn
from ..numerics.winograd import FLOATS, INTEGERS, WINDOW, Form, is_exact
from ..op.arguments import factors_of
from ..op.base import call_attributes, constant, constant_value, shape_of
from ..op.winograd import result_size
from ..qparams import dtype_range
from ..targets.features import backend_of
from ..topi_int8 import candidates
from ..topi_int8.generic.winograd import LANES, lanes_of
from ..topi_int8.strategy import Implementation
from ..topi_int8.workload import Conv2dWorkload
from .bias_first import asks_for_biases
from .float_products import is_fast
from .layout.forms import static_shape
from .lower import workload_of
from .rewrite import Emit, op_name, rewrite

REUSE = 12
"""Tiles for which a transformed weight must be read for its multiply-adds to take longer than reading it from memory:
one core of a server reads 30 to 40 GB/s and does 60 to 130 multiply-adds a nanosecond."""

TRANSFORM = 10
"""What an element of transformed data or products costs, in multiply-adds of floats: four operations on it, and a store
and a load that go through the L2 or L3 cache."""

INTEGER_TRANSFORM = 4.0
"""The same for a vector of products or of twice as many data, in units of a tile's predicted cost."""

GAIN = 1.2
"""How many times faster it must be predicted to be: it takes memory for weights, and the error of floats is larger."""


IN_ORDER = "qnn.convolutions_in_order"
"""An attribute of `main`: the products of its float convolutions are in an order that stays."""


def winograd(mod: IRModule, target: Target) -> IRModule:
    """`mod` with the convolutions that gain by it in Winograd's form; those of floats only if any order of their sums
    will do."""
    if backend_of(target).grid:
        return mod
    floats = not asks_for_biases(mod) and not mod["main"].attrs.get(IN_ORDER)

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        return _rewritten(expr, target, emit, floats) if op_name(expr) == "qnn.conv2d_accumulate" else None

    return rewrite(mod, rule)


def _rewritten(call: relax.Call, target: Target, emit: Emit, floats: bool) -> relax.Expr | None:
    data, weight = factors_of(call)
    known, attributes = constant_value(weight), call_attributes(call)
    if known is None or known.shape[1:3] != (WINDOW, WINDOW) or attributes["groups"] != 1:
        return None
    if any(step != 1 for step in (*attributes["strides"], *attributes["dilation"])):
        return None
    form = _form(str(data.ty.dtype), str(weight.ty.dtype), str(attributes["out_dtype"]))
    if form is None or (form is FLOATS and not floats):
        return None
    n, height, width, _ = shape_of(data)
    size = result_size((height, width), attributes["padding"])
    tiles = n, form.tiles(size[0]), form.tiles(size[1])
    outputs, inputs = known.shape[0], known.shape[-1]
    probe = _product(
        relax.Var("x", relax.TensorType((*tiles, form.tile_products * inputs), form.dtypes[1])),
        relax.Var("w", relax.TensorType((form.tile_products * outputs, 1, 1, inputs), form.dtypes[1])),
        form,
    )
    if _gain(call, probe, form, tiles, size, target) < GAIN:
        return None
    if form is INTEGERS and not is_exact(known, max(map(abs, dtype_range(str(data.ty.dtype))))):
        return None
    stored = constant(form.transformed_weight(known))
    transformed = emit(qnn.winograd_data(data, attributes["padding"], attributes["pad_value"]))
    return emit(qnn.winograd_results(emit(_product(transformed, stored, form)), size))  # all three get its name


def _form(data_dtype: str, weight_dtype: str, out_dtype: str) -> Form | None:
    """The form for a convolution's dtypes, if there is one."""
    if data_dtype in FLOATS.dtypes[0]:
        return FLOATS if weight_dtype == data_dtype else None
    return INTEGERS if data_dtype in INTEGERS.dtypes[0] and out_dtype == INTEGERS.dtypes[2] else None


def _product(data: relax.Expr, weight: relax.Expr, form: Form) -> relax.Call:
    return qnn.conv2d_accumulate(data, weight, groups=form.tile_products, out_dtype=form.dtypes[2])


def _gain(
    call: relax.Call,
    product: relax.Call,
    form: Form,
    tiles: tuple[int, int, int],
    size: tuple[int, int],
    target: Target,
) -> float:
    """How many times faster the form is predicted to compute a convolution."""
    outputs, _, _, inputs = shape_of(factors_of(call)[1])
    if form is FLOATS:
        return predicted_gain(tiles[0], size, inputs, outputs) if is_fast(product, target) else 0.0
    if min(lanes_of(inputs), lanes_of(outputs)) < LANES[-1]:
        return 0.0
    workloads = workload_of(call, target), workload_of(product, target)
    first, second = (candidates(workload, target)[0] for workload in workloads)
    if first.tiles is None or second.tiles is None or not _are_comparable(first, second, target):
        return 0.0
    direct, transformed = (_cost(item, workload) for item, workload in zip((first, second), workloads, strict=True))
    count = prod(tiles)
    moved = INTEGERS.tile_products * count * (inputs * LANES[0] / lanes_of(inputs) / 2 + outputs)
    transformed *= max(count, REUSE) / count
    return direct / (transformed + INTEGER_TRANSFORM * moved)


def _are_comparable(first: Implementation, second: Implementation, target: Target) -> bool:
    """Whether predicted costs of two implementations can be compared: where they count instructions, or are those of
    one instruction."""
    return backend_of(target).counts or first.name == second.name


def _cost(implementation: Implementation, workload: Conv2dWorkload) -> float:
    """The predicted cost of a convolution with an instruction, times the lanes of a vector."""
    assert implementation.tiles is not None
    results = workload.batch * workload.out_height * workload.out_width * workload.out_channels
    return min(implementation.tiles(workload).values()) * results


def gains_in_float(call: Any) -> bool:
    """Whether it is a convolution of floats, as in Relax, that Winograd's form is predicted to compute faster."""
    if op_name(call) != "nn.conv2d" or str(call.ty.dtype) != "float32" or static_shape(call) is None:
        return False
    weight, attrs = constant_value(factors_of(call)[1]), call.attrs
    if weight is None or (str(attrs.data_layout), str(attrs.kernel_layout)) != ("NCHW", "OIHW"):
        return False
    if weight.shape[2:] != (WINDOW, WINDOW) or any(int(step) != 1 for step in (*attrs.strides, *attrs.dilation)):
        return False
    batch, outputs, *size = shape_of(call)
    return int(attrs.groups) == 1 and predicted_gain(batch, (size[0], size[1]), weight.shape[1], outputs) >= GAIN


def predicted_gain(batch: int, size: tuple[int, int], inputs: int, outputs: int) -> float:
    """How many times faster a convolution of floats with results of this size is; 0 if its channels do not make
    vectors."""
    vectors = lanes_of(inputs), lanes_of(outputs)
    if min(vectors) < LANES[-1]:
        return 0.0
    count = batch * FLOATS.tiles(size[0]) * FLOATS.tiles(size[1])
    moved = sum(channels * LANES[0] / lanes for channels, lanes in zip((inputs, outputs), vectors, strict=True))
    whole = FLOATS.tile_products * (max(count, REUSE) * inputs * outputs + TRANSFORM * count * moved)
    return WINDOW**2 * batch * prod(size) * inputs * outputs / whole
