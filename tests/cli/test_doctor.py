"""`qnn-ext doctor`: what is reported of this machine is what the other commands use."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import qnn_ext
from qnn_ext.cli import doctor
from qnn_ext.targets import host
from qnn_ext.targets.families import X86

SETUP = Path(__file__).parents[2] / "setup.py"


@pytest.fixture
def report(cli):
    def report() -> dict:
        code, out, _ = cli("doctor", "--json")
        assert code == 0
        return json.loads(out)

    return report


def test_report(report, cli):
    data = report()
    assert data["versions"]["qnn-ext"] == qnn_ext.__version__
    assert data["cpu"]["features"] == sorted(host.host_features())
    assert data["cpu"]["products"][-1] == "loops"
    text = cli("doctor")[1]
    assert data["cpu"]["name"] in text and all(name in text for name in data["cpu"]["products"])


def test_products_are_those_of_the_instruction_sets(report, monkeypatch):
    monkeypatch.setattr(doctor, "host_architecture", lambda: "x86_64")
    monkeypatch.setattr(host, "host_features", lambda: frozenset({"avx", "avx2", "fma"}))
    cpu = report()["cpu"]
    assert cpu["products"] == ["vpmaddwd_256", "pmaddwd_128", "loops"]
    assert cpu["float_products"] == ["fma_256"]


def test_what_is_missing_has_a_remedy(report, cli, monkeypatch):
    monkeypatch.setenv("PATH", "")
    for name in ("CC", "CXX", *(f"QNN_EXT_CXX_{backend.architecture.upper()}" for backend in doctor.CROSS)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor, "host_architecture", lambda: X86.architecture)
    monkeypatch.setattr("qnn_ext.targets.linking.host_architecture", lambda: X86.architecture)
    monkeypatch.setitem(doctor.EXTRAS, "onnx", doctor.Extra("test", ("no_such_module",)))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # of zig
    data = report()
    assert all(entry["command"] is None and "install" in entry["problem"] for entry in data["linkers"])
    packages = {entry["architecture"]: entry["problem"].rpartition(" ")[2] for entry in data["emulators"]}
    assert packages.pop("cortex-m") == "qemu-system-arm" and set(packages.values()) == {"qemu-user"}
    missing = next(entry for entry in data["extras"] if entry["extra"] == "onnx")
    assert missing["missing"] == ["no_such_module"] and missing["command"] == "pip install 'qnn-ext[onnx]'"
    assert "missing no_such_module: pip install 'qnn-ext[onnx]'" in cli("doctor")[1]


def test_every_extra_of_the_package_is_known():
    extras = re.search(r"extras_require=\{(.*?)\}", SETUP.read_text(encoding="utf-8"), re.DOTALL)
    names = set(re.findall(r'^        "(\w+)":', extras[1], re.MULTILINE))
    assert names - {"all", "docs", "test"} == set(doctor.EXTRAS)


def test_nothing_large_is_imported():
    code = "import sys\nfrom qnn_ext.cli import main\ntry: main(['doctor'])\nexcept SystemExit: pass\n"
    code += "assert not {'tvm', 'torch', 'onnx', 'openvino'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
