"""A data set in shards, each of which is read where a `map` calls for it: in other processes, on other machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..errors import InputError, QuantizationError

Map = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
"""(function, items) → the function's result for each item, in any order."""


@dataclass(frozen=True)
class Shards:
    """A data set in parts, for `quantize`, `calibrate` and `accuracy`.

        folders = [f"/data/photos/{number:03}" for number in range(100)]
        integers = quantize.quantize(model, dataset=quantize.Shards(folders, qnn_ext.cluster.ray_map()))

    What is found on the shards is merged: ranges are those of a single process bit for bit, and accuracies too.

    shards:      data sets of any kind that the function takes, each cut into batches by itself; samples at the end of
                 a shard that do not fill a batch are left out of a calibration. Paths are read where the map calls
    map:         (function, items) → the function's results, in any order, such as `cluster.ray_map()` or the map of a
                 concurrent.futures executor; function, items and results must be picklable if it leaves this process.
                 None: all is read in this process, one shard after another
    num_threads: of a model in each call of the map

    A model with states, whose samples are a sequence, is calibrated in this process. So is what quantization reads of
    the data besides ranges: the first batches, 32 or of small models up to 256, to compare modes of calibration, and
    all of them if the configuration asks for bias_correction, weight_rounding or smooth.

    Raises QuantizationError if the shards are no list.
    """

    shards: Sequence[Any]
    map: Map | None = None
    num_threads: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.shards, (str, bytes)) or not isinstance(self.shards, Sequence) or not len(self.shards):
            raise QuantizationError(f"shards must be a list of data sets, found {self.shards!r:.80}")
        if self.num_threads < 1:
            raise QuantizationError(f"num_threads must be at least 1, found {self.num_threads}")


@contextmanager
def shard_named(index: int) -> Iterator[None]:
    """Errors about data say in which shard they are."""
    try:
        yield
    except (QuantizationError, InputError) as error:
        raise type(error)(f"shard {index}: {error}") from None


@contextmanager
def batch_named(index: int) -> Iterator[None]:
    """Errors about the values that a model takes say which batch holds them."""
    try:
        yield
    except InputError as error:
        raise InputError(f"batch {index} of the data set: {error}") from None
