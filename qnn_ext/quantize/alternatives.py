"""The ways to find a model's ranges that "auto" compares, and the tables they give.

They include the settings of ONNX Runtime's static quantization: MinMax, Percentile and Entropy, symmetric or not, with
a scale for each channel of a weight or one for all. MinMax gets room for values that few samples have not shown (see
`calibrators.extremes`). The percentile is 99.999. Entropy is that of "kl_divergence", which takes the extremes where a
histogram has no more bins than levels: by default ONNX Runtime's has 128 of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .annotate import Site
from .calibrators import Auto
from .ranges import Range

Table = dict[str, Range]  # site → range


@dataclass(frozen=True)
class Choice:
    """One way to find ranges.

    mode:       of all activations, a calibrator of histograms, "minmax" or "extrapolated"
    percentile: of that mode; None: the user's
    centered:   whether the ranges of asymmetric integers are made symmetric: their zero point is 0, for uint8 128
    per_tensor: whether the channels of each weight share one scale
    """

    mode: str
    percentile: float | None = None
    centered: bool = False
    per_tensor: bool = False


USUAL = Choice("extrapolated")  # unless another is better
SEEN = Choice("minmax")  # the same without room for other values
COMPARED = (
    *(
        Choice(mode, percentile, centered, per_tensor)
        for per_tensor in (False, True)
        for centered in (False, True)
        for mode, percentile in (("extrapolated", None), ("percentile", 99.999), ("kl_divergence", None))
    ),
    Choice("mse"),
    Choice("percentile"),
    Choice("entropy"),
)


class Alternatives:
    """The table of each choice, made when it is asked for.

    auto:   the calibrator of each site whose range is chosen; ranges: those of all sites; found: all sites
    """

    def __init__(self, auto: Mapping[str, Auto], ranges: Table, found: Sequence[Site]) -> None:
        self._auto, self._ranges = auto, ranges
        self._shared = _per_tensor(found)
        self._known: dict[tuple[str, float | None], Table] = {}

    def __getitem__(self, choice: Choice) -> Table:
        key = choice.mode, choice.percentile
        if key not in self._known:
            self._known[key] = {
                name: one.by(*key, name) if name in one.statistics else self._ranges[name]
                for name, one in self._auto.items()
            }
        own = _centered(self._known[key], self._auto) if choice.centered else self._known[key]
        return {**self._ranges, **(self._shared if choice.per_tensor else {}), **own}


def identity(table: Table) -> object:
    """Equal for tables with the same ranges, however they were found."""
    return frozenset(
        (name, np.asarray(one.low).tobytes(), np.asarray(one.high).tobytes()) for name, one in table.items()
    )


def _per_tensor(found: Sequence[Site]) -> Table:
    """Weights with the largest value of all channels as the range of each, where the user asked for nothing else."""
    table = {}
    for site in found:
        if site.role == "weight" and site.calibrate_mode == "max" and site.axis is not None and site.value is not None:
            largest = np.full(site.shape[site.axis], np.abs(site.value).max(), np.float64)
            table[site.name] = Range(-largest, largest, "max per tensor")
    return table


def _centered(table: Table, auto: Mapping[str, Auto]) -> Table:
    """Ranges whose zero point is in the middle; with asymmetric integers −half … half − 1, the first remains unused."""
    new = dict(table)
    for name, one in auto.items():
        if not one.settings.symmetric:
            largest = max(-float(table[name].low), float(table[name].high))
            half = 2 ** (one.settings.bits - 1)
            new[name] = Range(-largest * half / (half - 1), largest, table[name].method, table[name].extra)
    return new
