"""relay.frontend.mxnet_qnn_op_utils."""

from ....absent import absent
from ....mxnet_ranges import (
    dequantize_mxnet_min_max,
    get_mkldnn_int8_scale,
    get_mkldnn_uint8_scale,
    quantize_conv_bias_mkldnn_from_var,
    quantize_mxnet_min_max,
)

__all__ = [
    "dequantize_mxnet_min_max",
    "get_mkldnn_int8_scale",
    "get_mkldnn_uint8_scale",
    "quantize_conv_bias_mkldnn_from_var",
    "quantize_mxnet_min_max",
]

__getattr__ = absent("relay.frontend.mxnet_qnn_op_utils", everything="qnn_ext.from_mxnet imports quantized models")
