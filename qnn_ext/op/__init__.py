"""The operators of the QNN dialect, one file per family: type rule, builder, NumPy integer reference."""

from .accumulate import batch_matmul_accumulate, conv2d_accumulate, dense_accumulate, row_sum, window_sum
from .base import OPS, OpDef
from .conv2d import conv2d
from .requantize import dequantize, quantize, requantize
from .table import table

__all__ = [
    "OPS",
    "OpDef",
    "batch_matmul_accumulate",
    "conv2d",
    "conv2d_accumulate",
    "dense_accumulate",
    "dequantize",
    "quantize",
    "requantize",
    "row_sum",
    "table",
    "window_sum",
]
