"""Products of a few rows on the emulated GPU: every output equals the NumPy reference."""

from __future__ import annotations

import pytest

from qnn_ext.topi_int8 import BatchMatmulWorkload, DenseWorkload, candidates
from qnn_ext.topi_int8.cuda import gemv
from tests.cases.cuda import TARGET, conv, kernel
from tests.topi_int8.kernels import check

WORKLOADS = {
    "whole": DenseWorkload(1, 512, 64, "int8", "int8"),
    "odd": DenseWorkload(1, 1000, 37, "int8", "int8"),
    "bytes": DenseWorkload(1, 13, 5, "int8", "int8"),
    "rows": DenseWorkload(4, 100, 33, "int8", "int8"),
    "pixel": conv(1, 1, 1, 48, 24, kernel=1),
    "window of the image": conv(2, 3, 3, 16, 10, kernel=3, padding=(0, 0, 0, 0)),
    "padded window": conv(1, 2, 2, 6, 10, groups=2),
    "batch": BatchMatmulWorkload(3, 1, 40, 20, "int8", "int8"),
}


@pytest.mark.sampled("epilogue")
@pytest.mark.parametrize("epilogue", ["requantize", "residual", "none"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_gemv(name, epilogue):
    check(WORKLOADS[name], TARGET, kernel(WORKLOADS[name], "gemv"), epilogue=epilogue)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("tile", gemv.TILES, ids=str)
def test_other_tiles(tile):
    workload = DenseWorkload(2, 300, 21, "int8", "int8")
    check(workload, TARGET, kernel(workload, "gemv").with_tile(tile), epilogue="fixed_point")


def test_more_rows_are_tiles():
    assert "gemv" not in candidates(DenseWorkload(5, 64, 64, "int8", "int8"), TARGET)[0].name
    assert "gemv" in candidates(DenseWorkload(1, 64, 64, "int8", "int8"), TARGET)[0].name
