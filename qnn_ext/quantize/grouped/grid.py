"""Grids for weights in groups: the scale and the zero point of each group, and the integers on them. NumPy alone.

"max":  the smallest scale that covers the group
"mse":  of shrunken ranges, the one with the smallest squared error: what is clipped costs less than coarser steps
"hqq":  half-quadratic quantization without data (Badri and Shaji 2023): outliers of the error e = w − ŵ are set apart
        by the proximal step of |e|^p, p < 1, and the zero point, or where that is an integer the scale, fits the rest

A weight has rows (N, K), groups of `group_size` along K, the last of which may be shorter, G = ⌈K / group_size⌉.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ...errors import QuantizationError
from ...numerics import bfloat16
from ...numerics.packed import narrow_range, pack
from ...op.blockwise import LONGEST_GROUP, groups_of

_MOST_AT_ONCE = 1 << 22  # values of a weight
_SHRINKING = np.linspace(1.0, 0.4, 25)

# of "hqq", in steps of the grid: shrink(e) = sign(e) · max(|e| − |e|^(p−1) / β, 0)
_POWER, _BETA, _GROWTH, _ROUNDS = 0.7, 2.0, 1.05, 20


@dataclass(frozen=True)
class GroupFormat:
    """How a weight in groups is stored.

    bits:        2, 4 or 8
    group_size:  values with one scale; at least the length of a row: one scale for each row
    symmetric:   signed integers without zero points; otherwise unsigned ones, with a zero point for each group
    scale_dtype: "float32", "float16" or "bfloat16"
    real_zeros:  whether zero points need not be integers: products with 8-bit activations sum integers
    """

    bits: int
    group_size: int
    symmetric: bool = True
    scale_dtype: str = "float32"
    real_zeros: bool = False

    @property
    def dtype(self) -> str:
        """The integers' dtype, as `numerics.packed` names it."""
        return f"{'' if self.symmetric else 'u'}int{self.bits}"

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest integer."""
        return narrow_range(self.dtype)

    def group(self, depth: int) -> int:
        """The length of a group of rows of `depth` values."""
        return min(self.group_size, depth, LONGEST_GROUP)


@dataclass(frozen=True)
class Grid:
    """scale, zero_point: float64 (N, G), as stored; depth: K; real_zeros: whether zero points are stored as floats"""

    form: GroupFormat
    depth: int
    scale: np.ndarray
    zero_point: np.ndarray
    real_zeros: bool = False

    def by_column(self, values: np.ndarray) -> np.ndarray:
        """Values of groups (N, G) for each column: (N, K)."""
        return np.repeat(values, self.form.group(self.depth), axis=1)[:, : self.depth]

    def integers(self, real: np.ndarray) -> np.ndarray:
        """The nearest integers: clip(rint(w / scale + zero_point)), float64 (N, K)."""
        steps = real / self.by_column(self.scale) + self.by_column(self.zero_point)
        return np.clip(np.rint(steps), *self.form.limits)

    def values(self, integers: np.ndarray) -> np.ndarray:
        """What integers stand for: float64 (N, K)."""
        return (integers - self.by_column(self.zero_point)) * self.by_column(self.scale)

    def stored(self, integers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """weight, scale and zero_point as `R.qnn.blockwise_dequantize` takes them."""
        form = self.form
        weight = pack(integers.astype(np.int16), form.dtype)
        if form.symmetric:
            return weight, _floats(self.scale, form), np.asarray(0, np.int32)
        if self.real_zeros:
            return weight, _floats(self.scale, form), _floats(self.zero_point, form)
        return weight, _floats(self.scale, form), pack(self.zero_point.astype(np.int16), form.dtype)


def grid_of(real: np.ndarray, form: GroupFormat, how: str = "max") -> Grid:
    """The grid of a weight (N, K): see the module. Raises QuantizationError for NaN, infinities and scales that the
    dtype cannot hold."""
    if not np.isfinite(real).all():
        raise QuantizationError("the weights are NaN or infinite: check the float model, or keep the layer in float")
    rows = max(1, _MOST_AT_ONCE // max(1, real.shape[1]))
    parts = [
        GRIDS[how](_Groups.of(np.asarray(real[start : start + rows], np.float64), form))
        for start in range(0, len(real), rows)
    ]
    scale = np.concatenate([part.scale for part in parts])
    return replace(parts[0], scale=scale, zero_point=np.concatenate([part.zero_point for part in parts]))


# ---- the groups of a weight --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Groups:
    """values: (N, G, size), the last group filled up with zeros; inside: (G, size), whether a value is one"""

    form: GroupFormat
    depth: int
    values: np.ndarray
    inside: np.ndarray

    @classmethod
    def of(cls, real: np.ndarray, form: GroupFormat) -> _Groups:
        rows, depth = real.shape
        size = form.group(depth)
        count = groups_of(depth, size)
        values = np.zeros((rows, count * size))
        values[:, :depth] = real
        inside = (np.arange(count * size) < depth).reshape(count, size)
        return cls(form, depth, values.reshape(rows, count, size), inside)

    def grid(self, scale: np.ndarray, zero_point: np.ndarray, real_zeros: bool = False) -> Grid:
        return Grid(self.form, self.depth, scale, zero_point, real_zeros)

    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """min(w, 0) and max(w, 0) of each group."""
        return self.values.min(axis=2, initial=0.0), self.values.max(axis=2, initial=0.0)

    def integers(self, scale: np.ndarray, zero_point: np.ndarray) -> np.ndarray:
        steps = self.values / scale[..., None] + zero_point[..., None]
        return np.clip(np.rint(steps), *self.form.limits)

    def errors(self, scale: np.ndarray, zero_point: np.ndarray) -> np.ndarray:
        """w − ŵ, 0 outside of the weight: (N, G, size)."""
        found = (self.integers(scale, zero_point) - zero_point[..., None]) * scale[..., None]
        return np.asarray((self.values - found) * self.inside)

    def covering(self, factor: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """Scale and integer zero point of the range of each group, shrunken by a factor."""
        low, high = self.form.limits
        least, greatest = (end * factor for end in self.ends())
        if self.form.symmetric:
            scale = _rounded(2 * np.maximum(-least, greatest) / (high - low), self.form)
            return scale, np.zeros_like(scale)
        scale = _rounded((greatest - least) / (high - low), self.form)
        return scale, np.clip(np.rint(low - least / scale), low, high)


def _rounded(scale: np.ndarray, form: GroupFormat) -> np.ndarray:
    """Scales as they are stored; 1 where they vanish, since all values of such a group are 0 in that dtype."""
    found = _read(_floats(scale, form))
    if not np.isfinite(found).all():
        raise QuantizationError(
            f"a group's scale of {scale.max():.3g} does not fit {form.scale_dtype}: choose other group_scales"
        )
    return np.where(found == 0, 1.0, found)


def _floats(values: np.ndarray, form: GroupFormat) -> np.ndarray:
    if form.scale_dtype == "bfloat16":
        return bfloat16.bits_of(values.astype(np.float32))
    with np.errstate(over="ignore"):
        return values.astype(form.scale_dtype)


def _read(stored: np.ndarray) -> np.ndarray:
    return (bfloat16.from_bits(stored) if stored.dtype == np.uint16 else stored).astype(np.float64)


# ---- grids -------------------------------------------------------------------------------------------------------


def _max(groups: _Groups) -> Grid:
    return groups.grid(*groups.covering())


def _mse(groups: _Groups) -> Grid:
    best = groups.covering()
    least = np.square(groups.errors(*best)).sum(axis=2)
    for factor in _SHRINKING[1:]:
        tried = groups.covering(factor)
        squares = np.square(groups.errors(*tried)).sum(axis=2)
        best = _replaced(best, tried, squares < least)
        least = np.minimum(squares, least)
    return groups.grid(*best)


def _replaced(
    old: tuple[np.ndarray, np.ndarray], new: tuple[np.ndarray, np.ndarray], better: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Scales and zero points, the new ones of groups where they are better."""
    return np.where(better, new[0], old[0]), np.where(better, new[1], old[1])


def _hqq(groups: _Groups) -> Grid:
    """Each group keeps the round with the least Σ|e|^p, of those whose squared error is not above that of "max"."""
    form = groups.form
    real_zeros = form.real_zeros and not form.symmetric
    best = current = groups.covering()
    errors = groups.errors(*best)
    most, least = np.square(errors).sum(axis=2), (np.abs(errors) ** _POWER).sum(axis=2)
    for number in range(_ROUNDS):
        current = _refined(groups, *current, _BETA * _GROWTH**number, real_zeros)
        errors = groups.errors(*current)
        cost = (np.abs(errors) ** _POWER).sum(axis=2)
        better = (cost < least) & (np.square(errors).sum(axis=2) <= most)
        best = _replaced(best, current, better)
        least = np.where(better, cost, least)
    if real_zeros:
        best = best[0], _read(_floats(best[1], form))
    return groups.grid(*best, real_zeros=real_zeros)


def _refined(
    groups: _Groups, scale: np.ndarray, zero_point: np.ndarray, beta: float, real_zeros: bool
) -> tuple[np.ndarray, np.ndarray]:
    """One round: the outliers of the error, then what fits the weights without them."""
    form, inside = groups.form, groups.inside
    steps = groups.errors(scale, zero_point) / scale[..., None]
    size = np.abs(steps)
    threshold = np.where(size > 0, size, 1.0) ** (_POWER - 1) / beta
    kept = groups.values - np.sign(steps) * np.maximum(size - threshold, 0.0) * scale[..., None]
    integers = groups.integers(scale, zero_point)
    if real_zeros:
        offsets = (integers - kept / scale[..., None]) * inside
        return scale, np.clip(offsets.sum(axis=2) / inside.sum(axis=1), *form.limits)
    steps = (integers - zero_point[..., None]) * inside
    squares = np.square(steps).sum(axis=2)
    fit = (steps * kept).sum(axis=2) / np.where(squares > 0, squares, 1.0)
    return _rounded(np.where((squares > 0) & (fit > 0), fit, scale), form), zero_point


GRIDS: dict[str, Callable[[_Groups], Grid]] = {"max": _max, "mse": _mse, "hqq": _hqq}
