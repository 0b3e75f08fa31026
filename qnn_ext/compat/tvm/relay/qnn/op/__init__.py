"""relay.qnn.op."""

from .....absent import absent
from .....quantized import (
    abs,
    add,
    avg_pool2d,
    batch_matmul,
    concatenate,
    contrib_dense_pack,
    conv2d,
    conv2d_transpose,
    dense,
    dequantize,
    erf,
    exp,
    hardswish,
    leaky_relu,
    log,
    mul,
    quantize,
    requantize,
    rsqrt,
    sigmoid,
    simulated_dequantize,
    simulated_quantize,
    softmax,
    sqrt,
    subtract,
    tanh,
)
from .....requantization import RequantizeConfig, current_requantize_config, requantize_config
from . import canonicalizations, legalizations

__all__ = [
    "RequantizeConfig",
    "abs",
    "add",
    "avg_pool2d",
    "batch_matmul",
    "canonicalizations",
    "concatenate",
    "contrib_dense_pack",
    "conv2d",
    "conv2d_transpose",
    "current_requantize_config",
    "dense",
    "dequantize",
    "erf",
    "exp",
    "hardswish",
    "leaky_relu",
    "legalizations",
    "log",
    "mul",
    "quantize",
    "requantize",
    "requantize_config",
    "rsqrt",
    "sigmoid",
    "simulated_dequantize",
    "simulated_quantize",
    "softmax",
    "sqrt",
    "subtract",
    "tanh",
]

_RULES = "rules are in qnn_ext.passes: ARCHITECTURE.md, Add an operator"

__getattr__ = absent(
    "relay.qnn.op", {"register_qnn_legalize": _RULES, "register_qnn_canonicalize": _RULES, "layout_conversions": _RULES}
)
