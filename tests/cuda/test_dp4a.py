"""DP4A kernels on the emulated GPU: every output equals the NumPy reference."""

from __future__ import annotations

import pytest

from benchmarks.models import BUNDLED
from qnn_ext.compiling.build import lower_module
from qnn_ext.frontends.onnx import from_onnx
from qnn_ext.topi_int8 import BatchMatmulWorkload, DenseWorkload
from qnn_ext.topi_int8.cuda import dp4a
from qnn_ext.topi_int8.cuda.registration import cheapest
from tests.cases.cuda import CONVOLUTIONS, TARGET, conv, kernel
from tests.topi_int8.kernels import check


@pytest.mark.sampled("epilogue")
@pytest.mark.parametrize("epilogue", ["requantize", "residual"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_conv2d(name, epilogue):
    check(CONVOLUTIONS[name], TARGET, kernel(CONVOLUTIONS[name]), epilogue=epilogue)


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
def test_dense(sizes, epilogue):
    workload = DenseWorkload(*sizes, "int8", "int8")
    check(workload, TARGET, kernel(workload), epilogue=epilogue)


@pytest.mark.parametrize("sizes", [(3, 20, 24, 18), (2, 16, 64, 64), (4, 33, 7, 5)], ids=str)
def test_batch_matmul(sizes):
    workload = BatchMatmulWorkload(*sizes, "int8", "int8")
    check(workload, TARGET, kernel(workload), epilogue="requantize")
    check(workload, TARGET, kernel(workload), epilogue="none")


@pytest.mark.parametrize("fill", [("min", "min"), ("min", "max"), ("max", "min")], ids="-".join)
def test_extremes(fill):
    workload = conv(1, 5, 5, 32, 16)
    check(workload, TARGET, kernel(workload), epilogue="none", fill=fill, pad_value=-128)


SHAPES = sorted({(tile.rows, tile.columns, tile.thread_rows, tile.thread_columns) for tile in dp4a.TILES})


@pytest.mark.one_in(3)
@pytest.mark.parametrize("shape", SHAPES[:: max(1, len(SHAPES) // 8)], ids=str)
def test_other_tiles(shape):
    tile = next(t for t in dp4a.TILES if (t.rows, t.columns, t.thread_rows, t.thread_columns) == shape)
    workload = conv(1, 7, 9, 16, 40)
    check(workload, TARGET, kernel(workload).with_tile(tile))


def test_tiles_fit_every_gpu():
    """48 KiB of shared memory and 1024 threads are what every architecture offers a block."""
    for tile in dp4a.TILES:
        assert 64 <= tile.threads <= 256
        assert (tile.rows + tile.columns) * tile.depth <= 48 << 10
        assert tile.rows % tile.thread_rows == tile.columns % tile.thread_columns == 0


def test_small_products_get_many_blocks():
    """Few rows must not end on a single multiprocessor."""
    tile = cheapest(dp4a.tiles, conv(1, 7, 7, 512, 512))
    blocks = -(-49 // tile.rows) * -(-512 // tile.columns)
    assert blocks >= dp4a.MULTIPROCESSORS // 2


def test_products_of_operands_with_zero_points(caplog):
    """Sums along both operands stand beside such a product; its own kernel must take that, not the fallback."""
    pytest.importorskip("onnx")
    module = from_onnx(BUNDLED / "digits_transformer_qdq.onnx")
    lower_module(module.ir, TARGET)
    assert "falling back" not in caplog.text
