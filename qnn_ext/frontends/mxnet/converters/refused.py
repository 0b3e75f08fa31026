"""Quantized operators that MXNet 1.9.1 itself cannot run, or runs wrongly, on a CPU: refused with the reason."""

from __future__ import annotations

from tvm import relax

from ..node import Node
from ..registry import converter

_REMEDY = "quantize the model in the fused form, with quantize_model_mkldnn(...) or quantize_net_v2(...)"


@converter("_contrib_quantized_conv", "_contrib_quantized_fully_connected")
def refuse_unfused(node: Node) -> relax.Expr:
    """The unfused form of `quantize_model`."""
    raise node.unsupported(
        "the unfused form, which does not work in MXNet itself: on a CPU it only takes uint8 data in one group, and "
        f"adds the int8 bias without scaling it; {_REMEDY}"
    )
