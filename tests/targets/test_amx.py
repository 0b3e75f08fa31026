"""AMX is used where the CPU reports it and the system grants it."""

from __future__ import annotations

import pytest

from qnn_ext import TargetError
from qnn_ext.targets import amx, host
from qnn_ext.targets.architectures import host_architecture
from qnn_ext.targets.names import make_target, required_features

pytestmark = pytest.mark.skipif(host_architecture() != "x86_64", reason="AMX is x86's")
REPORTED = {"avx512f", "avx512bw", "avx512_vnni", "amx_tile", "amx_int8", "amx_bf16"}


@pytest.fixture
def reported(monkeypatch):
    """A CPU that reports AMX, of a system that supports it."""
    monkeypatch.setattr(host, "_cpuinfo_flags", lambda: REPORTED)
    monkeypatch.setattr(amx, "supported", lambda: True)
    monkeypatch.setattr(host, "host_features", host.host_features.__wrapped__)


def test_a_system_without_support_has_no_amx(reported, monkeypatch):
    assert host.host_features() >= amx.FEATURES
    monkeypatch.setattr(amx, "supported", lambda: False)
    assert host.host_features() == {"avx512f", "avx512bw", "avx512vnni"}


def test_a_refused_request_is_named(reported, monkeypatch):
    asked = []
    monkeypatch.setattr(amx, "request", lambda: asked.append(1) or len(asked) < 2)
    features = ["avx512f", *sorted(amx.FEATURES)]
    host.check_runnable(features, host_architecture())
    with pytest.raises(TargetError, match="amx-bf16, amx-int8, amx-tile, which the system does not let"):
        host.check_runnable(features, host_architecture())
    host.check_runnable(["avx512f"], host_architecture())
    assert len(asked) == 2  # only where code needs it


def test_the_system_is_asked():
    """Whatever it answers: where it does not support AMX, it grants nothing."""
    assert amx.supported() or not amx.request()


def test_native_has_what_the_cpu_reports(reported, monkeypatch):
    """LLVM takes a CPU whose hypervisor hides a feature for an older one, without AMX."""
    monkeypatch.setattr("qnn_ext.targets.names.host_features", host.host_features)
    monkeypatch.setattr("qnn_ext.targets.names.host_cpu", lambda: "rocketlake")
    monkeypatch.setattr(amx, "request", lambda: True)
    assert set(required_features(make_target("native"))) >= amx.FEATURES
