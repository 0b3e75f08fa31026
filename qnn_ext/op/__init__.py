"""The operators of the QNN dialect, one file per family: type rule, builder, NumPy integer reference."""

from .accumulate import batch_matmul_accumulate, conv2d_accumulate, dense_accumulate, row_sum, window_sum
from .attention import attention
from .avg_pool2d import avg_pool2d
from .base import OPS, OpDef
from .batch_matmul import batch_matmul
from .bfloat16 import bfloat16
from .bias_first import bias_first
from .bitcast import bitcast
from .blockwise import blockwise_dense, blockwise_dense_int8, blockwise_dequantize
from .blockwise_lanes import blockwise_dense_lanes
from .check import check_bounds, check_divisor, first_violation
from .concatenate import concatenate
from .conv2d import conv2d
from .conv2d_transpose import conv2d_transpose
from .dense import contrib_dense_pack, dense
from .elementwise import add, mul, subtract
from .float8 import float8
from .float_function import float_function
from .float_norms import lane_norm, rms_norm, welford_norm
from .fma import fma
from .group_norm import group_norm, instance_norm
from .lane_softmax import lane_softmax
from .lane_sum import lane_sum
from .layer_norm import layer_norm
from .loop import loop
from .non_max_suppression import non_max_suppression
from .normalize import normalize
from .observe import observe
from .partial_sort import partial_sort
from .piecewise import piecewise
from .pool_sum import pool_sum
from .prelu import prelu
from .qlinear import qlinear_add, qlinear_mul
from .qlinear_pool import qlinear_avg_pool
from .range_parameters import range_scale, range_zero_point
from .reduce import max, mean, min, sum
from .requantize import dequantize, quantize, requantize
from .resize import resize_bilinear
from .response_norm import response_norm
from .simulated import simulated_dequantize, simulated_quantize
from .softmax import log_softmax, softmax
from .table import table
from .trim import trim
from .true_positions import true_positions
from .unary import (
    abs,
    elu,
    erf,
    exp,
    gelu,
    hardswish,
    leaky_relu,
    log,
    neg,
    rsqrt,
    sigmoid,
    sqrt,
    tanh,
    unary_table,
)
from .value_range import value_range
from .wide_sum import wide_sum
from .winograd import winograd_data, winograd_results
from .write_rows import write_rows

__all__ = [
    "OPS",
    "OpDef",
    "abs",
    "add",
    "attention",
    "avg_pool2d",
    "batch_matmul",
    "batch_matmul_accumulate",
    "bfloat16",
    "bias_first",
    "bitcast",
    "blockwise_dense",
    "blockwise_dense_int8",
    "blockwise_dense_lanes",
    "blockwise_dequantize",
    "check_bounds",
    "check_divisor",
    "concatenate",
    "contrib_dense_pack",
    "conv2d",
    "conv2d_accumulate",
    "conv2d_transpose",
    "dense",
    "dense_accumulate",
    "dequantize",
    "elu",
    "erf",
    "exp",
    "first_violation",
    "float8",
    "float_function",
    "fma",
    "gelu",
    "group_norm",
    "hardswish",
    "instance_norm",
    "lane_norm",
    "lane_softmax",
    "lane_sum",
    "layer_norm",
    "leaky_relu",
    "log",
    "log_softmax",
    "loop",
    "max",
    "mean",
    "min",
    "mul",
    "neg",
    "non_max_suppression",
    "normalize",
    "observe",
    "partial_sort",
    "piecewise",
    "pool_sum",
    "prelu",
    "qlinear_add",
    "qlinear_avg_pool",
    "qlinear_mul",
    "quantize",
    "range_scale",
    "range_zero_point",
    "requantize",
    "resize_bilinear",
    "response_norm",
    "rms_norm",
    "row_sum",
    "rsqrt",
    "sigmoid",
    "simulated_dequantize",
    "simulated_quantize",
    "softmax",
    "sqrt",
    "subtract",
    "sum",
    "table",
    "tanh",
    "trim",
    "true_positions",
    "unary_table",
    "value_range",
    "welford_norm",
    "wide_sum",
    "window_sum",
    "winograd_data",
    "winograd_results",
    "write_rows",
]
