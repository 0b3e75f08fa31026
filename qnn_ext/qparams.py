"""QParams: scale, zero point, dtype and axis of a quantized tensor as one frozen value."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from .errors import ShapeError
from .lazily import np

PRECISIONS = ("float32", "bfloat16", "float16")
"""Those in which products of floats can be computed."""
CACHE_DTYPES = ("model", "float16", "int8")
"""Those in which a key-value cache can be kept; "model": that of the model."""
INTEGER_DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "int64")


def dtype_range(dtype: str) -> tuple[int, int]:
    """Smallest and largest value of an integer dtype. Raises ValueError for any other."""
    found = re.fullmatch(r"(u?)int(\d+)", str(dtype))
    if found is None:
        raise ValueError(f"{dtype} is not a dtype of integers")
    count = 1 << int(found[2])
    return (0, count - 1) if found[1] else (-count // 2, count // 2 - 1)


@dataclass(frozen=True, eq=False)
class QParams:
    """The quantized value q stands for `scale * (q - zero_point)`.

    scale:      float32 or float64, shape () or (C,), the real value of one integer step, > 0
    zero_point: int32, same shape as `scale` after broadcasting; the integer that stands for 0.0
    dtype:      integer dtype name of q
    axis:       the dimension that the C scales run along, None if per-tensor

    Raises ShapeError if the shapes, the axis or the values are inconsistent.
    """

    scale: np.ndarray
    zero_point: np.ndarray
    dtype: str = "int8"
    axis: int | None = None

    def __init__(self, scale: Any, zero_point: Any, dtype: str = "int8", axis: int | None = None) -> None:
        scale = np.asarray(scale)
        if scale.dtype != np.float64:
            scale = scale.astype(np.float32)
        zero_point = np.asarray(zero_point).astype(np.int32)
        if scale.size == 1:
            scale, axis = scale.reshape(()), None
            zero_point = zero_point.reshape(()) if zero_point.size == 1 else zero_point
        elif zero_point.size == 1:
            zero_point = np.full(scale.shape, zero_point.reshape(()))
        if dtype not in INTEGER_DTYPES:
            raise ShapeError(f"quantized dtype must be one of {', '.join(INTEGER_DTYPES)}, found {dtype}")
        if scale.ndim > 1 or scale.shape != zero_point.shape:
            raise ShapeError(
                f"scale {scale.shape} and zero point {zero_point.shape} must both be scalars or equal 1-D vectors"
            )
        if scale.ndim == 1 and axis is None:
            raise ShapeError(f"{scale.size} scales need the axis they run along")
        if not (np.isfinite(scale).all() and (scale > 0).all()):
            raise ShapeError("scales must be finite and positive")
        low, high = dtype_range(dtype)
        if (zero_point < low).any() or (zero_point > high).any():
            raise ShapeError(f"zero point {zero_point.tolist()} lies outside {dtype} [{low}, {high}]")
        scale.flags.writeable = zero_point.flags.writeable = False
        for name, value in (("scale", scale), ("zero_point", zero_point), ("dtype", dtype), ("axis", axis)):
            object.__setattr__(self, name, value)

    @property
    def per_channel(self) -> bool:
        """True when there is one scale per slice along `axis`."""
        return self.axis is not None

    def quantize(self, real: Any) -> np.ndarray:
        """saturate(rint(real / scale) + zero_point) as this dtype: real values → the model's integers."""
        scale, zero_point = self._along(np.asarray(real).ndim)
        low, high = dtype_range(self.dtype)
        steps = np.rint(np.asarray(real, np.float32) / scale.astype(np.float32)).astype(np.float64) + zero_point
        return np.clip(np.nan_to_num(steps, nan=0.0), low, high).astype(self.dtype)

    def dequantize(self, quantized: Any) -> np.ndarray:
        """scale · (quantized − zero_point) in float32: the model's integers → real values."""
        quantized = np.asarray(quantized)
        scale, zero_point = self._along(quantized.ndim)
        return ((quantized.astype(np.int64) - zero_point) * scale.astype(np.float32)).astype(np.float32)

    def _along(self, ndim: int) -> tuple[np.ndarray, np.ndarray]:
        """Scale and zero point shaped to broadcast with a tensor of `ndim` dimensions."""
        if self.axis is None:
            return self.scale, self.zero_point
        shape = [1] * ndim
        shape[self.axis] = -1
        return self.scale.reshape(shape), self.zero_point.reshape(shape)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, QParams)
            and (self.dtype, self.axis) == (other.dtype, other.axis)
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero_point, other.zero_point)
        )

    def __hash__(self) -> int:
        return hash((self.dtype, self.axis, self.scale.tobytes(), self.zero_point.tobytes()))

    def __str__(self) -> str:
        if self.per_channel:
            return f"{self.dtype}[{self.scale.size} scales on axis {self.axis}]"
        return f"{self.dtype}[scale {float(self.scale):.6g}, zero point {int(self.zero_point)}]"
