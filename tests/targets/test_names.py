"""Targets by name, and what this machine reports it can run."""

import pytest
import tvm

from qnn_ext import TargetError
from qnn_ext.processes.cores import default_threads
from qnn_ext.targets import host
from qnn_ext.targets.architectures import architecture_name, host_architecture
from qnn_ext.targets.host import check_runnable, host_features
from qnn_ext.targets.names import (
    check_runs_here,
    features_of_model,
    make_target,
    required_features,
)

x86_only = pytest.mark.skipif(host_architecture() != "x86_64", reason="this machine is no x86")


def test_native_runs_here():
    target = make_target("native")
    check_runs_here(target)
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


@pytest.mark.parametrize("name", ["", "pentium-9000", "Native", "skylake-avx51", "rpi1", "cortex-a7200"])
def test_unknown_cpu(name):
    with pytest.raises(TargetError, match="unknown CPU"):
        make_target(name)


def test_unknown_cpu_names_similar_ones():
    with pytest.raises(TargetError, match="skylake-avx512"):
        make_target("skylake-avx51")


@pytest.mark.parametrize("kind", ["vulkan", "nonsense"])
def test_target_kinds_without_kernels(kind):
    with pytest.raises(TargetError, match="no kernels for target kind"):
        make_target({"kind": kind})


# ---- ARM ---------------------------------------------------------------------------------------------------------

AARCH64, ARM = "aarch64-unknown-linux-gnu", "armv7l-unknown-linux-gnueabihf"


@pytest.mark.parametrize(
    "name, triple, cpu, cores",
    [
        ("rpi3", AARCH64, "cortex-a53", 4),
        ("rpi4", AARCH64, "cortex-a72", 4),
        ("rpi5", AARCH64, "cortex-a76", 4),
        ("graviton2", AARCH64, "neoverse-n1", 64),
        ("graviton3", AARCH64, "neoverse-v1", 64),
        ("graviton4", AARCH64, "neoverse-v2", 96),
        ("aarch64", AARCH64, "generic", None),
        ("armv7", ARM, "generic", None),
    ],
)
def test_arm_by_name(name, triple, cpu, cores):
    target = make_target(name)
    assert (target.attrs["mtriple"], target.attrs["mcpu"]) == (triple, cpu)
    assert target.attrs["num-cores"] == (cores or default_threads())
    assert make_target(name, num_threads=2).attrs["num-cores"] == 2


@x86_only
@pytest.mark.parametrize(
    "cpu, triple",
    [("cortex-a53", AARCH64), ("neoverse-n1", AARCH64), ("apple-m1", AARCH64), ("cortex-a7", ARM), ("znver4", None)],
)
def test_the_architecture_follows_from_llvm_s_name(cpu, triple):
    target = make_target(cpu)
    assert (target.attrs.get("mtriple"), target.attrs["mcpu"]) == (triple, cpu)


def test_features_of_arm_cpus():
    assert required_features(make_target("rpi3")) == required_features(make_target("rpi4")) == ["neon"]
    assert {"dotprod", "fullfp16", "lse"} <= set(required_features(make_target("rpi5")))
    assert {"i8mm", "sve", "bf16"} <= set(required_features(make_target("graviton3")))
    assert "sve" not in required_features(make_target("graviton2"))
    assert {"neon", "vfp3"} <= set(required_features(make_target("armv7")))
    added = make_target({"mtriple": "aarch64-linux-gnu", "mattr": ["+dotprod"]})
    assert required_features(added) == ["dotprod", "neon"]


@pytest.mark.parametrize(
    "triple, stated",
    [("armv7l-linux-gnueabihf", "hard"), ("armv7l-unknown-linux-gnueabihf", "hard"), ("armv7-linux-gnueabi", "soft")],
)
def test_the_triple_says_how_floats_are_passed(triple, stated):
    assert make_target({"mtriple": triple, "mattr": ["+neon"]}).attrs["mfloat-abi"] == stated
    other = {"hard": "soft", "soft": "hard"}[stated]
    with pytest.raises(TargetError, match=f"mfloat-abi '{other}' contradicts"):
        make_target({"mtriple": triple, "mattr": ["+neon"], "mfloat-abi": other})


def test_architectures_have_one_name():
    assert {architecture_name(name) for name in ("x86_64", "AMD64")} == {"x86_64"}
    assert {architecture_name(name) for name in ("aarch64", "arm64")} == {"aarch64"}
    assert {architecture_name(name) for name in ("armv7l", "armv8l", "arm", "armhf", "armv6", "thumbv7")} == {"arm"}
    assert {architecture_name(name) for name in ("i386", "i686")} == {"i686"}
    assert [architecture_name(name) for name in ("armeb", "aarch64_be", "riscv64", "armv7eb")] == [
        "armeb",
        "aarch64_be",
        "riscv64",
        "armv7eb",
    ]


# ---- what LLVM would take in silence, or die of ------------------------------------------------------------------


@pytest.mark.parametrize(
    "attributes, message",
    [
        ({"mtriple": "riscv32-linux-gnu"}, "no integer kernels for 'riscv32'.*x86_64, aarch64, arm, cortex-m, riscv64"),
        ({"mtriple": "hexagon"}, "no integer kernels for 'hexagon'"),
        ({"mtriple": "aarch64_be-linux-gnu"}, "no integer kernels for 'aarch64_be'"),
        ({"mtriple": "nonsense"}, "no integer kernels for 'nonsense'"),
        ({"mtriple": "aarch64-linux-gnu", "mcpu": "haswell"}, "not know the CPU 'haswell' for aarch64"),
        (
            {"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a7"},
            "not know the CPU 'cortex-a7' for aarch64; similar: cortex-a",
        ),
        ({"mtriple": "armv7l-linux-gnueabihf", "mcpu": "apple-m1"}, "not know the CPU 'apple-m1' for arm"),
        ({"mtriple": "i686-linux-gnu", "mcpu": "haswel"}, "for i686; similar: haswell; .* target='native'"),
        ({"mtriple": "x86_64-linux-gnu", "mcpu": "pentium4"}, "needs 64bit, which pentium4 lacks"),
        (
            {"mtriple": "aarch64-linux-gnu", "mattr": ["+dotprodd"]},
            "not know the feature 'dotprodd' of aarch64; similar: dotprod",
        ),
        ({"mtriple": "aarch64-linux-gnu", "mattr": ["-dotprodd"]}, "not know the feature 'dotprodd' of aarch64"),
        ({"mtriple": "aarch64-linux-gnu", "mattr": ["dotprod"]}, "add a feature with '\\+dotprod'"),
        ({"mtriple": "x86_64-linux-gnu", "mattr": ["+dotprod"]}, "not know the feature 'dotprod' of x86_64"),
        ({"mtriple": "aarch64-linux-gnu", "mattr": ["-neon"]}, "needs neon"),
        ({"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72", "mattr": ["-fp-armv8"]}, "needs neon and fp-armv8"),
        ({"mtriple": "arm-linux-gnueabihf"}, "needs vfp2, which generic lacks"),
        ({"mtriple": "armv7l-linux-gnueabihf", "mfloat-abi": "nonsense"}, "mfloat-abi 'nonsense' contradicts"),
    ],
)
def test_what_contradicts_itself(attributes, message, capfd):
    with pytest.raises(TargetError, match=message):
        make_target(attributes)
    assert capfd.readouterr().err == "", "LLVM says nothing of its own"


@pytest.mark.parametrize("name, triple", [("neoverse-v2", AARCH64), ("apple-m5", AARCH64), ("cortex-a78", ARM)])
def test_every_feature_of_a_cpu_can_be_added(name, triple):
    known = tvm.target.codegen.llvm_get_cpu_features(
        tvm.target.Target({"kind": "llvm", "mtriple": triple, "mcpu": name})
    )
    make_target({"mtriple": triple, "mattr": [f"+{feature}" for feature in known]})


def test_unknown_attributes():
    with pytest.raises(TargetError, match="does not accept"):
        make_target({"kind": "llvm", "colour": "blue"})


def test_check_runnable_names_what_is_missing():
    check_runnable(sorted(host_features()), host_architecture())
    with pytest.raises(TargetError, match="amx-int8, which this CPU lacks; compile the model again"):
        check_runnable([*host_features(), "amx-int8"], host_architecture())
    other = "aarch64" if host_architecture() == "x86_64" else "x86_64"
    with pytest.raises(TargetError, match=f"built for {other}, but this machine is {host_architecture()}"):
        check_runnable([], other)


def test_the_compiler_is_asked_where_the_system_tells_nothing(monkeypatch):
    """As off Linux."""
    monkeypatch.setattr(host, "_hardware_flags", lambda places: None)
    monkeypatch.setattr(host, "_cpuinfo_flags", lambda: None)
    assert host.host_features.__wrapped__() == features_of_model()
