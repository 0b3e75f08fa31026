"""Energy from counters as Linux has them: several packages, one that wraps around, none, and none readable."""

import os

import pytest

from qnn_ext.racing.power import Meter, PowerError


def _zone(folder, name, energy, wraps=1000):
    zone = folder / name
    zone.mkdir(parents=True)
    (zone / "energy_uj").write_text(f"{energy}\n")
    (zone / "max_energy_range_uj").write_text(f"{wraps}\n")
    return zone / "energy_uj"


def test_energy_is_that_of_all_packages(tmp_path):
    first, second = _zone(tmp_path, "intel-rapl:0", 100), _zone(tmp_path, "intel-rapl:1", 990)
    part = _zone(tmp_path, "intel-rapl:0:0", 5)
    meter = Meter(tmp_path)
    before = meter.read()
    assert before == [100, 990]
    first.write_text("350\n")
    second.write_text("20\n")  # 10 up to its end, the end itself, and 20
    part.write_text("500\n")
    assert meter.since(before) == pytest.approx((250 + 31) / 1e6)


def test_a_machine_without_counters_says_so(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(PowerError, match="no RAPL counter"):
            Meter(folder)
    (tmp_path / "intel-rapl:0").mkdir()
    with pytest.raises(PowerError, match="cannot be read"):
        Meter(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_counters_that_only_root_reads(tmp_path):
    _zone(tmp_path, "intel-rapl:0", 1).chmod(0)
    with pytest.raises(PowerError, match="chmod a\\+r"):
        Meter(tmp_path)
