"""Random numbers as found in quantized models: shapes, scales, zero points, weights and inputs, including extremes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .recipe import Recipe

FLOAT32 = np.finfo(np.float32)
SPECIAL_FLOATS = np.array(
    [
        0.0,
        -0.0,
        FLOAT32.tiny,
        -FLOAT32.tiny,
        FLOAT32.smallest_subnormal,
        1e-40,
        -1e-40,
        0.5,
        -0.5,
        1.5,
        2.5,
        1e6,
        -1e6,
    ],
    np.float32,
)
LARGEST_INPUT = 1e6  # for floats in graphs that are not hostile
UNDEFINED_FLOATS = np.array([np.nan, np.inf, -np.inf, 1e10, -1e10, FLOAT32.max, FLOAT32.min], np.float32)


class Draw:
    """A source of random numbers as prescribed by a recipe; `begin` starts a step's own sequence."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.rng = np.random.default_rng(recipe.seed)
        # shared by all scales of a graph, so that their ratios, the multipliers, stay ordinary
        self.unit = 2.0 ** int(self.rng.integers(-99, 99)) if recipe.scales == "extreme" else 1.0

    def begin(self, seed: int) -> None:
        """Everything drawn from now on follows from `seed` alone."""
        self.rng = np.random.default_rng(seed)

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def pick(self, options: Sequence[Any]) -> Any:
        """One of the options."""
        return options[int(self.rng.integers(len(options)))]

    def between(self, low: int, high: int) -> int:
        """An integer, both ends included."""
        return int(self.rng.integers(low, high, endpoint=True))

    def extent(self, most: int | None = None) -> int:
        """A dimension: often one, a prime, or close to a register's width."""
        limit = self.recipe.size if most is None else min(most, self.recipe.size)
        return min(limit, int(self.pick([1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 19, 31, 33, 40])))

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        """Extents with no more than 4,000 elements in total."""
        rank = self.between(1, 5) if rank is None else rank
        dims: list[int] = []
        for _ in range(rank):
            dims.append(self.extent(max(1, 4000 // max(1, int(np.prod(dims))))))
        return tuple(dims)

    # ---- quantization parameters ---------------------------------------------------------------------------------

    def scale(self, about: float = 0.05) -> float:
        """A scale near `about` times the graph's unit; in extreme graphs sometimes one far from all others."""
        if self.recipe.scales == "power_of_two":
            return float(2.0 ** np.round(np.log2(about) + self.rng.integers(-2, 2, endpoint=True)))
        value = about * float(np.exp(self.rng.normal(0, 0.7)))
        if self.recipe.scales == "extreme" and self.chance(0.2):
            value *= 10.0 ** self.rng.uniform(-12, 12)
        return float(np.float32(np.clip(value, 1e-38, 1e38)))

    def zero_point(self, dtype: str) -> int:
        """A zero point at either end, in the middle, or anywhere."""
        info = np.iinfo(dtype)
        middle = (info.min + info.max + 1) // 2
        return int(self.pick([info.min, middle, info.max, self.between(info.min, info.max), middle + 3]))

    # ---- values --------------------------------------------------------------------------------------------------

    def integers(self, dtype: str, shape: Sequence[int], low: int | None = None, high: int | None = None) -> np.ndarray:
        """Uniform, or only the ends and zero, or uniform with a quarter at the ends, or all the same value."""
        info = np.iinfo(dtype)
        low, high = info.min if low is None else low, info.max if high is None else high
        values = self.rng.integers(low, high, tuple(shape), dtype=np.int64, endpoint=True)
        ends = np.array([low, high, min(max(0, low), high)], np.int64)
        manner = self.between(0, 9)
        if manner == 0:
            values = ends[self.rng.integers(0, 3, tuple(shape))]
        elif manner == 1:
            values = np.full(tuple(shape), self.pick(ends), np.int64)
        elif manner < 5:
            values = np.where(self.rng.random(tuple(shape)) < 0.25, ends[self.rng.integers(0, 3, tuple(shape))], values)
        return np.asarray(values).astype(dtype)

    def floats(self, shape: Sequence[int], spread: float = 2.0) -> np.ndarray:
        """Normal values, quantized to 1/64 in graphs whose sums must be exact, mixed with special ones."""
        values = self.rng.normal(0, spread, tuple(shape)).astype(np.float32)
        if self.recipe.scales == "power_of_two":
            return np.asarray(np.clip(np.round(values * 64), -2048, 2048) / 64, np.float32)
        pool = np.concatenate([SPECIAL_FLOATS, UNDEFINED_FLOATS]) if self.recipe.hostile else SPECIAL_FLOATS
        if self.chance(0.5):
            values = np.where(self.rng.random(tuple(shape)) < 0.2, self.rng.choice(pool, tuple(shape)), values)
        return np.asarray(values, np.float32)

    def array(self, dtype: str, shape: Sequence[int], low: int | None = None, high: int | None = None) -> np.ndarray:
        """Values of any dtype."""
        if dtype.startswith("float"):
            with np.errstate(over="ignore"):
                return self.floats(shape).astype(dtype)
        if dtype == "bool":
            return self.rng.integers(0, 2, tuple(shape)).astype(bool)
        return self.integers(dtype, shape, low, high)

    def weights(self, dtype: str, shape: Sequence[int]) -> np.ndarray:
        """Weights: sometimes only the ends and zero, sometimes all zero; int8 ones sometimes include −128."""
        info = np.iinfo(dtype)
        low = info.min if self.chance(0.3) else info.min + 1
        return self.integers(dtype, shape, low, info.max)
