"""Interval arithmetic for tensors of which rounding leaves only bounds known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

UNIT = 2.0**-24  # the relative error of one float32 rounding
SMALLEST = 2.0**-125  # twice the least normal number: below this, errors are absolute
LARGEST = float(torch.finfo(torch.float32).max)


@dataclass(frozen=True)
class Interval:
    """Every element lies between `low` and `high`, inclusive; where either is NaN, it may be anything.

    Both are one and the same tensor where the value is known.

    rescaled: whether ours may hold it as integers with a scale that is not a power of two, where it rounds products of
              scales
    """

    low: torch.Tensor
    high: torch.Tensor
    rescaled: bool = False

    @classmethod
    def point(cls, value: Any) -> Interval:
        tensor = torch.as_tensor(value)
        return cls(tensor, tensor)

    @classmethod
    def about(cls, centre: torch.Tensor, radius: torch.Tensor) -> Interval:
        """centre ± radius, both float64, as float32 rounded outwards; beyond float32 it may be anything."""
        low, high = (centre - radius).float(), (centre + radius).float()
        low = torch.where(low.double() > centre - radius, low.nextafter(torch.tensor(-torch.inf)), low)
        high = torch.where(high.double() < centre + radius, high.nextafter(torch.tensor(torch.inf)), high)
        beyond = ~(low.isfinite() & high.isfinite())
        return cls(torch.where(beyond, torch.nan, low), torch.where(beyond, torch.nan, high))

    @property
    def is_point(self) -> bool:
        return self.low is self.high

    @property
    def centre(self) -> torch.Tensor:
        return (self.low.double() + self.high.double()) / 2

    @property
    def radius(self) -> torch.Tensor:
        return (self.high.double() - self.low.double()) / 2

    @property
    def size(self) -> torch.Tensor:
        """The greatest |value|."""
        return torch.maximum(self.low.double().abs(), self.high.double().abs())

    def widened(self, relative: float, absolute: float = 0.0) -> Interval:
        """Widened by an error of relative · |value| + absolute."""
        middle, spread = self.centre, self.radius
        return Interval.about(middle, spread + relative * self.size + absolute + SMALLEST)

    def mapped(self, function: Callable[[torch.Tensor], Any]) -> Interval:
        """A function that is increasing, or only moves values, applied at both ends."""
        low = function(self.low)
        return Interval(low, low if self.is_point else function(self.high), self.rescaled)


def hull(tensors: Sequence[torch.Tensor]) -> Interval:
    """From the least to the greatest of several tensors, NaN where one is."""
    low, high = tensors[0], tensors[0]
    for tensor in tensors[1:]:
        low, high = torch.minimum(low, tensor), torch.maximum(high, tensor)
    return Interval(low, high)


def anything(like: torch.Tensor) -> Interval:
    """Every value of the dtype."""
    if like.dtype.is_floating_point:
        unknown = torch.full(like.shape, torch.nan, dtype=like.dtype)
        return Interval(unknown, unknown.clone())
    if like.dtype == torch.bool:
        return Interval(torch.zeros_like(like), torch.ones_like(like))
    info = torch.iinfo(like.dtype)
    return Interval(*(torch.full(like.shape, end, dtype=like.dtype) for end in (info.min, info.max)))


# ---- sums --------------------------------------------------------------------------------------------------------


def grain(x: Interval) -> float:
    """The greatest power of two that divides every element; infinity for zeros, 0 where it is unknown or does not make
    sums exact."""
    if not x.is_point or x.rescaled:
        return 0.0
    values = x.low.double().flatten()
    values = values[(values != 0) & values.isfinite()]
    if not values.numel():
        return torch.inf
    mantissa, exponent = torch.frexp(values)
    digits = (mantissa * 2.0**53).long()
    lowest = torch.frexp((digits & -digits).double())[1] - 1
    return float(2.0 ** int((exponent + lowest - 53).min()))


def added(
    centre: torch.Tensor, spread: torch.Tensor, terms: torch.Tensor, count: int, unit: float, steps: int = 8
) -> Interval:
    """A sum of `count` terms in any order, rounded after each: |error| ≤ (count + steps) · u · Σ|terms|.

    spread: how much the sum may vary within the terms' own bounds
    terms:  Σ|terms|
    unit:   all terms are multiples of it: while Σ|terms| is below 2²⁴ units, float32 sums are exact
    steps:  roundings besides the additions: of products, dequantized operands, and of the scale of an integer sum
    """
    error = (count + steps) * UNIT * terms + count * SMALLEST
    exact = terms <= 2.0**24 * unit
    rounded = Interval.about(centre, spread + torch.where(exact, 0.0, error))
    beyond = terms > LARGEST
    return Interval(torch.where(beyond, torch.nan, rounded.low), torch.where(beyond, torch.nan, rounded.high))


def bilinear(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    one: Interval,
    two: Interval,
    count: int,
    addend: Interval | None = None,
) -> Interval:
    """A sum of `count` products, as in convolutions and matrix products, plus a bias; see `added`."""
    if not (one.size.isfinite().all() and two.size.isfinite().all()):
        return anything(function(one.low, two.low))
    centre, terms = function(one.centre, two.centre), function(one.size, two.size)
    spread = terms - function(one.centre.abs(), two.centre.abs())
    units = grain(one), grain(two)
    unit = units[0] * units[1] if all(units) else 0.0
    if addend is not None:
        centre, terms = centre + addend.centre, terms + addend.size
        spread, unit = spread + addend.radius, min(unit, grain(addend))
    known = one.is_point and two.is_point and (addend is None or addend.is_point)
    return added(centre, spread if not known else spread * 0, terms, count + 1, unit)
