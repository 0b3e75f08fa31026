"""relay.nn."""

from ...absent import absent
from ...neural import (
    adaptive_avg_pool2d,
    avg_pool2d,
    batch_flatten,
    batch_matmul,
    batch_norm,
    bias_add,
    conv1d,
    conv2d,
    conv2d_transpose,
    dense,
    dropout,
    global_avg_pool2d,
    global_max_pool2d,
    layer_norm,
    leaky_relu,
    log_softmax,
    max_pool2d,
    pad,
    prelu,
    relu,
    softmax,
    upsampling,
)

__all__ = [
    "adaptive_avg_pool2d",
    "avg_pool2d",
    "batch_flatten",
    "batch_matmul",
    "batch_norm",
    "bias_add",
    "conv1d",
    "conv2d",
    "conv2d_transpose",
    "dense",
    "dropout",
    "global_avg_pool2d",
    "global_max_pool2d",
    "layer_norm",
    "leaky_relu",
    "log_softmax",
    "max_pool2d",
    "pad",
    "prelu",
    "relu",
    "softmax",
    "upsampling",
]

__getattr__ = absent("relay.nn")
