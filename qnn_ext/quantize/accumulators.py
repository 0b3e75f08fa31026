"""The units of accumulators, in which integers hold the biases that follow products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ..op.arguments import data_of, factors_of
from ..op.base import constant_value, definition_of, shape_of
from ..op.relax_table import traits_of
from ..passes.rewrite import Emit
from ..qparams import QParams, dtype_range
from .annotate.families import Family, family_of


@dataclass(frozen=True)
class Bias:
    """steps: int32, of `scale` each, along `axis` of the product, in a shape that broadcasts to its own"""

    product: relax.Var
    steps: np.ndarray
    scale: np.ndarray
    axis: int

    @property
    def values(self) -> np.ndarray:
        """What the steps stand for, float32."""
        scale = self.scale.reshape(self.steps.shape) if self.scale.size > 1 else self.scale.reshape(())
        return self.steps.astype(np.float32) * scale


class Accumulators:
    """What a walk over a float module knows of its products.

    quantized: tensor, a variable or a constant → how its values are quantized; whoever walks enters those of sites
    """

    def __init__(self) -> None:
        self.quantized: dict[Any, QParams] = {}
        self._units: dict[Any, tuple[np.ndarray, int]] = {}  # accumulator → scale, channel axis

    def rule(self, value: relax.Expr, emit: Emit) -> relax.Expr | None:
        """Keeps products and what moves their values, and remembers their units; None for all else."""
        if definition_of(value) is None and traits_of(value).product is not None:
            return self._product(value, emit)
        moves = isinstance(value, (relax.Call, relax.TupleGetItem)) and family_of(value, ()) is Family.MOVE
        return self._moved(value, emit) if moves and isinstance(data_of(value), relax.Var) else None

    def bias(self, call: relax.Call) -> Bias | None:
        """rint(bias / scale), if an addition adds a constant for each channel to an accumulator, and that fits."""
        x1, x2 = call.args
        for operand, other in ((x1, x2), (x2, x1)):
            bias = constant_value(other)
            if bias is not None and operand in self._units:
                scale, axis = self._units[operand]
                steps = _steps(bias, scale, axis, shape_of(operand))
                return None if steps is None else Bias(operand, steps, scale, axis)
        return None

    def _product(self, call: relax.Call, emit: Emit) -> relax.Expr | None:
        one, two = map(self.quantized.get, factors_of(call))
        if one is None or two is None or (one.per_channel and two.per_channel):
            return None
        var = emit(call)
        scale = one.scale.astype(np.float32) * two.scale.astype(np.float32)
        axis = _channel_axis(call, rows=one.per_channel)
        groups = int(getattr(call.attrs, "groups", 1))
        if scale.size > 1 and scale.size * groups == shape_of(var)[axis] and groups > 1:
            scale = np.tile(scale, groups)
        self._units[var] = scale, axis
        return var

    def _moved(self, value: Any, emit: Emit) -> relax.Expr | None:
        source = data_of(value)
        parameters, unit = self.quantized.get(source), self._units.get(source)
        if parameters is None and unit is None:
            return None
        var = emit(value)
        if parameters is not None and not parameters.per_channel:
            self.quantized[var] = parameters
        axis = None if unit is None else _axis_behind(value, unit[1])
        if unit is not None and axis is not None:
            self._units[var] = unit[0], axis
        return var


def _channel_axis(call: relax.Call, rows: bool) -> int:
    ndim = len(shape_of(call))
    layout = getattr(call.attrs, "data_layout", None)
    if layout is not None:
        return str(layout).index("C")
    return ndim - 2 if rows else ndim - 1


def _axis_behind(call: Any, axis: int) -> int | None:
    """The axis to which a reshape or transpose moves the channels; None for other moves."""
    traits = traits_of(call)
    return traits.moved_axis(call, axis) if traits.rearranges and traits.moved_axis is not None else None


def _steps(bias: np.ndarray, scale: np.ndarray, axis: int, shape: tuple[int, ...]) -> np.ndarray | None:
    """None if it is no bias of a product of this shape, or does not fit."""
    full = (1,) * (len(shape) - bias.ndim) + bias.shape
    if len(full) != len(shape) or any(n not in (1, shape[i]) or (n > 1 and i != axis) for i, n in enumerate(full)):
        return None
    channels = np.broadcast_to(bias.reshape(-1), (shape[axis],)).astype(np.float64)
    steps = np.rint(channels / scale.reshape(-1).astype(np.float64))
    low, high = dtype_range("int32")
    if not np.isfinite(steps).all() or np.abs(steps).max(initial=0) > min(-low, high) // 2:
        return None
    placed = [1] * len(shape)
    placed[axis] = shape[axis]
    return steps.astype(np.int32).reshape(placed)
