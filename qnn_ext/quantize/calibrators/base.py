"""What all calibrators share: their settings, how they collect, and their registry by `calibrate_mode`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from ...errors import QuantizationError
from ..histogram import Histogram, extremes
from ..ranges import Range

Position: TypeAlias = int | tuple[int, int]
"""Of a batch in the data set, or the number of its shard and its position there: what sorts batches in their order."""


@dataclass(frozen=True)
class Settings:
    """What a calibrator has to know: the integers that a range is for, and the parameters of its method.

    dtype, bits, symmetric, power_of_two: of the QParams, as `ranges.qparams_of` takes them
    bins, percentile, momentum, global_scale: see QConfig
    batch_size: samples in each batch
    """

    dtype: str = "int8"
    bits: int = 8
    symmetric: bool = True
    power_of_two: bool = False
    bins: int = 2048
    percentile: float = 99.99
    momentum: float = 0.9
    global_scale: float = 8.0
    batch_size: int = 1


class Statistic(Protocol):
    """What is recorded of one site's values. Statistics of two parts of the data merge into that of the whole."""

    def merge(self, other: Any) -> None:
        """Add the values that another statistic of the same kind has seen."""


Kept = TypeVar("Kept", bound=Statistic)


class Calibrator(ABC, Generic[Kept]):
    """Collects statistics of any number of sites, array by array, and turns each into a Range.

    needs_data: whether `collect` must have been called for a site before `threshold`
    """

    mode: ClassVar[str]
    needs_data: ClassVar[bool] = True

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.statistics: dict[str, Kept] = {}

    def collect(self, site: str, array: np.ndarray, batch: Position | None = None) -> None:
        """Add the values of one site for one batch of data.

        array: float tensor of any shape; batch: its position, by default one after this site's last in the data set

        Raises QuantizationError naming the site if there are NaN or infinities.
        """
        array = np.asarray(array)
        if not array.size:
            return
        try:
            if site not in self.statistics:
                self.statistics[site] = self._new()
            self._add(self.statistics[site], array, batch)
        except QuantizationError as error:
            where = "" if batch is None else f" in batch {batch[1] if isinstance(batch, tuple) else batch}"
            raise QuantizationError(f"site {site!r}{where}: {error}") from None

    def merge(self, other: Calibrator[Kept]) -> None:
        """Add what another calibrator of the same kind has collected."""
        for site, statistic in other.statistics.items():
            if site not in self.statistics:
                self.statistics[site] = self._new()  # the other's arrays may be in memory that is only for reading
            self.statistics[site].merge(statistic)

    def threshold(self, site: str) -> Range:
        """The range of a site. Raises QuantizationError when nothing was collected for it."""
        if not self.needs_data:
            return self._range(self._new())
        if site not in self.statistics:
            raise QuantizationError(
                f"site {site!r}: the data set is empty, so calibrate_mode={self.mode!r} cannot find a range"
            )
        return self._range(self.statistics[site])

    @abstractmethod
    def _new(self) -> Kept:
        """The statistic of a site before any data."""

    @abstractmethod
    def _add(self, statistic: Kept, array: np.ndarray, batch: Position | None) -> None:
        """Add one array to the statistic."""

    @abstractmethod
    def _range(self, statistic: Kept) -> Range:
        """The range derived from the statistic."""


class HistogramCalibrator(Calibrator[Histogram]):
    """A calibrator that decides by the histogram of all values."""

    def _new(self) -> Histogram:
        return Histogram(self.settings.bins)

    def _add(self, statistic: Histogram, array: np.ndarray, batch: Position | None) -> None:
        statistic.add(array)

    def _clipped(self, statistic: Histogram, low: float, high: float) -> Range:
        """A range within the extremes of the data, with the share of values outside it."""
        low, high = sorted(
            (max(low, statistic.low), min(high, statistic.high))
        )  # if both are in one bin, they may be swapped
        return Range(low, high, self.mode, {"clipped": clipped_share(statistic, low, high)})


class Extremes:
    """The smallest and the largest value in each batch."""

    def __init__(self) -> None:
        self.batches: dict[Position, tuple[float, float]] = {}

    def add(self, array: np.ndarray, batch: Position | None) -> None:
        """Add one array; raises QuantizationError for NaN and infinities."""
        self.note(*extremes(array), batch)

    def note(self, low: float, high: float, batch: Position | None) -> None:
        """Add an array with these extremes."""
        index: Position = len(self.batches) if batch is None else batch
        known = self.batches.get(index, (low, high))
        self.batches[index] = min(low, known[0]), max(high, known[1])

    def merge(self, other: Extremes) -> None:
        """Add the batches that another process has seen."""
        self.batches.update(other.batches)

    def in_order(self) -> np.ndarray:
        """float64 (batches, 2): low and high of each batch in the order of the data set."""
        return np.array([self.batches[index] for index in sorted(self.batches)], np.float64)


class ExtremesCalibrator(Calibrator[Extremes]):
    """A calibrator that decides by the extremes of each batch alone."""

    def _new(self) -> Extremes:
        return Extremes()

    def _add(self, statistic: Extremes, array: np.ndarray, batch: Position | None) -> None:
        statistic.add(array, batch)


def clipped_share(statistic: Histogram, low: float, high: float) -> float:
    """The share of values outside low … high, to the precision of a bin."""
    if not statistic.total or not statistic.width:
        return 0.0
    centers = statistic.centers
    margin = statistic.width / 2
    outside = statistic.counts[(centers + margin <= low) | (centers - margin > high)].sum()
    return float(outside) / statistic.total


CALIBRATORS: dict[str, type[Calibrator]] = {}


def calibrator(mode: str) -> Callable[[type[Calibrator]], type[Calibrator]]:
    """Register the decorated class for a `calibrate_mode`."""

    def register(cls: type[Calibrator]) -> type[Calibrator]:
        cls.mode = mode
        CALIBRATORS[mode] = cls
        return cls

    return register


def make_calibrator(mode: str, settings: Settings | None = None) -> Calibrator:
    """The calibrator of a `calibrate_mode`. Raises QuantizationError if there is none of that name."""
    if mode not in CALIBRATORS:
        raise QuantizationError(f"calibrate_mode must be one of {', '.join(map(repr, CALIBRATORS))}, found {mode!r}")
    return CALIBRATORS[mode](settings)
