"""What balancing knows of a tensor's channels: their ends, how far other data go beyond them, and their energy."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..module import QnnModule
from ..passes.layout.forms import channels_last_order
from .annotate import annotate, sites
from .calibrators.extremes import gumbel_scale
from .channel_groups import Group
from .choose import comparable
from .config import QConfig
from .dataset import batch_size_of, batches
from .engines import shared_engine_of, shared_engines
from .measurable import measurable
from .shards import batch_named

_MOST_BATCHES = 64


@dataclass(frozen=True)
class ChannelValues:
    """What is known of the values of each channel: float64 (channels,).

    ends:   the largest of −x, and of x; scales: β of both
    square: the mean of x²; count: of how many values this is known
    """

    ends: tuple[np.ndarray, np.ndarray]
    scales: tuple[np.ndarray, np.ndarray]
    square: np.ndarray
    count: int

    @property
    def needed(self) -> tuple[np.ndarray, np.ndarray]:
        """The ends where rounding and clipping add least noise: R² / (12·255²) + 2·β² / N · exp(−(R − h) / β) with
        R − h = β·ln(12·255²·β / (N·h)), up to twice what was seen."""
        found = []
        for end, scale in zip(self.ends, self.scales, strict=True):
            ratio = np.divide(scale, end, out=np.zeros(len(end)), where=end > 0)
            growth = np.log(np.maximum(1.0, 12 * 255**2 * ratio / self.count))
            seen = np.maximum(end, 0.0)
            found.append(seen + np.minimum(growth * scale, seen))
        return found[0], found[1]

    def of(self, places: np.ndarray) -> ChannelValues:
        """Of some of the channels, in this order."""
        low, high = (end[places] for end in self.ends)
        of_low, of_high = (scale[places] for scale in self.scales)
        return ChannelValues((low, high), (of_low, of_high), self.square[places], self.count)

    def clipped(self, scales: np.ndarray, limits: tuple[float, float]) -> np.ndarray:
        """c: the mean square of what x loses where x/S is clipped to −limits[0] … limits[1]."""
        lost = np.zeros(len(scales))
        for end, scale, limit in zip(self.ends, self.scales, limits, strict=True):
            room = np.maximum(limit * scales - end, 0.0)
            ratio = np.divide(room, scale, out=np.full(len(scales), np.inf), where=scale > 0)
            lost += np.where(end > 0, 2 * scale**2 / self.count * np.exp(-ratio), 0.0)
        return lost


def channel_values(
    factored: QnnModule, groups: Sequence[Group], dataset: Any, config: QConfig
) -> tuple[dict[str, ChannelValues], np.ndarray]:
    """What is known of each tensor of these groups that is quantized, and Σ y² of each output, whatever single layers
    are kept in: the ranges that a search has found hold for the factors of its result. Inside `shared_engines` it takes
    the program that compares ranges."""
    axes = {name: along.axis for group in groups for name, along in group.tensors.items()}
    annotated = measurable(annotate(factored, replace(config, overrides={})))
    names = [site.name for site in sites(annotated) if site.role != "weight"]
    instrumented = comparable(annotated, {}, names)
    size = batch_size_of(factored.inputs)
    counts: dict[str, int] = defaultdict(int)
    lows: dict[str, list[np.ndarray]] = defaultdict(list)
    highs: dict[str, list[np.ndarray]] = defaultdict(list)
    squares: dict[str, list[np.ndarray]] = defaultdict(list)
    energies = np.zeros(len(factored.outputs))
    with shared_engines():
        engine = shared_engine_of(instrumented.module)
        for index, batch in enumerate(itertools.islice(batches(dataset, factored.inputs), _MOST_BATCHES)):
            with batch_named(index):
                arrays = list(engine.run(list(batch)).values())
            energies += [float(np.square(array, dtype=np.float64).sum()) for array in arrays[: len(energies)]]
            for of, channels_last, array in zip(instrumented.sites, instrumented.channels_last, arrays, strict=True):
                for name in of:
                    if name not in axes:
                        continue
                    axis = axes[name]
                    if channels_last:
                        axis = channels_last_order(array.ndim).index(axis + array.ndim)
                    rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
                    if rows.shape[1] <= size:
                        continue
                    lows[name].append(rows.min(axis=1))
                    highs[name].append(rows.max(axis=1))
                    squares[name].append(np.square(rows).mean(axis=1))
                    counts[name] += rows.shape[1]
    values = {}
    for name, count in counts.items():
        ends = -np.array(lows[name], np.float64), np.array(highs[name], np.float64)
        square = np.asarray(np.mean(squares[name], axis=0, dtype=np.float64))
        low, high = (end.max(axis=0) for end in ends)
        values[name] = ChannelValues((low, high), (gumbel_scale(ends[0]), gumbel_scale(ends[1])), square, count)
    return values, energies
