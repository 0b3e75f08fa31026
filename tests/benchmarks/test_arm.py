"""The counts of executed instructions on ARM: layers of models, their int8 and float32 twins, the report."""

import json

import numpy as np
import pytest

import qnn_ext
from benchmarks.arm.__main__ import CPUS, GOALS, LayerCount, Result, main, table
from benchmarks.arm.layers import Layer, float32_module, int8_module, layers_of, resnet50
from qnn_ext import Interpreter
from qnn_ext.targets.names import make_target
from tests.arm import emulator
from tests.cases.bundled import module_of

SMALL = [
    Layer(1, 6, 7, 8, 12, (3, 3), (2, 1), (1, 0, 1, 1)),
    Layer(1, 6, 6, 16, 16, (3, 3), padding=(1, 1, 1, 1), groups=16),
    Layer(3, 1, 1, 20, 9),
]


def test_layers_of_resnet50():
    """As published: 53 convolutions and one dense layer, 4.1 billion multiply-accumulates, 25.5 million weights."""
    layers = resnet50()
    assert layers.total() == 54
    weights = sum(times * int(np.prod(layer.weight_shape)) for layer, times in layers.items())
    assert weights == 25_502_912
    positions = {layer: layer.height * layer.width // (layer.strides[0] * layer.strides[1]) for layer in layers}
    assert all(layer.macs == positions[layer] * int(np.prod(layer.weight_shape)) for layer in layers)
    macs = sum(times * layer.macs for layer, times in layers.items())
    assert macs == pytest.approx(4.09e9, rel=0.01)


def test_layers_of_a_model():
    engine = qnn_ext.build(module_of("digits_cnn_int8.tflite"), num_threads=1)
    layers = layers_of(engine.kernels)
    assert Layer(1, 8, 8, 1, 16, (3, 3), padding=(1, 1, 1, 1)) in layers
    assert layers.total() == sum(bool(kernel.workload) for kernel in engine.kernels)


@pytest.mark.parametrize("layer", SMALL, ids=lambda layer: f"{'x'.join(map(str, layer.data_shape))}")
def test_twins_compute_the_layer(layer, rng):
    """int8 equals the oracle; both have the same shapes and the same kernel in float."""
    module, twin = int8_module(layer), float32_module(layer)
    assert module.inputs[0].shape == twin.inputs[0].shape == layer.data_shape
    assert module.outputs[0].shape == twin.outputs[0].shape
    x = rng.integers(-128, 128, layer.data_shape, np.int8)
    expected = Interpreter(module)(x)
    assert len(np.unique(expected)) > 2  # neither all zeros nor all at an end
    np.testing.assert_array_equal(qnn_ext.build(module, num_threads=1)(x), expected)
    y = x.astype(np.float32)
    np.testing.assert_allclose(qnn_ext.build(twin, num_threads=1)(y), Interpreter(twin)(y), rtol=1e-4, atol=1e-2)


def test_goals_name_the_targets():
    assert set(GOALS) == set(CPUS)
    assert all(make_target(name) for name in CPUS)


def test_report_tells_what_misses_its_goal():
    layer = LayerCount("1×1 4×4×8→8", 2, 1000, 1500, 2000, 4800, "conv2d", "conv2d", {})
    met, missed = Result("m", "rpi4", [layer], whole=2500, litert=5000), Result("m", "rpi5", [layer])
    assert (met.int8, met.float32, met.plain, met.ratio, met.of_limit) == (2000, 3000, 4000, 2.0, 0.8)
    columns = {column.header: list(column.cells) for column in table([met, missed]).columns}
    assert columns["goal"] == ["1.4 met", "3.0 missed"]
    assert columns["LiteRT/int8"] == ["2.00", "–"]
    assert columns["of limit"] == ["80%", "80%"] and columns["plain/float32"] == ["1.33", "1.33"]


@pytest.mark.exhaustive("the tests of its parts above")
def test_count_of_a_bundled_model(tmp_path):
    emulator.require(make_target("rpi5"))
    model = qnn_ext.__path__[0] + "/data/digits_cnn_int8.tflite"
    path = tmp_path / "counts.json"
    arguments = ["--models", model, "--targets", "rpi4", "rpi5", "--no-litert", "--json", str(path)]
    without, with_dot_product = main(arguments)
    assert json.loads(path.read_text()) == [without, with_dot_product]
    assert "sdot" in str(with_dot_product["layers"]) and "sdot" not in str(without["layers"])
    assert 0 < with_dot_product["whole"] < without["whole"]
    assert without["int8"] < without["float32"] < without["plain"] and with_dot_product["litert"] is None
