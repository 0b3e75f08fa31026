"""Windows of ONNX convolutions and poolings: kernel, strides, dilations and the padding that `auto_pad` asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..node import Node


@dataclass(frozen=True)
class Window:
    """One entry per spatial dimension; padding: all beginnings, then all ends, as ONNX writes it."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]


def window(node: Node, spatial: Sequence[int], kernel: Sequence[int] | None = None) -> Window:
    """The node's window over data of these spatial sizes; `kernel` is given where the weights determine it.

    Raises ModelFormatError when attributes contradict each other or the data.
    """
    rank = len(spatial)
    declared = node.attribute("kernel_shape")
    if kernel is None:
        if declared is None:
            raise node.malformed("the attribute kernel_shape is missing")
        kernel = declared
    elif declared is not None and list(declared) != list(kernel):
        raise node.malformed(f"kernel_shape is {declared}, but the weights have a kernel of {list(kernel)}")
    strides, dilation = (node.attribute(name, [1] * rank) for name in ("strides", "dilations"))
    for name, values in (("kernel_shape", kernel), ("strides", strides), ("dilations", dilation)):
        if len(values) != rank or any(value < 1 for value in values):
            raise node.malformed(f"{name} must be {rank} positive integers, found {list(values)}")
    padding = _padding(node, spatial, kernel, strides, dilation)
    return Window(tuple(kernel), tuple(strides), tuple(dilation), padding)


def _padding(
    node: Node, spatial: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> tuple[int, ...]:
    mode = node.attribute("auto_pad", "NOTSET")
    if mode == "NOTSET":
        pads = node.attribute("pads", [0] * (2 * len(spatial)))
        if len(pads) != 2 * len(spatial) or any(value < 0 for value in pads):
            raise node.malformed(f"pads must be {2 * len(spatial)} integers ≥ 0, found {list(pads)}")
        return tuple(pads)
    if mode == "VALID":
        return (0,) * (2 * len(spatial))
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise node.malformed(f"auto_pad must be NOTSET, VALID, SAME_UPPER or SAME_LOWER, found {mode!r}")
    low, high = [], []
    for size, k, stride, dilated in zip(spatial, kernel, strides, dilation, strict=True):
        total = max((-(-size // stride) - 1) * stride + (k - 1) * dilated + 1 - size, 0)
        less, more = total // 2, total - total // 2
        low.append(less if mode == "SAME_UPPER" else more)
        high.append(more if mode == "SAME_UPPER" else less)
    return (*low, *high)
