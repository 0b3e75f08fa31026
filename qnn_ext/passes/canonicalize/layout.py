"""Operators that only need a different layout before they can be computed: avg_pool2d."""

from __future__ import annotations

from tvm import relax

from ...op.base import OPS, call_attributes
from ...op.conv2d import permutation
from ..rewrite import Emit
from .registry import canonical


@canonical("qnn.avg_pool2d")
def canonicalize_avg_pool2d(call: relax.Call, emit: Emit) -> relax.Expr | None:
    """The pool in NHWC, the kernels' layout, with transposes around it for other layouts."""
    attributes = call_attributes(call)
    layout = attributes["layout"]
    if layout == "NHWC":
        return None
    data, *parameters = call.args
    last = emit(relax.op.permute_dims(data, list(permutation(layout, "NHWC"))))
    pooled = OPS["avg_pool2d"].call(last, *parameters, **{**attributes, "layout": "NHWC"})
    return relax.op.permute_dims(emit(pooled), list(permutation("NHWC", layout)))
