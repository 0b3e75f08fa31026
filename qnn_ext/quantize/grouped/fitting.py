"""The integers of a weight in groups: on a grid, to the nearest or by GPTQ. NumPy alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..learned import LONGEST_ROW, best_rows, compensated, with_damping
from .grid import Grid, GroupFormat, grid_of


@dataclass(frozen=True)
class Fitted:
    """grid, integers: (N, K), and what they stand for"""

    grid: Grid
    integers: np.ndarray

    @property
    def values(self) -> np.ndarray:
        """float64 (N, K)."""
        return self.grid.values(self.integers)


def fitted(
    weight: np.ndarray,
    form: GroupFormat,
    scale: str = "max",
    rounding: str = "nearest",
    moment: np.ndarray | None = None,
) -> Fitted:
    """The integers of a weight (N, K).

    scale:    as `grid.grid_of` finds it
    rounding: "nearest", or "gptq": of that and the nearest, each row takes what has the smaller Δ·H·Δᵀ, with damping
    moment:   H (K, K) of what the weight is multiplied by; without it, and for K above LONGEST_ROW, integers are the
              nearest

    Raises QuantizationError for weights that are not finite.
    """
    real = np.asarray(weight, np.float64)
    grid = grid_of(real, form, scale)
    nearest = grid.integers(real)
    if rounding != "gptq" or moment is None or real.shape[1] > LONGEST_ROW:
        return Fitted(grid, nearest)
    damped = with_damping(moment[None])
    columns = grid.by_column(grid.scale)[None], grid.by_column(grid.zero_point)[None]
    learned = compensated(real[None], damped, *form.limits, *columns)[0]
    values = best_rows(real[None], damped, [grid.values(nearest)[None], grid.values(learned)[None]])[0]
    is_learned = (values == grid.values(learned)).all(axis=1, keepdims=True)
    return Fitted(grid, np.where(is_learned, learned, nearest))


def result_error(weight: np.ndarray, values: np.ndarray, moment: np.ndarray) -> float:
    """Σ Δ·H·Δᵀ over the rows: the squared error of the product on the data that H is of."""
    delta = values - weight
    return float(np.sum((delta @ moment) * delta))
