"""The comparison of register tiles: workloads as JSON, measurement of a small one, the summary."""

from __future__ import annotations

import json

import pytest

from benchmarks.tiles import WORKLOADS, Measured, main, summary, table
from qnn_ext.autotune.task import describe
from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8 import Conv2dWorkload, DenseWorkload, select
from qnn_ext.topi_int8.workload import workload_from, workload_to

SMALL = Conv2dWorkload(1, 6, 6, 16, 32, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1, "uint8", "int8")
DEPTHWISE = Conv2dWorkload(1, 6, 6, 16, 16, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 16, "uint8", "int8")


def test_workloads_survive_json():
    for workload in (SMALL, DenseWorkload(3, 8, 20, "uint8", "int8")):
        assert workload_from(json.loads(json.dumps(workload_to(workload)))) == workload


def test_stored_workloads_have_tiles():
    target = make_target("native", 1)
    stored = [workload_from(fields) for fields in json.loads(WORKLOADS.read_text())]
    assert len(set(stored)) == len(stored) > 100
    for workload in stored:
        implementation = select(workload, target)
        if implementation.tiles is not None:
            costs = list(implementation.tiles(workload).values())
            assert costs == sorted(costs) and min(costs) > 0


def test_summary():
    good = Measured(SMALL, {(1, 4, 2): 1e-6, (1, 2, 2): 1.05e-6})
    bad = Measured(DenseWorkload(3, 8, 20, "uint8", "int8"), {(1, 1, 1): 2e-6, (1, 3, 1): 1e-6})
    assert summary([good, bad]).startswith("1 of 2 defaults within 10 % of the best tile; worst 2.00 (dense 3×8×20)")
    assert table([bad]).splitlines()[-1] == "| dense 3×8×20 | 1×1×1 | 0 | 1×3×1 | 1 | 2.00 |"
    assert describe(SMALL) == "conv 6×6×16→32 1×1"


@pytest.mark.parametrize("workload", [SMALL, DEPTHWISE], ids=describe)
def test_measures_a_workload(workload, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.tiles.WORKLOADS", tmp_path / "workloads.json")
    (tmp_path / "workloads.json").write_text(json.dumps([workload_to(workload)]))
    written = tmp_path / "tiles.json"
    assert main(["--within", "1.1", "--rounds", "1", "--json", str(written)]) == 0
    if select(workload, make_target("native", 1)).tiles is None:  # a depthwise convolution without VNNI
        assert "none of 1 workloads has tiles" in capsys.readouterr().out
        return
    (row,) = json.loads(written.read_text())
    assert workload_from(row["workload"]) == workload and row["tiles"]
    assert "of 1 defaults" in capsys.readouterr().out
