"""The memory plan: what lives at the same time never overlaps, and the plan is close to the largest live set."""

import time

import numpy as np
import pytest

from qnn_ext.compiling.program.memory import Constants, aligned, place
from qnn_ext.compiling.program.storage import ALIGNMENT, Storage


def _overlap(a: Storage, b: Storage) -> bool:
    live = a.first <= b.last and b.first <= a.last
    return live and a.offset < b.offset + b.size and b.offset < a.offset + a.size


@pytest.mark.parametrize("seed", range(20))
def test_live_storages_do_not_overlap(seed):
    rng = np.random.default_rng(seed)
    storages = []
    for _ in range(60):
        first = int(rng.integers(0, 50))
        last = first + int(rng.integers(0, 8))
        storages.append(Storage(int(rng.integers(1, 5000)), first=first, last=last))
    end = place(storages, 192)
    assert not any(_overlap(a, b) for i, a in enumerate(storages) for b in storages[:i])
    assert all(s.offset >= 192 and s.offset % ALIGNMENT == 0 and s.offset + s.size <= end for s in storages)
    live = max(sum(aligned(s.size) for s in storages if s.first <= step <= s.last) for step in range(60))
    assert live <= end - 192 <= 1.3 * live


@pytest.mark.parametrize("seed", range(5))
def test_tensors_of_several_tasks_have_their_middles_in_common(seed):
    rng = np.random.default_rng(seed)
    storages = [
        Storage(int(rng.integers(1, 5000)), first=step, last=step + int(rng.integers(1, 4))) for step in range(40)
    ]
    end = place(storages, 192, tasks=2)
    assert not any(_overlap(a, b) for i, a in enumerate(storages) for b in storages[:i])
    assert all(s.offset >= 192 and s.offset % ALIGNMENT == 0 and s.offset + s.size <= end for s in storages)
    middles = {round((s.offset + aligned(s.size) / 2) / (2 * ALIGNMENT)) for s in storages}
    assert len(middles) <= 2 * 5  # columns, where at most four or five live at a time


def test_a_chain_takes_two_neighbours():
    storages = [Storage(1000, first=step, last=step + 1) for step in range(10)]
    assert place(storages, 0) == 2 * aligned(1000)


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("lives", [2, 10_000])
def test_many_storages(tasks, lives):
    """Compared one by one with all that have a place, 5,000 took over 10 seconds."""
    storages = [Storage(64, first=step, last=step + lives) for step in range(5000)]
    started = time.process_time()
    assert place(storages, 0, tasks) == 64 * (3 if lives == 2 else 5000)
    assert time.process_time() - started < 5


def test_equal_constants_are_kept_once():
    arrays = [np.arange(100, dtype="int8"), np.ones((3, 5), "float32"), np.arange(100, dtype="int8")]
    storages = [Storage(array.nbytes, array) for array in arrays]
    constants = Constants()
    constants.add(storages[:1])
    constants.add(storages[1:])  # of another program
    blob = constants.array()
    assert storages[0].offset == storages[2].offset != storages[1].offset
    for storage, array in zip(storages, arrays, strict=True):
        assert storage.offset % ALIGNMENT == 0
        assert blob[storage.offset : storage.offset + array.nbytes].tobytes() == array.tobytes()


def test_no_constants():
    assert Constants().array().size == Constants().size > 0


def test_storages_that_have_a_place_keep_it():
    storages = [Storage(1000, first=step, last=step + 1) for step in range(4)]
    storages[0].offset = 64
    part = storages[0].part(10, 100)
    assert place([*storages, part], 1088, known=storages[:1]) == 1088 + 2 * aligned(1000)
    assert storages[0].offset == 64 and part.offset == 164 and min(one.offset for one in storages[1:]) == 1088
