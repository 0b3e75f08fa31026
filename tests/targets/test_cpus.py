"""Every family of CPUs: which instructions its code holds, that models and operators give the same bits on each, and
that nothing is run which this CPU lacks."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from qnn_ext import Interpreter, QnnModule, TargetError
from qnn_ext.qparams import dtype_range
from qnn_ext.targets.architectures import host_architecture
from qnn_ext.targets.host import host_features
from qnn_ext.targets.names import CPU_FAMILIES, make_target, required_features
from tests.cases.operators import check
from tests.cases.samples import SAMPLES, SUMS_OF_FLOATS
from tests.cpus import CPUS, cpu_target

pytestmark = pytest.mark.skipif(host_architecture() != "x86_64", reason="this machine is no x86")
DATA = Path(qnn_ext.__file__).parent / "data"
IMPORTERS = {".tflite": qnn_ext.from_tflite, ".onnx": qnn_ext.from_onnx}
MODELS = (
    "digits_cnn_int8.tflite",
    "digits_cnn_uint8.tflite",
    "digits_cnn_qoperator.onnx",
    "digits_transformer_qdq.onnx",
)
OTHER_CPUS = [cpu for cpu in CPUS if cpu != "native"]

# instructions that take the place of vpdpbusd or of vpmaddwd, and one that nothing may use, for it saturates
PRODUCTS = re.compile(
    r"^\t((?:\{\w+\} ?\t?)?v?p(?:dpbusd|maddwd|maddubsw)|tdpbusd)\t.*%(tmm|zmm|ymm|xmm)", re.MULTILINE
)


@cache
def module_of(file: str) -> QnnModule:
    return IMPORTERS[Path(file).suffix](DATA / file)


def sample(module: QnnModule, rng: np.random.Generator) -> list[np.ndarray]:
    """Random inputs over the whole range of each."""
    values = []
    for spec in module.inputs:
        if spec.dtype.startswith("float"):
            values.append(rng.random(spec.shape).astype(spec.dtype))
        else:
            low, high = dtype_range(spec.dtype)
            values.append(rng.integers(low, high, spec.shape, endpoint=True).astype(spec.dtype))
    return values


# ---- what the code holds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "family, products",
    [
        ("amx_int8", {("tdpbusd", "tmm")}),
        ("avx512_vnni", {("vpdpbusd", "zmm")}),
        ("avx_vnni", {("{vex} vpdpbusd", "ymm")}),
        ("avx512", {("vpmaddwd", "zmm")}),
        ("avx2", {("vpmaddwd", "ymm")}),
        ("x86-64", {("pmaddwd", "xmm")}),
    ],
)
def test_instructions_of_a_family(family, products):
    """The dense layers and the convolutions all use the best the family has, and none saturates."""
    engine = qnn_ext.build(module_of("digits_cnn_int8.tflite"), family, num_threads=1)
    found = {(" ".join(name.split()), register) for name, register in PRODUCTS.findall(engine.source("asm"))}
    assert products <= found
    assert not any("maddubsw" in name for name, _ in found)
    if family not in ("amx_int8", "avx512_vnni"):
        assert {register for _, register in products} >= {register for name, register in found if "dpbusd" in name}


def test_families_are_ordered_by_speed():
    engine = qnn_ext.build(module_of("digits_lstm_int8.tflite"), list(reversed(CPU_FAMILIES)), num_threads=1)
    assert [target["mcpu"] for target in engine.variants] == list(CPU_FAMILIES.values())


# ---- the same bits -----------------------------------------------------------------------------------------------


@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("cpu", [*OTHER_CPUS, "avx512_vnni"])
@pytest.mark.parametrize("file", MODELS)
def test_model_equals_the_oracle(file, cpu, rng):
    module = module_of(file)
    engine, oracle = qnn_ext.build(module, cpu_target(cpu)), Interpreter(module)
    for _ in range(3):  # states go on from call to call, in both
        inputs = sample(module, rng)
        for got, expected in zip(engine.run(inputs).values(), oracle.run(inputs).values(), strict=True):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.one_in(4)
@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("cpu", OTHER_CPUS)
@pytest.mark.parametrize("name", [name for name in SAMPLES if name != "trim"])  # the engine trims, not the code
def test_operator_equals_the_oracle(name, cpu, rng):
    check(SAMPLES[name], rng, cpu_target(cpu), SUMS_OF_FLOATS.get(name, 0.0))


# ---- what this CPU lacks -----------------------------------------------------------------------------------------


def test_code_for_another_cpu_is_compiled_and_saved_but_not_run(tmp_path):
    """Of these no CPU runs all: the first has AVX-VNNI, the second AVX512-FP16, the third neither of Intel's sets."""
    foreign = [cpu for cpu in ("alderlake", "sapphirerapids", "znver5") if set(lacking(cpu))]
    if not foreign:
        pytest.skip("this CPU runs them all")
    module = module_of("digits_cnn_int8.tflite")
    inputs = [np.zeros(spec.shape, spec.dtype) for spec in module.inputs]
    for cpu in foreign:
        engine = qnn_ext.build(module, cpu, num_threads=1)
        for run in (lambda e=engine: e(*inputs), lambda e=engine: e.time(1, 1), lambda e=engine: e.profile(1)):
            with pytest.raises(TargetError, match=lacking(cpu)[0]):
                run()
        engine.save(tmp_path / "m.qnn")
        with pytest.raises(TargetError, match=lacking(cpu)[0]):
            qnn_ext.load(tmp_path / "m.qnn")


def lacking(cpu: str) -> list[str]:
    return [feature for feature in required_features(make_target(cpu)) if feature not in host_features()]
