"""The digit classifiers bundled as ONNX, PT2E and TorchScript: what qnn_ext makes of them against their frameworks.

The goldens are the frameworks' own outputs, kept by scripts/digits_goldens.py. Where the framework computes in integers
ours are the same bits. Where it computes in float between quantizations (PT2E, ONNX Runtime on softmax, normalizations
and averages), a sum that lies on a tie may round the other way: one step there, which later layers can amplify.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from benchmarks.networks import quantization_step
from qnn_ext.compiling.coverage import coverage
from tests.cases.bundled import import_model

DATA = Path(qnn_ext.__file__).parent / "data"
MAX_BYTES = 200_000
FLOAT_ACCURACY = {"cnn": 0.9911, "transformer": 0.9889}


@dataclass(frozen=True)
class Bundled:
    """file: name. golden: kind to compare with. steps: largest difference in steps of the output's scale, where the
    output is quantized. decibels: least signal-to-noise ratio, where it is float. matmuls: attention products that the
    quantizer leaves float."""

    file: str
    golden: str
    steps: int = 0
    decibels: float = np.inf
    matmuls: int = 0

    @property
    def name(self) -> str:
        return Path(self.file).stem


MODELS = [
    Bundled("digits_cnn_qdq.onnx", "ort"),
    Bundled("digits_cnn_qdq.onnx", "plain", steps=1),
    Bundled("digits_cnn_qoperator.onnx", "ort"),
    Bundled("digits_cnn_dynamic.onnx", "ort", decibels=120),
    Bundled("digits_cnn_eager.pt", "torch"),
    Bundled("digits_cnn_fx.pt", "torch"),
    Bundled("digits_cnn_pt2e_x86.pt2", "torch", decibels=40),
    Bundled("digits_cnn_pt2e_xnnpack.pt2", "torch", steps=1),
    Bundled("digits_transformer_qdq.onnx", "ort"),
    Bundled("digits_transformer_pt2e_x86.pt2", "torch", decibels=120, matmuls=4),
]
ALL = pytest.mark.parametrize("bundled", MODELS, ids=lambda model: f"{model.file}-{model.golden}")
FILES = pytest.mark.parametrize(
    "bundled", {model.file: model for model in MODELS}.values(), ids=lambda model: model.file
)


@pytest.fixture(scope="module")
def goldens() -> dict[str, np.ndarray]:
    with np.load(DATA / "digits_frameworks.npz") as archive:
        return {name: archive[name] for name in archive.files}


@pytest.fixture(scope="module")
def imported():
    """Modules by file, each imported once."""
    modules: dict[str, qnn_ext.QnnModule] = {}

    def get(file: str) -> qnn_ext.QnnModule:
        if file not in modules:
            modules[file] = import_model(DATA / file)
        return modules[file]

    return get


@pytest.fixture(scope="module")
def engine(imported):
    """Engines by file, each built once."""
    engines: dict[str, qnn_ext.Engine] = {}

    def get(file: str) -> qnn_ext.Engine:
        if file not in engines:
            engines[file] = qnn_ext.build(imported(file), num_threads=1)
        return engines[file]

    return get


@FILES
def test_file_is_small(bundled: Bundled) -> None:
    assert (DATA / bundled.file).stat().st_size < MAX_BYTES


@FILES
def test_every_product_that_the_model_quantizes_is_integer(bundled: Bundled, imported) -> None:
    found = coverage(imported(bundled.file))
    assert found.macs > 100_000
    assert [product.operator for product in found.in_float] == ["matmul"] * bundled.matmuls


@ALL
def test_equals_its_framework(bundled: Bundled, engine, goldens) -> None:
    run, expected = engine(bundled.file), goldens[f"{bundled.name}/{bundled.golden}"]
    ours = np.stack([run(image) for image in goldens["x"]])
    if np.isfinite(bundled.decibels):
        noise = np.sum((ours - expected) ** 2, dtype=np.float64) + 1e-30
        assert 10 * np.log10(np.sum(expected**2, dtype=np.float64) / noise) >= bundled.decibels
    elif bundled.steps == 0:
        np.testing.assert_array_equal(ours, expected)
    else:
        step = quantization_step(expected)
        assert step is not None and np.abs(ours - expected).max() <= 1.001 * bundled.steps * step
    assert np.mean(ours.argmax(-1) == expected.argmax(-1)) == 1


@FILES
def test_engine_equals_the_interpreter(bundled: Bundled, engine, imported, goldens) -> None:
    """Bit for bit; what is float up to the output may differ in its last bits."""
    run, oracle = engine(bundled.file), qnn_ext.Interpreter(imported(bundled.file))
    for image in goldens["x"][:3]:
        if np.isfinite(bundled.decibels):
            np.testing.assert_allclose(run(image), oracle(image), rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(run(image), oracle(image))


@FILES
def test_accuracy(bundled: Bundled, engine) -> None:
    """Within a point of the float network's, on all held-out images."""
    run = engine(bundled.file)
    with np.load(DATA / "digits_test.npz") as archive:
        images, labels = archive["x"].astype(np.float32) / 16, archive["y"]
    predicted = np.array([run(image[None, None]).argmax() for image in images])
    architecture = bundled.name.split("_")[1]
    assert np.mean(predicted == labels) >= FLOAT_ACCURACY[architecture] - 0.01
