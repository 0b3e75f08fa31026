"""CONV_3D: in float32 only, as in TFLite."""

from __future__ import annotations

from tvm import relax

from .... import limits
from ..integers import activate
from ..node import Node
from ..registry import converter
from .convolution import same_padding

_AXES = ("d", "h", "w")


@converter("CONV_3D", max_version=1)
def convert_conv3d(node: Node) -> relax.Expr:
    """Data (N, D, H, W, C), weights (D, H, W, C, K), and a bias (K,) or none."""
    data, weight = node.shape(0), node.shape(1)
    if len(data) != 5 or len(weight) != 5 or data[4] != weight[3]:
        raise node.malformed(f"data of shape {data} and weights of shape {weight} do not match")
    if {node.dtype(0), node.dtype(1)} != {"float32"}:
        raise node.unsupported(f"data of {node.dtype(0)} and weights of {node.dtype(1)}; supported: float32")
    strides = [node.options[f"stride_{axis}"] for axis in _AXES]
    dilation = [node.options[f"dilation_{axis}_factor"] for axis in _AXES]
    if min(*strides, *dilation, *weight[:3]) < 1:
        raise node.malformed(f"strides {strides}, dilation {dilation} and the window {weight[:3]} must be positive")
    pairs = [(0, 0)] * 3
    if node.options["padding"] == "SAME":
        pairs = [same_padding(*dims) for dims in zip(data[1:4], weight[:3], strides, dilation, strict=True)]
        limits.check("padding", max(map(max, pairs)), f"{node.label}: a window of {weight[:3]}")
    result = node.emit(
        relax.op.nn.conv3d(
            node.input(0),
            node.input(1),
            strides=strides,
            padding=[*(low for low, _ in pairs), *(high for _, high in pairs)],
            dilation=dilation,
            data_layout="NDHWC",
            kernel_layout="DHWIO",
        )
    )
    if node.has_input(2):
        result = node.emit(relax.op.add(result, node.input(2)))
    return activate(node, result)
