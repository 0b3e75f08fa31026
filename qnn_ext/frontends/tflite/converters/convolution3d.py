"""CONV_3D and CONV_3D_TRANSPOSE: in float32 only, as in TFLite."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from .... import limits
from ....op.base import shape_of
from ...building import padded
from ..integers import activate
from ..node import Node
from ..registry import converter
from .convolution import same_padding
from .shape import block, check_elements

_AXES = ("d", "h", "w")
Triple = list[int]


@converter("CONV_3D", max_version=1)
def convert_conv3d(node: Node) -> relax.Expr:
    """Data (N, D, H, W, C), weights (D, H, W, C, K), and a bias (K,) or none."""
    data, weight = node.shape(0), node.shape(1)
    strides, dilation = _steps(node, 0, 1)
    if data[4] != weight[3]:
        raise node.malformed(f"data of shape {data} and weights of shape {weight} do not match")
    pairs = _padding(node, data[1:4], weight[:3], strides, dilation)
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
    return _finished(node, result, 2)


@converter("CONV_3D_TRANSPOSE", max_version=1)
def convert_conv3d_transpose(node: Node) -> relax.Expr:
    """Inputs: the output's shape (constant), weights (D, H, W, K, C), data (N, D, H, W, C), and a bias (K,) or none.

    y[s·i + d·k − p] += x[i]·w[k] along each dimension, where p is the padding of the convolution that is transposed.
    """
    wanted, weight, data = node.integers(0), node.shape(1), node.shape(2)
    strides, dilation = _steps(node, 2, 1)
    if len(wanted) != 5 or min(wanted) < 1 or data[4] != weight[4] or wanted[4] != weight[3]:
        raise node.malformed(f"data of shape {data} and weights of shape {weight} do not make {wanted}")
    check_elements(node, [data[0], *wanted[1:]])
    pairs = _padding(node, wanted[1:4], weight[:3], strides, dilation)
    dims = zip(wanted[1:4], pairs, weight[:3], strides, dilation, strict=True)
    made = [(size + sum(pad) - (window - 1) * step - 1) // stride + 1 for size, pad, window, stride, step in dims]
    if made != list(data[1:4]):
        raise node.malformed(f"a convolution of {wanted} makes {made}, which is not data of shape {data}")
    first = [before for before, _ in pairs]
    whole = node.emit(
        relax.op.nn.conv3d_transpose(
            node.emit(relax.op.permute_dims(node.input(2), [0, 4, 1, 2, 3])),
            node.emit(relax.op.permute_dims(node.input(1), [4, 3, 0, 1, 2])),
            strides=strides,
            dilation=dilation,
        )
    )
    last = [begin + size for begin, size in zip(first, wanted[1:4], strict=True)]
    missing = [max(end - size, 0) for end, size in zip(last, shape_of(whole)[2:], strict=True)]
    if any(missing):  # rows at the end that no element reaches
        limits.check("padding", max(missing), node.label)
        widths = [0, 0, 0, 0, *(width for end in missing for width in (0, end))]
        whole = node.emit(padded(node.emit, whole, widths, 0.0))
    result = block(node, whole, [2, 3, 4], first, last, [1, 1, 1])
    return _finished(node, node.emit(relax.op.permute_dims(result, [0, 2, 3, 4, 1])), 3)


def _steps(node: Node, data: int, weight: int) -> tuple[Triple, Triple]:
    """Strides and dilation, of operands that are float32 and have five dimensions."""
    shapes = node.shape(data), node.shape(weight)
    if {len(shape) for shape in shapes} != {5} or 0 in shapes[0]:
        raise node.malformed(f"data of shape {shapes[0]} and weights of shape {shapes[1]} do not match")
    if {node.dtype(data), node.dtype(weight)} != {"float32"}:
        raise node.unsupported(f"data of {node.dtype(data)} and weights of {node.dtype(weight)}; supported: float32")
    strides = [node.options[f"stride_{axis}"] for axis in _AXES]
    dilation = [node.options[f"dilation_{axis}_factor"] for axis in _AXES]
    if min(*strides, *dilation, *shapes[1][:3]) < 1:
        raise node.malformed(f"strides {strides}, dilation {dilation} and the window {shapes[1][:3]} must be positive")
    return strides, dilation


def _padding(
    node: Node, size: Sequence[int], window: Sequence[int], strides: Triple, dilation: Triple
) -> list[tuple[int, int]]:
    """Of a convolution over this size: before and after it, along each dimension."""
    if node.options["padding"] != "SAME":
        return [(0, 0)] * 3
    pairs = [same_padding(*dims) for dims in zip(size, window, strides, dilation, strict=True)]
    limits.check("padding", max(map(max, pairs)), f"{node.label}: a window of {window}")
    return pairs


def _finished(node: Node, result: relax.Expr, bias: int) -> relax.Expr:
    if node.has_input(bias):
        result = node.emit(relax.op.add(result, node.input(bias)))
    return activate(node, result)
