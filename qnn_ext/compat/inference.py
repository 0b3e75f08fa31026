"""Types of variables that a script left open, `relay.var("weight")`, from the operators that read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import ShapeError
from ..op.base import normalize_axis
from .geometry import pair

Rule = Callable[[Mapping[str, Any], Sequence[int]], Sequence[int]]
"""A function of the call's attributes and the shape of its data: the shape of an operand."""


def _kernel(transposed: bool) -> Rule:
    def rule(attrs: Mapping[str, Any], data: Sequence[int]) -> Sequence[int]:
        channels, groups, layout = attrs["channels"], attrs["groups"], attrs["kernel_layout"]
        if channels is None or attrs["kernel_size"] is None:
            raise ShapeError("a kernel without a shape needs channels= and kernel_size=")
        inputs = data[attrs["data_layout"].index("C")]
        height, width = pair(attrs["kernel_size"])
        sizes = {"O": channels, "I": inputs // groups, "H": height, "W": width}
        if transposed:
            sizes |= {"I": inputs, "O": channels // groups}
        elif layout == "HWOI" and groups == inputs:  # a depthwise kernel, with its multiplier last
            sizes |= {"O": inputs, "I": channels // groups}
        return [sizes[axis] for axis in layout]

    return rule


def _units(attrs: Mapping[str, Any], data: Sequence[int]) -> Sequence[int]:
    if attrs["units"] is None:
        raise ShapeError("a weight without a shape needs units=")
    return attrs["units"], data[-1]


def _along_axis(attrs: Mapping[str, Any], data: Sequence[int]) -> Sequence[int]:
    return (data[normalize_axis(attrs["axis"], len(data))],)


RULES: dict[str, tuple[Rule, range]] = {
    "nn.conv2d": (_kernel(False), range(1, 2)),
    "qnn.conv2d": (_kernel(False), range(1, 2)),
    "nn.conv2d_transpose": (_kernel(True), range(1, 2)),
    "nn.dense": (_units, range(1, 2)),
    "qnn.dense": (_units, range(1, 2)),
    "nn.bias_add": (_along_axis, range(1, 2)),
    "nn.prelu": (_along_axis, range(1, 2)),
    "nn.batch_norm": (_along_axis, range(1, 5)),
    "nn.layer_norm": (_along_axis, range(1, 3)),
}
"""Operator -> its rule, and the operands that it is for."""


def inferred_shape(operator: str, index: int, attrs: Mapping[str, Any], data: Sequence[int]) -> Sequence[int] | None:
    """The shape of an operand; None where it does not follow from the data. Raises ShapeError."""
    rule, operands = RULES.get(operator, (None, range(0)))
    return rule(attrs, data) if rule is not None and index in operands else None
