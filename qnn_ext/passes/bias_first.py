"""Float products of dynamically quantized TFLite models, summed in XNNPACK's order.

    product(x, w) + b  →  qnn.bias_first(product(x, w), b)

for convolutions and products of matrices of which nothing else is read. What is quantized afterwards then has
XNNPACK's bits, as a last bit may decide between two steps. Elsewhere adding the bias last is as good.
"""

from __future__ import annotations

from tvm import IRModule, relax

from .. import op as qnn
from ..op.base import constant_value, shape_of
from .bodies import with_bodies
from .rewrite import Emit, bindings_of, consumers, op_name, rewrite, with_main

BIASED = "sums_start_at_biases"
"""The attribute of functions whose float products start at their biases."""

_PRODUCTS = ("nn.conv2d", "matmul")


def ask_for_biases(mod: IRModule) -> IRModule:
    """`mod` with the attribute, on the bodies of loops too."""
    return with_bodies(with_main(mod, mod["main"].with_attr(BIASED, True)), ask_for_biases)


def asks_for_biases(mod: IRModule) -> bool:
    """Whether it has the attribute."""
    return bool(mod["main"].attrs.get(BIASED))


def bias_first(mod: IRModule) -> IRModule:
    """`mod` with these sums, if it asks for them."""
    if not asks_for_biases(mod):
        return mod
    main = mod["main"]
    bindings = bindings_of(main)
    readers = consumers(main, bindings)
    products = {one.var for one in bindings if op_name(one.value) in _PRODUCTS and len(readers[one.var]) == 1}

    if not products:
        return mod

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        if op_name(expr) != "add" or expr.args[0] not in products or str(expr.ty.dtype) != "float32":
            return None
        bias = constant_value(expr.args[1])
        return None if bias is None or bias.size != shape_of(expr)[-1] else qnn.bias_first(*expr.args)

    return rewrite(mod, rule)
