"""Targets by name, and what this machine is told it can run."""

import pytest
import tvm

from qnn_ext import TargetError
from qnn_ext.host import check_runnable, default_threads, host_architecture, host_features
from qnn_ext.target import make_target, required_features, target_architecture

x86_only = pytest.mark.skipif(host_architecture() != "x86_64", reason="this machine is no x86")


def test_native_runs_here():
    target = make_target("native")
    check_runnable(required_features(target), target_architecture(target))
    assert target.attrs["num-cores"] == default_threads()


@x86_only
def test_features_follow_the_cpu():
    assert "avx512vnni" in required_features(make_target("cascadelake"))
    assert "avx512vnni" not in required_features(make_target("skylake-avx512"))
    assert "avx2" in required_features(make_target("haswell"))
    assert not {"avx", "avx2", "sse4.2"} & set(required_features(make_target("x86-64")))


@x86_only
def test_attributes_can_take_features_away_and_add_them():
    without = make_target({"mcpu": "cascadelake", "mattr": ["-avx512vnni"]})
    assert "avx512vnni" not in required_features(without)
    assert "avx2" in required_features(make_target({"kind": "llvm", "mcpu": "x86-64", "mattr": ["+avx2"]}))


def test_threads():
    assert make_target("native", num_threads=1).attrs["num-cores"] == 1
    assert make_target({"kind": "llvm", "num-cores": 3}, num_threads=1).attrs["num-cores"] == 3


def test_a_target_stays_as_it_is():
    target = tvm.target.Target({"kind": "llvm"})
    assert make_target(target) is target


@pytest.mark.parametrize("name", ["", "pentium-9000", "Native", "skylake-avx51"])
def test_unknown_cpu(name):
    with pytest.raises(TargetError, match="unknown CPU"):
        make_target(name)


def test_unknown_cpu_names_similar_ones():
    with pytest.raises(TargetError, match="skylake-avx512"):
        make_target("skylake-avx51")


@pytest.mark.parametrize("attributes", [{"kind": "cuda"}, {"kind": "nonsense"}])
def test_target_kinds_without_kernels(attributes):
    with pytest.raises(TargetError, match="no kernels for target kind"):
        make_target(attributes)


def test_unknown_attributes():
    with pytest.raises(TargetError, match="does not accept"):
        make_target({"kind": "llvm", "colour": "blue"})


def test_check_runnable_names_what_is_missing():
    check_runnable(sorted(host_features()), host_architecture())
    with pytest.raises(TargetError, match="amx-int8, which this CPU lacks; compile again"):
        check_runnable([*host_features(), "amx-int8"], host_architecture())
    with pytest.raises(TargetError, match="built for riscv64"):
        check_runnable([], "riscv64")
