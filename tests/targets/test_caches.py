"""Sizes of caches: from data sheets, from the machine, from the family."""

from __future__ import annotations

from pathlib import Path

import pytest

from qnn_ext.targets import features, host
from qnn_ext.targets.backend import Caches
from qnn_ext.targets.caches import CACHES
from qnn_ext.targets.cpus import ARM_CPUS, CPU_FAMILIES
from qnn_ext.targets.features import backend_of, caches_of
from qnn_ext.targets.names import make_target

LEVELS = [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2M"), ("3", "Unified", "32768K")]


def kib(l1: int, l2: int) -> Caches:
    return Caches(l1 << 10, l2 << 10)


def listed(folder: Path, levels: list[tuple[str, str, str]]) -> Path:
    """A folder of Linux' with these caches."""
    for number, values in enumerate(levels):
        index = folder / f"index{number}"
        index.mkdir()
        for name, value in zip(("level", "type", "size"), values, strict=True):
            (index / name).write_text(value + "\n")
    return folder


def test_linux_lists_caches(tmp_path):
    assert host._listed_caches(listed(tmp_path, LEVELS)) == kib(48, 2048)


@pytest.mark.parametrize("levels", [[], LEVELS[:2], LEVELS[1:], [LEVELS[0], ("2", "Unified", "0K")], [LEVELS[0]] * 2])
def test_half_a_list_is_none(tmp_path, levels):
    assert host._listed_caches(listed(tmp_path, levels)) is None


@pytest.mark.parametrize("value", ["", "lots", "-1K", "1G"])
def test_what_is_no_size_is_left_out(tmp_path, value):
    assert host._listed_caches(listed(tmp_path, [LEVELS[0], ("2", "Unified", value)])) is None


def test_a_system_that_lists_nothing(tmp_path):
    assert host._listed_caches(tmp_path / "nothing") is None
    (tmp_path / "index0").mkdir()  # as in some containers
    assert host._listed_caches(tmp_path) is None


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ({"hw.perflevel0.l1dcachesize": 131072, "hw.perflevel0.l2cachesize": 12 << 20, "hw.l1dcachesize": 65536}, 128),
        ({"hw.l1dcachesize": 32768, "hw.l2cachesize": 262144}, 32),
        ({"hw.l1dcachesize": 32768}, None),
    ],
)
def test_macos_reports_caches(monkeypatch, reported, expected):
    monkeypatch.setattr(host.sys, "platform", "darwin")
    monkeypatch.setattr(host, "_sysctl", lambda name: reported.get(name, 0))
    found = host.host_caches.__wrapped__()
    assert found is None if expected is None else found.l1_bytes == expected << 10


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("avx512_vnni", kib(32, 1024)),
        ("avx2", kib(32, 256)),
        ("sapphirerapids", kib(48, 2048)),
        ("znver3", kib(32, 512)),
        ("rpi3", kib(32, 512)),
        ("rpi4", kib(32, 1024)),
        ("rpi5", kib(64, 512)),
        ("graviton3", kib(64, 1024)),
        ("graviton4", kib(64, 2048)),
    ],
)
def test_caches_of_named_targets(name, expected):
    assert caches_of(make_target(name)) == expected


@pytest.mark.parametrize("name", [*CPU_FAMILIES, *ARM_CPUS])
def test_every_named_target_has_caches(name):
    """One that means a whole architecture has its family's, wherever it is compiled."""
    target = make_target(name)
    known = target.attrs["mcpu"] in CACHES
    assert known == (name not in ("x86-64", "aarch64", "armv7"))
    assert known or caches_of(target) == backend_of(target).caches


def test_data_sheets_are_of_cpus_that_llvm_knows():
    for cpu, caches in CACHES.items():
        assert make_target(cpu).attrs["mcpu"] == cpu
        assert 16 << 10 <= caches.l1_bytes <= 128 << 10 and caches.l1_bytes < caches.l2_bytes


def test_an_unknown_cpu_has_the_caches_of_its_machine(monkeypatch):
    own, other = make_target("rpi4"), make_target("rpi5")
    monkeypatch.setattr(features, "CACHES", {})
    monkeypatch.setattr(features, "host_caches", lambda: kib(24, 3072))
    monkeypatch.setattr(features, "host_cpu", lambda: "cortex-a72")
    assert caches_of(own) == kib(24, 3072)
    assert caches_of(other) == backend_of(other).caches
    monkeypatch.setattr(features, "host_caches", lambda: None)
    assert caches_of(own) == backend_of(own).caches


@pytest.mark.parametrize("name", ["x86-64", "aarch64"])
def test_a_name_of_many_cpus_is_no_machine(monkeypatch, name):
    """LLVM calls a CPU that it does not know by the name of all, whose code must not depend on where it is compiled."""
    target = make_target(name)
    monkeypatch.setattr(features, "host_cpu", lambda: target.attrs["mcpu"])
    monkeypatch.setattr(features, "host_caches", lambda: kib(24, 3072))
    assert caches_of(target) == backend_of(target).caches
