"""Products by AMX's instructions on matrices: which tiles use them, and how often."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import qnn_ext
from qnn_ext.report import machine
from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8 import BatchMatmulWorkload, DenseWorkload, Implementation, candidates
from qnn_ext.topi_int8.cpu.matrix import MatrixDot, Shape
from qnn_ext.topi_int8.workload import Workload
from qnn_ext.topi_int8.x86.amx import TDPBUSD, sizes_of
from tests.cases.bundled import module_of
from tests.cases.convolutions import SHAPES, conv
from tests.cases.workloads import BATCH_MATMUL, DENSE
from tests.x86 import emulator

from .kernels import check, cpu_target

EVERY: list[Workload] = [
    *(replace(workload, data_dtype="uint8", weight_dtype="int8") for workload in SHAPES if not workload.depthwise),
    *(DenseWorkload(*sizes, "uint8", "int8") for sizes in DENSE),
    *(BatchMatmulWorkload(*sizes, "uint8", "int8") for sizes in BATCH_MATMUL),
    conv((1, 7, 7, 64), 48, (3, 3), padding=(1, 1, 1, 1), data_dtype="uint8"),  # windows copied as a line
    conv((2, 9, 20, 64), 40, (3, 5), strides=(2, 1), padding=(0, 2, 1, 1), dilation=(1, 2), data_dtype="uint8"),
    conv((3, 5, 1, 32), 32, (3, 3), padding=(1, 1, 1, 1), data_dtype="uint8"),
    conv((1, 7, 7, 160), 320, (1, 1), data_dtype="uint8"),  # 49 pixels: a line of 52
    conv((2, 14, 14, 64), 96, (1, 1), strides=(2, 2), data_dtype="uint8"),
    conv((1, 9, 1, 64), 64, (3, 1), padding=(1, 0, 1, 0), data_dtype="uint8"),
]

PRODUCTS = [workload for workload in EVERY if min(sizes_of(workload)) > 1]


def _implementation(workload: Workload, threads: int = 1) -> Implementation:
    """The kernel with AMX, also where another one is chosen."""
    found = _every(workload, threads)
    return next(item for item in found if TDPBUSD.name in item.name)


def _every(workload: Workload, threads: int) -> list[Implementation]:
    return candidates(workload, cpu_target("amx", threads))


@pytest.fixture
def counted(monkeypatch):
    """Counts the emulated instructions of a call, with AMX taken for any product."""
    monkeypatch.setattr("qnn_ext.topi_int8.x86.amx.PORTS", 1e9)
    monkeypatch.setattr("qnn_ext.topi_int8.x86.amx.FEWEST_ROWS", 1)
    if not emulator.emulates(cpu_target("amx")):
        pytest.skip("this CPU has AMX, whose instructions are not counted")

    def count(call) -> dict[str, int]:
        before = emulator.counts()
        call()
        return {name: number - before[name] for name, number in emulator.counts().items()}

    return count


@pytest.mark.parametrize("workload", PRODUCTS, ids=str)
def test_every_tile_becomes_instructions(workload, counted, rng):
    """Not only the cheapest: whatever its operands, no tile is left to plain loops."""
    item, target = _implementation(workload), cpu_target("amx", 1)
    tiles = list(item.tiles(workload))
    for tile in [tiles[0], *(tiles[index] for index in rng.choice(len(tiles), min(3, len(tiles)), replace=False))]:
        found = counted(lambda tile=tile: check(workload, target, item.with_tile(tile)))
        assert found["tdpbusd"] * 16 * 16 * 64 >= workload.macs
        assert found["tdpbusd"] >= found["tilestored"] == found["tilezero"] > 0


def test_nothing_is_loaded_or_multiplied_twice(counted):
    """256 channels of 14 × 14 pixels, 3 × 3: seven tiles of 2 × 14 pixels, 8 of 2 blocks, 36 steps; a load for each
    product."""
    workload = conv((1, 14, 14, 256), 256, (3, 3), padding=(1, 1, 1, 1), data_dtype="uint8")
    item = _implementation(workload)
    tile = next(tile for tile in item.tiles(workload) if (tile.rows, tile.columns, tile.blocks) == (2, 14, 2))
    found = counted(lambda: check(workload, cpu_target("amx", 1), item.with_tile(tile)))
    products = 7 * 8 * 36 * 4
    assert (found["tdpbusd"], found["tileloadd"], found["tilestored"]) == (products, products, 7 * 8 * 4)
    assert found["crossing"] == 0


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_configure_their_registers(threads, counted):
    workload = conv((1, 28, 28, 128), 128, (3, 3), padding=(1, 1, 1, 1), data_dtype="uint8")
    counted(lambda: check(workload, cpu_target("amx", threads), _implementation(workload, threads)))


@pytest.mark.parametrize("fill", [("max", "min"), ("max", "max"), ("min", "min")], ids="-".join)
def test_extremes(fill, counted):
    workload = conv((1, 6, 9, 256), 32, (3, 3), padding=(1, 1, 1, 1), data_dtype="uint8")
    counted(lambda: check(workload, cpu_target("amx", 1), _implementation(workload), epilogue="none", fill=fill))


def test_few_rows_are_left_to_vectors():
    """A single row multiplies each weight once, however it is done."""
    assert "vpdpbusd" in _every(DenseWorkload(1, 2048, 1000, "uint8", "int8"), 1)[0].name
    assert "tdpbusd" in _every(DenseWorkload(32, 2048, 1000, "uint8", "int8"), 1)[0].name


@pytest.mark.parametrize("run", [1, 3, 4, 24, 64, 96, 144, 160, 200, 1000, 1001, 2304])
def test_chains_waste_little(run):
    """Whole steps where these are not many more; else the last one is padded by fewer words than there are steps."""
    found = TDPBUSD.suited(DenseWorkload(16, run, 16, "uint8", "int8"))
    words = -(-run // 4)
    steps = -(-words // found.chain)
    assert 2 <= found.chain <= 16
    assert steps <= np.ceil(1.15 * -(-words // 16))
    assert found.chain * steps - words < max(steps, 2)


def test_registers_of_all_tiles_suffice():
    for rows, columns in ((1, 1), (1, 7), (7, 7), (14, 14), (1, 3136), (56, 56)):
        for sizes in TDPBUSD.sizes(rows, columns):
            shape = TDPBUSD.shape(*sizes)
            assert shape.rows <= 16
            assert shape.down * shape.rows == sizes[0] * sizes[1]
            assert TDPBUSD.used(shape) <= 8
    assert not TDPBUSD.holds(Shape(3, 2, 16))
    assert isinstance(TDPBUSD, MatrixDot)


@pytest.mark.parametrize("cpu", ["sapphirerapids", "znver4"])
def test_llvm_uses_no_other_registers(monkeypatch, cpu):
    """Seven are configured for four accumulators, two matrices of data and one of weights."""
    codes = []

    def timed(executable, arrays, threads):
        codes.append(executable.mod.inspect_source("s"))
        return lambda number: 0.0

    monkeypatch.setattr(machine, "_timed", timed)
    monkeypatch.setattr(machine, "check_runs_here", lambda target: None)
    monkeypatch.setattr(
        machine,
        "make_target",
        lambda name, threads: make_target({"mcpu": cpu, "mattr": ["+amx-tile", "+amx-int8"]}, threads),
    )
    machine.dot_products.__wrapped__(TDPBUSD, 1)
    (code,) = codes
    assert set(re.findall(r"%tmm(\d)", code)) == set("0123456")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_model_configures_registers_once_for_each_kernel_and_thread(threads, counted, rng):
    module = module_of("digits_cnn_uint8.tflite")
    engine = qnn_ext.build(module, cpu_target("amx", threads))
    inputs = [rng.integers(0, 256, spec.shape).astype(spec.dtype) for spec in module.inputs]
    products = sum("tdpbusd" in kernel.implementation for kernel in engine.kernels)
    found = counted(lambda: engine.run(inputs))
    assert 0 < products <= found["ldtilecfg"] <= threads * products
