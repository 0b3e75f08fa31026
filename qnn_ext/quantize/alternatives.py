"""The ways to find a model's ranges that "auto" compares, and the tables they give.

They include the settings of ONNX Runtime's static quantization: MinMax, Percentile and Entropy, symmetric or not, with
a scale for each channel of a weight or one for all. Its percentile is 99.999. Its Entropy is that of "kl_divergence",
which takes the extremes where a histogram has no more bins than levels: by default ONNX Runtime's has 128 of each.
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

    mode:       of all activations, a calibrator of histograms or "minmax"
    percentile: of that mode; None: the user's
    centered:   whether the ranges of asymmetric integers are made symmetric: their zero point is 0, for uint8 128
    per_tensor: whether the channels of each weight share one scale
    """

    mode: str
    percentile: float | None = None
    centered: bool = False
    per_tensor: bool = False


USUAL = tuple(
    Choice(mode, percentile, centered, per_tensor)
    for per_tensor in (False, True)
    for centered in (False, True)
    for mode, percentile in (("minmax", None), ("percentile", 99.999), ("kl_divergence", None))
)
COMPARED = (*USUAL, Choice("mse"), Choice("percentile"), Choice("entropy"))


def alternatives(auto: Mapping[str, Auto], ranges: Table, found: Sequence[Site]) -> dict[Choice, Table]:
    """The table of each choice.

    auto:   the calibrator of each site whose range is chosen; ranges: those of all sites; found: all sites
    """
    shared = _per_tensor(found)
    known: dict[tuple[str, float | None], Table] = {}
    tables = {}
    for choice in COMPARED:
        key = choice.mode, choice.percentile
        if key not in known:
            known[key] = {
                name: one.by(*key, name) if name in one.statistics else ranges[name] for name, one in auto.items()
            }
        own = _centered(known[key], auto) if choice.centered else known[key]
        tables[choice] = {**ranges, **(shared if choice.per_tensor else {}), **own}
    return tables


def distinct(tables: Mapping[Choice, Table]) -> dict[Choice, Table]:
    """Those whose ranges differ from all before them."""
    found: dict[object, Choice] = {}
    for choice, table in tables.items():
        found.setdefault(_identity(table), choice)
    return {choice: tables[choice] for choice in found.values()}


def _identity(table: Table) -> object:
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
