"""Collection: an instrumented model runs over the data, in this process or in several, and calibrators see its tensors.

The result does not depend on the number of processes or machines: statistics of parts merge into those of the whole.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ..errors import QuantizationError
from ..module import TensorSpec
from ..processes.channel import Closed, to_child
from ..processes.children import Child, ended_with
from ..processes.cores import default_threads
from ..running.engine import Engine
from .calibrators import Calibrator, Position
from .dataset import ShardedBatches, batches
from .engines import Runner
from .shards import batch_named, shard_named

Batch: TypeAlias = Sequence[np.ndarray]

_WORTH_THREADS = 1 << 18  # elements that take longer to count than a thread takes to start


@dataclass(frozen=True)
class Reader:
    """The sites of each output of the model, and the calibrator that reads each site."""

    sites: tuple[tuple[str, ...], ...]
    calibrators: Mapping[str, Calibrator]

    def read(self, engine: Runner, batches: Iterable[tuple[Position, Batch]]) -> Iterator[None]:
        """Run the model on the numbered batches and feed its tensors to the calibrators; yields after each batch.

        Large tensors are counted by as many threads as the model runs on. Raises QuantizationError, InputError.
        """
        with ThreadPoolExecutor(engine.num_threads) as pool:
            for index, batch in batches:
                with batch_named(index[-1] if isinstance(index, tuple) else index):
                    arrays = list(engine.run(tuple(batch)).values())
                several = sum(array.size for array in arrays) > _WORTH_THREADS
                show = pool.map if several else map
                for _ in show(self._show, self.sites, arrays, repeat(index)):
                    pass
                yield

    def _show(self, names: Sequence[str], array: np.ndarray, index: Position) -> None:
        for name in names:
            self.calibrators[name].collect(name, array, index)

    def fresh(self) -> Reader:
        """The same reader before any data. Its calibrators may have seen other sites, which nobody shall add again."""
        new = {id(one): type(one)(one.settings) for one in self.calibrators.values()}
        return Reader(self.sites, {name: new[id(one)] for name, one in self.calibrators.items()})

    def merge(self, other: Reader) -> None:
        """Add what the same reader has collected in another process."""
        merged = set()
        for name, calibrator in self.calibrators.items():
            if id(calibrator) not in merged:
                calibrator.merge(other.calibrators[name])
                merged.add(id(calibrator))


def collect(
    engine: Runner,
    reader: Reader,
    batches: Iterable[Batch],
    num_workers: int = 1,
    advance: Callable[[], None] = lambda: None,
) -> None:
    """Run the model over all batches; afterwards the reader's calibrators hold the statistics.

    engine:  the instrumented model, whose outputs are the tensors of `reader.sites`; an Engine for several workers. A
             model with states must have one worker, since its batches form a sequence
    advance: called after each batch

    Raises QuantizationError, InputError. However this ends, no process and no file is left behind.
    """
    if num_workers == 1:
        engine.reset_state()
        for _ in reader.read(engine, enumerate(batches)):
            advance()
        return
    assert isinstance(engine, Engine), "several processes load it from a file"
    source = _Source(batches, advance)
    with _workers(engine, reader.fresh(), num_workers) as workers, ThreadPoolExecutor(num_workers) as pool:
        try:
            for done in as_completed([pool.submit(_read_all, worker, source) for worker in workers]):
                reader.merge(done.result())
        except BaseException:
            for worker in workers:
                worker.kill()  # also ends the threads that wait for them
            raise


def collect_shards(
    engine: Engine, reader: Reader, samples: ShardedBatches, advance: Callable[[], None] = lambda: None
) -> None:
    """As `collect`, on each shard where their map calls. Raises what that raises."""
    shards = samples.dataset
    assert shards.map is not None
    task = partial(_collected, engine.clone(shards.num_threads), reader.fresh(), samples.inputs)
    samples.count = 0
    for found, count in shards.map(task, list(enumerate(shards.shards))):
        reader.merge(found)
        samples.count += count
        for _ in range(count):
            advance()


def _collected(
    engine: Engine, reader: Reader, inputs: Sequence[TensorSpec], item: tuple[int, Any]
) -> tuple[Reader, int]:
    """What the reader collects on one shard, and the number of its batches."""
    index, shard = item
    own = reader.fresh()  # a map may call several times in one process
    with shard_named(index):
        numbered = (((index, position), batch) for position, batch in enumerate(batches(shard, inputs)))
        return own, sum(1 for _ in own.read(engine, numbered))


class _Source:
    """The batches with their positions, taken by several threads."""

    def __init__(self, batches: Iterable[Batch], advance: Callable[[], None]) -> None:
        self._iterator = enumerate(batches)
        self._lock = threading.Lock()
        self._advance = advance

    def take(self) -> tuple[int, Batch] | None:
        """The next batch, None at the end."""
        with self._lock:
            found = next(self._iterator, None)
        if found is not None:
            self._advance()
        return found


def _read_all(worker: Child, source: _Source) -> Reader:
    """Send batches to a process until there are no more; returns what it has collected. Raises what it raised."""
    channel = to_child(worker)
    with suppress(Closed):  # it has reported why, if it could
        while (item := source.take()) is not None:
            channel.send(item)
        channel.send(None)
    try:
        reply = channel.receive()
    except Closed:
        raise QuantizationError(
            f"a calibration process ended early with {ended_with(worker.wait())}: if memory ran out, "
            "use fewer num_workers or a smaller calibrate_chunk_by"
        ) from None
    if isinstance(reply, BaseException):
        raise reply
    return reply


@contextmanager
def _workers(engine: Engine, reader: Reader, count: int) -> Iterator[list[Child]]:
    """`count` processes, each with the model loaded; afterwards all are ended and the model's file is removed."""
    workers: list[Child] = []
    with tempfile.TemporaryDirectory(prefix="qnn_ext_calibrate_") as folder:
        path = Path(folder) / "model.qnn"
        engine.save(path)
        try:
            for _ in range(count):
                # TVM imports PyTorch if it is installed: two seconds and 200 MB that a worker does not need
                workers.append(Child("qnn_ext.quantize.worker", folder, without=["torch"]))
            setup = (str(path), max(1, default_threads() // count), reader)
            for worker in workers:
                with suppress(Closed):  # it is missed when it shall answer
                    to_child(worker).send(setup)
            yield workers
        finally:
            for worker in workers:
                worker.end()
