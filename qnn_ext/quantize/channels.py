"""Channels of products with constant weights and of the operators between them: their axes and their ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax

from ..op.arguments import factors_of
from ..op.base import constant_value, shape_of
from ..op.relax_table import traits_of
from ..op.traits import Kind, Product


@dataclass(frozen=True)
class Weight:
    """The constant weight of a convolution or a matrix product, in float64.

    array:       as the model has it
    order:       permutation of axes that brings it to (outputs, inputs of a group, taps…)
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
        """The number of output channels."""
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
        """max |w| over the weights that each input channel is multiplied by: (inputs,)."""
        return np.asarray(np.abs(self.by_group).max(axis=(1, 3)).reshape(-1))

    def input_squares(self, important: np.ndarray | float = 1.0) -> np.ndarray:
        """Σ v·w² over the weights that each input channel is multiplied by, v being how important their outputs are,
        (outputs,) or one for all: (inputs,)."""
        outputs = np.broadcast_to(important, self.outputs).reshape(self.groups, -1)
        return np.einsum("go,goi->gi", outputs, np.square(self.by_group).sum(axis=3)).reshape(-1)

    def scaled_outputs(self, factors: np.ndarray) -> Weight:
        """The weight with each output channel multiplied by its factor."""
        return self._with(self.by_group * factors.reshape(self.groups, -1, 1, 1))

    def scaled_inputs(self, factors: np.ndarray) -> Weight:
        """The weight with the values for each input channel multiplied by its factor."""
        return self._with(self.by_group * factors.reshape(self.groups, 1, -1, 1))

    @property
    def matrices(self) -> np.ndarray:
        """(groups, outputs / groups, inputs / groups · taps): an output is a row times a patch of the data."""
        by_group = self.by_group
        return by_group.reshape(*by_group.shape[:2], -1)

    def with_matrices(self, matrices: np.ndarray) -> Weight:
        """The weight with other values, given as `matrices` are."""
        return self._with(matrices.reshape(self.by_group.shape))

    def _with(self, by_group: np.ndarray) -> Weight:
        ordered = by_group.reshape([self.array.shape[axis] for axis in self.order])
        return replace(self, array=ordered.transpose(np.argsort(self.order)))


def weight_of(call: Any, known: Mapping[Any, np.ndarray] | None = None, transposed: bool = False) -> Weight | None:
    """The weight of a convolution, or of a matrix product with a constant matrix on its right; None for all else.

    known:      variable → value of constants that are observed
    transposed: whether that of a transposed convolution, not in groups, is wanted too: its channels are those of any
                other, but its results are no rows of weights times a patch of the data
    """
    product = traits_of(call).product
    spreads = transposed and product is Product.TRANSPOSED and int(call.attrs.groups) == 1
    if product not in (Product.CONVOLUTION, Product.MATRIX) and not spreads:
        return None
    _, weight = factors_of(call)
    array = (known or {}).get(weight) if isinstance(weight, relax.Var) else constant_value(weight)
    if array is None or array.dtype != np.float32 or (product is Product.MATRIX and array.ndim != 2):
        return None
    array = array.astype(np.float64)
    if product is Product.MATRIX:
        return Weight(array, (1, 0), 1, len(shape_of(call)) - 1, None)
    layout = str(call.attrs.kernel_layout)
    taps = [i for i, letter in enumerate(layout) if letter not in "OI"]
    order = (layout.index("O"), layout.index("I"), *taps)
    out_layout = str(call.attrs.out_layout or call.attrs.data_layout)
    data_axis = str(call.attrs.data_layout).index("C")
    return Weight(array, order, int(call.attrs.groups), out_layout.index("C"), data_axis)


def is_positive_homogeneous(call: Any) -> bool:
    """Whether f(s·x) = s·f(x) holds for every s > 0."""
    traits = traits_of(call)
    if traits.fill is not None:
        return float(getattr(call.attrs, traits.fill)) == 0 and str(call.attrs.pad_mode) == "constant"
    return traits.homogeneous


def channel_axis_behind(call: relax.Call, var: relax.Var, axis: int) -> int | None:
    """The result's axis for the channels at `axis` of the operand `var`; None if they are mixed or repeated."""
    traits = traits_of(call)
    if traits.kind is not Kind.POINTWISE:
        return None if traits.moved_axis is None else traits.moved_axis(call, axis)
    before, after = shape_of(var), shape_of(call)
    return axis if len(before) == len(after) and before[axis] == after[axis] else None
