"""Whole real models through import and interpreter, bit for bit: numerics="tflite" equals LiteRT's reference kernels,
numerics="float32" its default backend, XNNPACK. This pins the oracle that everything else is compared with."""

from pathlib import Path

import numpy as np
import pytest

from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter
from tests.models.real_models import REAL

SLOW = ("deeplabv3_mnv2_dm05_pascal_quant", "mobilenet_v2_quantized_1x3x224x224")  # one input is enough


def compare(models: Path, name: str, numerics: str, golden: str, trials: int) -> None:
    """Every output of every trial equals the golden one of that name."""
    path = models / "tflite" / f"{name}.tflite"
    module = from_tflite(path, numerics=numerics)
    interpreter = Interpreter(module)
    with np.load(path.with_suffix(".npz")) as arrays:
        for trial in range(trials):
            interpreter.reset_state()
            outputs = interpreter.run([arrays[f"input{trial}_{i}"] for i in range(len(module.inputs))])
            for i, output in enumerate(outputs.values()):
                np.testing.assert_array_equal(output, arrays[f"{golden}{trial}_{i}"])
    assert not module.notes  # nothing stays in float


@pytest.mark.parametrize("name", REAL)
def test_equals_litert_reference_kernels(models, name):
    compare(models, name, "tflite", "ref", trials=1 if name in SLOW else 2)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", REAL)
def test_float32_numerics_equal_xnnpack(models, name):
    compare(models, name, "float32", "xnnpack", trials=1)
