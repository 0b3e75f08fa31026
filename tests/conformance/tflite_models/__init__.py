"""Builders of the conformance models, one module per operator family; `FAMILIES` names every family's list of specs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .binary import arithmetic_specs, comparison_specs, logical_specs, select_specs
from .builder import Spec
from .conv import conv_specs, depthwise_specs, transpose_conv_specs
from .dense import batch_matmul_specs, dense_specs
from .index import create_specs, gather_specs, one_hot_specs, repeat_specs, topk_specs
from .pool import normalization_specs, pool_specs, resize_specs
from .quantize import cast_specs, dequantize_specs, fake_quant_specs, quantize_specs
from .recurrent import lstm_specs, svdf_specs
from .reduce import arg_specs, cumsum_specs, reduce_specs, softmax_specs
from .shape import concat_specs, pad_specs, reshape_specs, slice_specs, space_specs, split_specs
from .streaming import detection_specs, variable_specs
from .unary import parametric_specs, unary_specs

FAMILIES: dict[str, Callable[[], Iterator[Spec]]] = {
    "conv2d": conv_specs,
    "depthwise": depthwise_specs,
    "transpose_conv": transpose_conv_specs,
    "fully_connected": dense_specs,
    "batch_matmul": batch_matmul_specs,
    "pool": pool_specs,
    "resize": resize_specs,
    "normalization": normalization_specs,
    "quantize": quantize_specs,
    "dequantize": dequantize_specs,
    "fake_quant": fake_quant_specs,
    "cast": cast_specs,
    "softmax": softmax_specs,
    "arithmetic": arithmetic_specs,
    "reduce": reduce_specs,
    "comparison": comparison_specs,
    "logical": logical_specs,
    "select": select_specs,
    "arg": arg_specs,
    "cumsum": cumsum_specs,
    "concatenation": concat_specs,
    "reshape": reshape_specs,
    "pad": pad_specs,
    "unary": unary_specs,
    "parametric": parametric_specs,
    "split": split_specs,
    "slice": slice_specs,
    "space": space_specs,
    "gather": gather_specs,
    "repeat": repeat_specs,
    "one_hot": one_hot_specs,
    "topk": topk_specs,
    "create": create_specs,
    "lstm": lstm_specs,
    "svdf": svdf_specs,
    "variables": variable_specs,
    "detection": detection_specs,
}
