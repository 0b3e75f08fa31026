"""Bundled models as C libraries, on this machine and on emulated CPUs: the engine's bits."""

from functools import cache

import numpy as np
import pytest

import qnn_ext
from qnn_ext import Interpreter
from qnn_ext.targets.architectures import host_architecture
from tests.arm.test_models import BUNDLED, FLOAT, REAL, digits
from tests.cases.bundled import module_of
from tests.export_c.libraries import Harness, compiler, emulated, example_outputs

CROSS = {"rpi3": "aarch64", "graviton3": "aarch64", "armv7": "arm", "riscv64": "riscv64"}
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@cache
def engine_of(file: str) -> qnn_ext.Engine:
    return qnn_ext.build(module_of(file), num_threads=1)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("weights", ["embedded", "file"])
@pytest.mark.parametrize("file", [*BUNDLED, *FLOAT])
def test_the_engines_bits(file, weights, tmp_path):
    """Consecutive calls, in which states go on, under sanitizers."""
    engine = engine_of(file)
    engine.reset_state()
    calls = [[image] for image in digits(module_of(file), 3)]
    harness = Harness(engine.export_c(tmp_path, "model", weights=weights), *SANITIZE)
    for outputs, inputs in zip(harness(calls), calls, strict=True):
        np.testing.assert_array_equal(outputs[0], engine(*inputs), strict=True)


@pytest.mark.one_in(4)
@pytest.mark.sampled("target")
@pytest.mark.parametrize("target", CROSS)
@pytest.mark.parametrize("file", [*BUNDLED, *FLOAT])
def test_cross_compiled(file, target, tmp_path):
    emulated(CROSS[target]), compiler(CROSS[target])
    module = module_of(file)
    oracle, calls = Interpreter(module), [[image] for image in digits(module, 2)]
    harness = Harness(qnn_ext.build(module, target, num_threads=1, code=False).export_c(tmp_path))
    for outputs, inputs in zip(harness(calls, cpu="max" if target == "graviton3" else ""), calls, strict=True):
        if file in FLOAT:
            np.testing.assert_allclose(outputs[0], oracle(*inputs), rtol=0, atol=1e-5)
        else:
            np.testing.assert_array_equal(outputs[0], oracle(*inputs), strict=True)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("target", ["native", *CROSS])
def test_make_and_example(target, tmp_path):
    """As a user does it: make && ./example input.bin output.bin."""
    architecture = CROSS.get(target, host_architecture())
    emulated(architecture), compiler(architecture)
    module = module_of("digits_cnn_uint8.tflite")
    (image,) = digits(module, 1)
    exported = qnn_ext.build(module, target, num_threads=1, code=False).export_c(tmp_path, weights="embedded")
    cpu = "max" if target == "graviton3" else ""
    np.testing.assert_array_equal(example_outputs(exported, [image], cpu)[0], Interpreter(module)(image), strict=True)


@pytest.mark.parametrize(
    ("cpus", "cpu", "chosen"),
    [
        (("rpi3", "rpi5", "graviton3"), "cortex-a53", "cortex-a53"),
        (("rpi3", "rpi5", "graviton3"), "neoverse-n1", "cortex-a76"),
    ],
)
def test_hwcap_chooses(cpus, cpu, chosen, tmp_path):
    emulated("aarch64"), compiler("aarch64")
    module = module_of("digits_cnn_int8.tflite")
    (image,) = digits(module, 1)
    harness = Harness(qnn_ext.build(module, cpus, num_threads=1, code=False).export_c(tmp_path))
    np.testing.assert_array_equal(harness([[image]], cpu=cpu)[0][0], Interpreter(module)(image), strict=True)
    assert harness.said.startswith(chosen)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", REAL)
def test_real_models(models, name, tmp_path):
    """XNNPACK's outputs, in two calls from the initial state each."""
    path = models / "tflite" / f"{name}.tflite"
    module = qnn_ext.from_tflite(path)
    harness = Harness(qnn_ext.build(module, num_threads=1, code=False).export_c(tmp_path, "real"))
    with np.load(path.with_suffix(".npz")) as arrays:
        for trial in range(2):
            inputs = [arrays[f"input{trial}_{i}"] for i in range(len(module.inputs))]
            for i, output in enumerate(harness([inputs])[0]):
                np.testing.assert_array_equal(output, arrays[f"xnnpack{trial}_{i}"], strict=True)
