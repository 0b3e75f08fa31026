"""Channels of products with constant weights, and of what stands between them: where they are, how large they get."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax

from ..op.base import constant_value, normalize_axis, shape_of
from ..passes.rewrite import op_name

CONVOLUTIONS = ("nn.conv1d", "nn.conv2d", "nn.conv3d")

# f(s·x) = s·f(x) for s > 0, each value or channel by itself
_HOMOGENEOUS = (
    "nn.relu",
    "nn.leakyrelu",
    "nn.max_pool1d",
    "nn.max_pool2d",
    "nn.avg_pool1d",
    "nn.avg_pool2d",
    "nn.adaptive_avg_pool1d",
    "nn.adaptive_avg_pool2d",
    "mean",
    "nn.pad",
    "reshape",
    "squeeze",
    "expand_dims",
    "permute_dims",
)


@dataclass(frozen=True)
class Weight:
    """The constant weight of a convolution or a matrix product, in float64.

    array:       as the model has it
    order:       axes that bring it to (outputs, inputs of a group, taps…)
    groups:      of the convolution
    output_axis: the channel axis of the product's result
    data_axis:   the channel axis of its data, None: the last one
    """

    array: np.ndarray
    order: tuple[int, ...]
    groups: int
    output_axis: int
    data_axis: int | None

    @property
    def outputs(self) -> int:
        """How many output channels there are."""
        return int(self.array.shape[self.order[0]])

    def input_axis(self, ndim: int) -> int:
        """The channel axis of data of `ndim` dimensions."""
        return ndim - 1 if self.data_axis is None else self.data_axis

    @property
    def by_group(self) -> np.ndarray:
        """(groups, outputs / groups, inputs / groups, taps)"""
        ordered = self.array.transpose(self.order)
        return ordered.reshape(self.groups, self.outputs // self.groups, ordered.shape[1], -1)

    def output_ranges(self) -> np.ndarray:
        """max |w| of each output channel: (outputs,)."""
        return np.asarray(np.abs(self.by_group).max(axis=(2, 3)).reshape(-1))

    def input_ranges(self) -> np.ndarray:
        """max |w| over what each input channel is multiplied with: (inputs,)."""
        return np.asarray(np.abs(self.by_group).max(axis=(1, 3)).reshape(-1))

    def scaled_outputs(self, factors: np.ndarray) -> Weight:
        """Each output channel times its factor."""
        return self._with(self.by_group * factors.reshape(self.groups, -1, 1, 1))

    def scaled_inputs(self, factors: np.ndarray) -> Weight:
        """What each input channel is multiplied with, times its factor."""
        return self._with(self.by_group * factors.reshape(self.groups, 1, -1, 1))

    def _with(self, by_group: np.ndarray) -> Weight:
        ordered = by_group.reshape([self.array.shape[axis] for axis in self.order])
        return replace(self, array=ordered.transpose(np.argsort(self.order)))


def weight_of(call: Any) -> Weight | None:
    """The weight of a convolution, or of a matrix product with a constant matrix on its right; None for all else."""
    name = op_name(call)
    if name not in (*CONVOLUTIONS, "matmul"):
        return None
    array = constant_value(call.args[1])
    if array is None or array.dtype != np.float32 or (name == "matmul" and array.ndim != 2):
        return None
    array = array.astype(np.float64)
    if name == "matmul":
        return Weight(array, (1, 0), 1, len(shape_of(call)) - 1, None)
    layout = str(call.attrs.kernel_layout)
    taps = [i for i, letter in enumerate(layout) if letter not in "OI"]
    order = (layout.index("O"), layout.index("I"), *taps)
    out_layout = str(call.attrs.out_layout or call.attrs.data_layout)
    data_axis = str(call.attrs.data_layout).index("C")
    return Weight(array, order, int(call.attrs.groups), out_layout.index("C"), data_axis)


def is_positive_homogeneous(call: Any) -> bool:
    """Whether f(s·x) = s·f(x) holds for every s > 0, channel by channel."""
    name = op_name(call)
    if name == "nn.pad":
        return float(call.attrs.pad_value) == 0 and str(call.attrs.pad_mode) == "constant"
    return name in _HOMOGENEOUS


def channel_axis_behind(call: relax.Call, var: relax.Var, axis: int) -> int | None:
    """Where the channels at `axis` of the operand `var` are in the result; None where they are mixed or repeated."""
    before, after = shape_of(var), shape_of(call)
    name = op_name(call)
    if name == "permute_dims":
        axes = call.attrs.axes
        order = list(reversed(range(len(before)))) if axes is None else [int(i) % len(before) for i in axes]
        return order.index(axis)
    if name == "mean":
        reduced = (
            {normalize_axis(int(i), len(before)) for i in call.attrs.axis} if call.attrs.axis is not None else None
        )
        if reduced is None or axis in reduced:
            return None
        return axis if bool(call.attrs.keepdims) else axis - sum(i < axis for i in reduced)
    if name in ("reshape", "squeeze", "expand_dims"):
        return _axis_of_same_slices(before, after, axis)
    if len(before) == len(after) and before[axis] == after[axis]:
        return axis
    return None


def _axis_of_same_slices(before: tuple[int, ...], after: tuple[int, ...], axis: int) -> int | None:
    """The axis of `after` with as many slices as `axis` of `before`, and as many elements outside and inside of it."""
    outside, inside = int(np.prod(before[:axis])), int(np.prod(before[axis + 1 :]))
    for i, size in enumerate(after):
        fits = int(np.prod(after[:i])) == outside and int(np.prod(after[i + 1 :])) == inside
        if fits and size == before[axis]:
            return i
    return None
