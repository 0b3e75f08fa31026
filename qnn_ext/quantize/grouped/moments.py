"""Second moments of what weights are multiplied by: H = Σ xᵀx over the rows x of a layer's data."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...errors import QuantizationError
from ...module import QnnModule
from ...op.base import shape_of
from ...passes.rewrite import bindings_of
from ..dataset import Batches
from ..engines import engine_of
from ..shards import batch_named
from ..switchable import switchable

_ROWS = 256  # that are multiplied at once
_MOST_ELEMENTS = 1 << 27  # of the H that are collected in one pass over the data


def second_moments(module: QnnModule, tensors: Iterable[str], data: Batches) -> dict[str, np.ndarray]:
    """H of each tensor named, whose last axis is K: float64 (K, K).

    States begin at their initial values and go on from batch to batch. Raises QuantizationError for data that are
    empty, do not fit, or overflow in the model.
    """
    found: dict[str, np.ndarray] = {}
    names = list(dict.fromkeys(tensors))
    while names:
        taken, names = _as_many_as_fit(module, names)
        engine = engine_of(switchable(module, [], taken).module)
        engine.reset_state()
        sums = {name: _Sum() for name in taken}
        for index, batch in enumerate(data):
            with batch_named(index):
                arrays = list(engine.run(list(batch)).values())[len(module.outputs) :]
            for name, array in zip(taken, arrays, strict=True):
                sums[name].add(array.reshape(-1, array.shape[-1]))
        found.update({name: _finite(total.value, name) for name, total in sums.items()})
    return found


def _as_many_as_fit(module: QnnModule, names: list[str]) -> tuple[list[str], list[str]]:
    function = module.ir["main"]
    variables = [*function.params, *(binding.var for binding in bindings_of(function))]
    depths = {str(var.name): shape_of(var)[-1] for var in variables if str(var.name) in names}
    sizes = np.cumsum([depths[name] ** 2 for name in names])
    count = max(1, int(np.searchsorted(sizes, _MOST_ELEMENTS, "right")))
    return names[:count], names[count:]


def _finite(moment: np.ndarray, name: str) -> np.ndarray:
    if not np.isfinite(moment).all():
        raise QuantizationError(
            f"{name!r}: its values are NaN, infinite or too large on the data: check the float model"
        )
    return moment


class _Sum:
    """Σ xᵀx of rows that come a few at a time."""

    def __init__(self) -> None:
        self._value: np.ndarray | float = 0.0
        self._rows: list[np.ndarray] = []

    def add(self, rows: np.ndarray) -> None:
        self._rows.append(np.array(rows, np.float64))
        if sum(map(len, self._rows)) >= _ROWS:
            self._flush()

    def _flush(self) -> None:
        rows = np.concatenate(self._rows)
        self._rows = []
        with np.errstate(all="ignore"):
            self._value = self._value + rows.T @ rows

    @property
    def value(self) -> np.ndarray:
        if self._rows:
            self._flush()
        return np.asarray(self._value)
