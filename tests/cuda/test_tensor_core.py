"""Tensor-core kernels: on the emulated GPU every output equals the reference, and machine code has the instructions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8 import BatchMatmulWorkload, DenseWorkload, candidates
from qnn_ext.topi_int8.cuda import intrin, tensor_core
from qnn_ext.topi_int8.cuda.registration import cheapest
from qnn_ext.topi_int8.cuda.tensor_core import IMPLEMENTATIONS, TILES, TILES_OF_TURING, Tile
from qnn_ext.topi_int8.workload import Workload
from tests.cases.cuda import CONVOLUTIONS, conv
from tests.topi_int8.kernels import EPILOGUES, Epilogue, check

from .instructions import count, instructions, kernel_source, ptx, spills

TURING, AMPERE = make_target("sm_75"), make_target("sm_80")
TARGETS = {"sm_75": TURING, "sm_80": AMPERE}


def exact(workload: Workload, architecture: str = "sm_80", tile: Tile | None = None, **options: object) -> None:
    implementation = IMPLEMENTATIONS[type(workload)]
    check(workload, TARGETS[architecture], implementation.with_tile(tile) if tile else implementation, **options)


@pytest.mark.sampled("epilogue")
@pytest.mark.parametrize("epilogue", ["requantize", "residual"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_conv2d(name, epilogue):
    exact(CONVOLUTIONS[name], epilogue=epilogue)


@pytest.mark.parametrize("name", ["whole vectors", "first layer", "dilation", "groups"])
def test_conv2d_on_turing(name):
    exact(CONVOLUTIONS[name], "sm_75")


@pytest.mark.sampled("architecture")
@pytest.mark.parametrize("architecture", TARGETS)
@pytest.mark.parametrize(
    ("sizes", "epilogue"),
    [
        ((70, 96, 50), "requantize"),
        ((33, 17, 65), "residual"),
        ((128, 256, 128), "none"),
        ((5, 1000, 7), "fixed_point"),
        ((16, 5, 1), "requantize"),
    ],
    ids=str,
)
def test_dense(sizes, epilogue, architecture):
    exact(DenseWorkload(*sizes, "int8", "int8"), architecture, epilogue=epilogue)


@pytest.mark.sampled("architecture")
@pytest.mark.parametrize("architecture", TARGETS)
@pytest.mark.parametrize("sizes", [(3, 20, 24, 18), (2, 64, 64, 64), (4, 33, 7, 5)], ids=str)
def test_batch_matmul(sizes, architecture):
    workload = BatchMatmulWorkload(*sizes, "int8", "int8")
    exact(workload, architecture)
    exact(workload, architecture, epilogue="none")


@pytest.mark.parametrize("fill", [("min", "min"), ("min", "max"), ("max", "min")], ids="-".join)
def test_extremes(fill):
    exact(conv(1, 5, 5, 32, 16), epilogue="none", fill=fill, pad_value=-128)


def test_sums_wrap_around(monkeypatch):
    """2^17 products of 2^14 are one more than an int32 holds."""
    wrapped = Epilogue([], lambda acc: acc, lambda acc: acc.astype(np.int32))
    monkeypatch.setitem(EPILOGUES, "wrapped", lambda shape, rng: wrapped)
    workload = DenseWorkload(16, 1 << 17, 16, "int8", "int8")
    exact(workload, epilogue="wrapped", fill=("min", "min"))


SHAPES = sorted({(tile.of_warp, tile.warp_rows, tile.warp_columns) for tile in TILES})


@pytest.mark.one_in(6)
@pytest.mark.parametrize("shape", SHAPES[::2], ids=str)
def test_tiles(shape):
    """Of each shape of warps and of what they compute, the tile with the most steps in shared memory."""
    fitting = [tile for tile in TILES if (tile.of_warp, tile.warp_rows, tile.warp_columns) == shape]
    exact(conv(1, 9, 13, 64, 72), tile=max(fitting, key=lambda tile: tile.stages))


@pytest.mark.one_in(3)
@pytest.mark.sampled("architecture")
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("architecture", TARGETS)
def test_stages(stages, architecture):
    """More, as many and fewer steps than there are stages."""
    tile = Tile(32, 32, 64, 2, 1, stages)
    for steps in (1, stages - 1, stages, stages + 2):
        exact(DenseWorkload(40, 64 * steps, 40, "int8", "int8"), architecture, tile)


def test_lanes_and_registers_of_fragments():
    """Every element has a place of its own."""
    for layout, rows, columns in (
        (intrin.INT8.operand_a, intrin.M, intrin.INT8.k),
        (intrin.INT8.operand_b, intrin.N, intrin.INT8.k),
        (intrin.FLOAT16.operand_a, intrin.M, intrin.FLOAT16.k),
        (intrin.FLOAT16.operand_b, intrin.N, intrin.FLOAT16.k),
        (intrin.accumulator, intrin.M, intrin.N),
    ):
        places = {layout(i, j) for i in range(rows) for j in range(columns)}
        assert places == {(lane, i) for lane in range(intrin.LANES) for i in range(rows * columns // intrin.LANES)}


def test_columns_of_a_lane_are_neighbours():
    workload = DenseWorkload(64, 64, 256, "int8", "int8")
    for tile in TILES:
        columns, width = tensor_core.columns_of(workload, tile), tile.of_warp[1]
        assert columns is not None
        assert sorted(map(columns, range(2 * width))) == list(range(2 * width))
        for n in range(width):
            lane = columns(n) % 8 // 2
            assert lane == n // (width // 4)


def test_tiles_fit_every_gpu():
    assert max(tile.shared_bytes for tile in TILES_OF_TURING) <= 48 << 10  # 64 KiB a multiprocessor
    for tile in TILES:
        rows, columns = tile.of_warp
        assert tile.shared_bytes <= 96 << 10  # 100 KiB on sm_86 and sm_89, 164 on sm_80
        assert rows % intrin.M == columns % intrin.N == tile.depth % intrin.INT8.k == 0
        assert tile.threads * 255 <= 65536 or rows * columns <= 64 * 32


def test_small_products_get_many_blocks():
    tile = cheapest(tensor_core.tiles, conv(1, 7, 7, 512, 512))
    assert -(-49 // tile.rows) * -(-512 // tile.columns) >= 32


def test_who_computes_what():
    """Tensor cores take what fills them; a few rows, a few channels and older GPUs are left to DP4A."""
    chosen = {
        "mma": [
            conv(1, 14, 14, 64, 96),
            conv(8, 224, 224, 3, 64, kernel=7, stride=2),
            DenseWorkload(64, 512, 1000, "int8", "int8"),
        ],
        "gemv": [DenseWorkload(1, 1024, 1000, "int8", "int8")],
        "dp4a": [conv(1, 14, 14, 64, 64, groups=16)],
    }
    for name, workloads in chosen.items():
        for workload in workloads:
            assert f"_{name}." in candidates(workload, AMPERE)[0].name
            assert "_mma." not in candidates(workload, make_target("sm_72"))[0].name
    uint8 = replace(conv(1, 14, 14, 64, 96), data_dtype="uint8")
    assert "_mma." not in candidates(uint8, AMPERE)[0].name


COMPILED: dict[str, Workload] = {
    "3x3": conv(8, 14, 14, 256, 256),
    "first layer": conv(8, 224, 224, 3, 64, kernel=7, stride=2),
    "dense": DenseWorkload(64, 512, 1000, "int8", "int8"),
    "batch_matmul": BatchMatmulWorkload(12, 197, 64, 197, "int8", "int8"),
}


@pytest.mark.sampled("architecture")
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("name", COMPILED)
def test_machine_code(name, architecture):
    workload = COMPILED[name]
    source = kernel_source(workload, make_target(architecture), IMPLEMENTATIONS[type(workload)])
    found = instructions(source, architecture)
    assert count(found, "IMMA.8816" if architecture == "sm_75" else "IMMA.16832") >= 8
    assert spills(found) == 0
    assert count(found, "LDSM") > 0
    assert count(found, "FFMA") == 0, "a requantization rounds its product"
    if architecture != "sm_75" and name == "3x3":
        assert count(found, "LDGSTS.E.BYPASS.128") > 0


def test_ptx():
    workload = COMPILED["3x3"]
    code = ptx(kernel_source(workload, AMPERE, IMPLEMENTATIONS[type(workload)]), "sm_80")
    assert "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32" in code
    assert "ldmatrix.sync.aligned.m8n8.x4.shared.b16" in code
    assert "cp.async.cg.shared.global" in code
