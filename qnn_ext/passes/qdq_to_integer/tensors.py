"""What the walk knows about a real tensor: that it is integers with a scale, or a function of such integers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...op.base import as_expr, constant_value, normalize_axis, shape_of

# dtypes that products, sums and tables accept
NARROW = ("int8", "uint8", "int16", "uint16")


@dataclass(frozen=True)
class Quantized:
    """(data − zero_point) · scale.

    data:       integer expression: a variable or a constant
    scale, zero_point: expressions, scalars or vectors along `axis`; constant or computed at run time
    product:    whether this is the accumulator of a product of two tensors
    rounds_bias: whether its data have one scale: ONNX Runtime rounds a float bias then if the result is quantized
    """

    data: Any
    scale: Any
    zero_point: Any
    axis: int = -1
    product: bool = False
    rounds_bias: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return shape_of(self.data)

    @property
    def dtype(self) -> str:
        return str(self.data.ty.dtype)

    @property
    def per_tensor(self) -> bool:
        return not self.vectors

    @property
    def vectors(self) -> bool:
        """Whether scale or zero point runs along `axis`."""
        return any(int(np.prod(shape_of(as_expr(p)))) != 1 for p in (self.scale, self.zero_point))

    @property
    def channel_axis(self) -> int | None:
        """The axis of the vectors, counted from 0; None if per-tensor."""
        return normalize_axis(self.axis, len(self.shape)) if self.vectors else None

    @property
    def constants(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Scale and zero point as arrays, None if computed at run time."""
        scale, zero_point = constant_value(as_expr(self.scale)), constant_value(as_expr(self.zero_point))
        return None if scale is None or zero_point is None else (scale, zero_point)

    @property
    def one_zero_point(self) -> int | None:
        """The zero point, if it is constant and the same everywhere."""
        zero_point = constant_value(as_expr(self.zero_point))
        if zero_point is None or (zero_point != zero_point.flat[0]).any():
            return None
        return int(zero_point.flat[0])

    def moved(self, data: Any, axis: int | None = None) -> Quantized:
        """The same scale and zero point for other integers; `axis` if the vectors now run along another one."""
        return replace(self, data=data, axis=self.axis if axis is None else axis)

    def same_parameters(self, other: Quantized) -> bool:
        """Whether both are per-tensor constants with equal values and dtypes."""
        mine, theirs = self.constants, other.constants
        return (
            mine is not None
            and theirs is not None
            and self.dtype == other.dtype
            and self.per_tensor
            and other.per_tensor
            and all(one.item() == two.item() for one, two in zip(mine, theirs, strict=True))
        )


@dataclass(frozen=True)
class Mapped:
    """values[data − lowest value of its dtype]: any function of one 8- or 16-bit tensor.

    data:   8- or 16-bit integer expression
    values: array with one entry per integer, in ascending order
    cheap:  whether it is only arithmetic, so that for real values the operators are as fast as a table
    """

    data: Any
    values: np.ndarray
    cheap: bool = True

    @property
    def as_table(self) -> bool:
        """Whether real values are looked up in a table, rather than computed by the model's own operators."""
        return not self.cheap and len(self.values) == 256 and self.values.dtype == np.float32

    @property
    def slope(self) -> float | None:
        """s, if the function is s·q + c with s > 0."""
        values = self.values.astype(np.float64)
        steps = np.arange(len(values))
        slope = (values[-1] - values[0]) / steps[-1]
        straight = np.abs(values[0] + slope * steps - values).max() <= 2e-7 * np.abs(values).max()
        return float(slope) if slope > 0 and straight else None
