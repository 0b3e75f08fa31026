"""The benchmark of calibration on a bundled model: one row for each mode, and a table of them."""

import pytest

from benchmarks.calibration import markdown, measure
from tests.quantize.digits import network


def test_rows_and_table():
    speeds = measure(network("cnn"), ["minmax", "mse"], samples=4, rounds=1)
    assert [(speed.mode, speed.workers) for speed in speeds] == [("minmax", 1), ("mse", 1)]
    for speed in speeds:
        assert speed.ratio == pytest.approx(speed.calibration / speed.inference)
    lines = markdown(speeds).splitlines()
    assert len(lines) == 4
    assert lines[3].endswith(f"| {speeds[1].ratio:.2f} |")
