"""The sizes of caches that loops are blocked for are the target's, within bounds."""

from __future__ import annotations

import pytest

from qnn_ext.targets.backend import Caches
from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8 import blocking, candidates
from qnn_ext.topi_int8.blocking import BACKED_L2, MOST_L1, MOST_L2, blocked_caches
from qnn_ext.topi_int8.cpu import conv2d
from qnn_ext.topi_int8.generic.machine import machine_of
from qnn_ext.topi_int8.generic.softmax_rows import rows_together
from qnn_ext.topi_int8.x86 import depthwise_conv2d_taps as taps
from tests.cases.convolutions import conv


@pytest.fixture
def caches(monkeypatch):
    """Give every target these caches, in KiB."""

    def have(l1: int, l2: int) -> None:
        monkeypatch.setattr(blocking, "caches_of", lambda target: Caches(l1 << 10, l2 << 10))

    return have


@pytest.mark.parametrize("cpu", ["haswell", "znver2", "x86-64", "cortex-a53", "cortex-a76", "aarch64"])
def test_bounds(cpu, caches):
    target = make_target(cpu)
    backed = cpu in ("haswell", "znver2", "x86-64")
    caches(256, 4096)
    assert blocked_caches(target) == Caches(MOST_L1, BACKED_L2 if backed else MOST_L2)
    caches(16, 128)
    assert blocked_caches(target) == Caches(16 << 10, BACKED_L2 if backed else 128 << 10)


def test_a_strip_stays_in_the_cache(caches):
    """Tiles of 7 pixels of 256 channels: as many as half of level 1 holds, while level 2 holds the weights."""
    target = make_target("avx512_vnni", 1)
    workload = conv((1, 28, 28, 256), 256, (1, 1))
    implementation = candidates(workload, target)[0]
    layout = conv2d.plan(workload, implementation.schedule.keywords["instruction"])
    tile_bytes = layout.tile.columns * workload.in_channels
    for l1 in (8, 16, 32):
        caches(l1, 1024)
        strip = conv2d.strip_of(layout, target)
        assert layout.tile_rows % strip == 0
        assert strip >= min(layout.tile_rows, (l1 << 10) // 2 // tile_bytes)
        assert all(layout.tile_rows % size for size in range((l1 << 10) // 2 // tile_bytes, strip))


def test_tasks_of_taps_fit_level_1(caches):
    workload = conv((1, 112, 112, 64), 64, (3, 3), padding=(1, 1, 1, 1), groups=64)
    instruction = next(one for one in taps.INSTRUCTIONS if one.depth == taps.TAPS)
    layout = taps.plan(workload, instruction)

    def staged(l1: int) -> int:
        task = taps._task(workload, layout, instruction.lanes, l1 * taps.STAGED_SHARE, 1)
        rows = (task[0] - 1) * layout.rows + layout.groups * taps.TAPS
        columns = (task[1] * layout.columns - 1) * layout.pixels + workload.kernel[1]
        return rows * columns * instruction.lanes * task[2]

    small, large = staged(16 << 10), staged(64 << 10)
    assert small <= 16 << 10 and small < large <= 64 << 10


def test_rows_of_a_softmax_stay_in_level_1():
    """All of it, except where instructions count."""
    assert rows_together((30, 2000)) == 3
    for cpu, together in (("cascadelake", 3), ("znver5", 6), ("rpi3", 3), ("rpi5", 3)):
        with make_target(cpu):
            assert rows_together((30, 2000)) == together


def test_elementwise_rows_stay_in_level_2(caches):
    caches(32, 128)
    assert machine_of(make_target("rpi3")).cache_bytes == 64 << 10
    assert machine_of(make_target("avx2")).cache_bytes == BACKED_L2 // 2
