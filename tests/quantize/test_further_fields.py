"""The fields that Relay's qconfig lacked, through quantize: each changes what is made, as its documentation says."""

import numpy as np
import pytest
from tvm import relax

from qnn_ext.interpreter import Interpreter
from qnn_ext.op.base import constant, constant_value
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.quantize import QConfig, quantize, sites, stages

from .networks import float_module
from .residual import DATA, calls, error, quantized


def scales_of(module, name: str) -> list[np.ndarray]:
    return [constant_value(call.args[1]) for call in calls(module, name)]


@pytest.mark.parametrize("per_channel", [True, False])
def test_per_channel(network, per_channel):
    sizes = {scale.size for scale in scales_of(quantized(network, per_channel=per_channel), "qnn.requantize")}
    assert sizes == ({8} if per_channel else {1})


@pytest.mark.parametrize("dtype,zero", [("int8", 0), ("uint8", 128)])
def test_symmetric(network, dtype, zero):
    found = {
        int(constant_value(call.args[2]))
        for symmetric in (True, False)
        for call in calls(quantized(network, symmetric=symmetric, dtype_input=dtype), "qnn.conv2d")
        if symmetric
    }
    assert found == {zero}
    asymmetric = calls(quantized(network, symmetric=False, dtype_input=dtype), "qnn.conv2d")
    assert int(constant_value(asymmetric[1].args[2])) == np.iinfo(dtype).min  # behind a relu


def test_percentile(network):
    tables = [
        stages(network, dataset=DATA, config=QConfig(calibrate_mode="percentile", percentile=p)).table
        for p in (99.9, 90)
    ]
    assert tables[1]["x"].high < 0.8 * tables[0]["x"].high


@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_first_and_last_layer(network, precision):
    module = quantized(network, first_layer=precision, last_layer=precision)
    names = [op_name(binding.value) for binding in bindings_of(module.ir["main"])]
    assert [names.count(name) for name in ("nn.conv2d", "qnn.conv2d", "matmul", "qnn.dense")] == [1, 1, 1, 0]
    operand = calls(module, "nn.conv2d")[0].args[1]
    assert str(operand.ty.dtype) == precision
    assert error(network, module) < error(network, quantized(network))


def test_overrides(network):
    """Layers have the names of the model; the dense layer's is that of its matmul."""
    names = {site.layer: site.operator for site in sites(stages(network, dataset=DATA)["annotate"])}
    convolutions = [name for name, operator in names.items() if operator == "nn.conv2d"]
    dense = next(name for name, operator in names.items() if operator == "nn.dense")
    module = quantized(
        network,
        overrides={
            convolutions[0]: {"range": (-2.0, 2.0), "nbit_weight": 4},
            convolutions[1]: {"precision": "float32"},
            dense: {"per_channel": False, "calibrate_mode": "global_scale"},
        },
    )
    first = calls(module, "qnn.conv2d")
    assert len(first) == 1
    assert np.abs(constant_value(first[0].args[1])).max() == 7
    assert scales_of(module, "qnn.quantize")[0] == np.float32(4 / 255)
    last = calls(module, "qnn.dense")[0]
    assert int(constant_value(last.args[2])) == 128  # −8 … 8
    assert scales_of(module, "qnn.dequantize")[-1].size == 1


def test_cambricon_has_powers_of_two_and_no_zero_points(network):
    module = quantized(network, quantization_formula="cambricon")
    for name in ("qnn.quantize", "qnn.requantize", "qnn.dequantize"):
        assert all((np.frexp(scale)[0] == 0.5).all() for scale in scales_of(module, name))
    assert {int(constant_value(call.args[2])) for call in calls(module, "qnn.conv2d")} == {0}
    assert error(network, module) < 0.01 * float(np.var([Interpreter(network)(x[None]) for x in DATA]))


def test_equalize(network):
    equal, plain = (stages(network, dataset=DATA, config=QConfig(equalize=flag))["fold"] for flag in (True, False))
    np.testing.assert_allclose(Interpreter(equal)(DATA[:1]), Interpreter(plain)(DATA[:1]), atol=1e-4)


def test_bias_correction(network):
    """The mean of the results over the data set moves towards that of the float network."""
    fields = {"nbit_weight": 3, "per_channel": False}

    def offset(module) -> float:
        found, expected = (np.mean([Interpreter(m)(x[None]) for x in DATA], axis=0) for m in (module, network))
        return float(np.abs(found - expected).max())

    before = offset(quantized(network, bias_correction=False, **fields))
    assert offset(quantized(network, bias_correction=True, **fields)) < 0.5 * before


def test_dynamic_needs_no_data(network):
    module = quantize(network, config=QConfig(dynamic=True))
    assert list(stages(network, config=QConfig(dynamic=True))) == ["fold", "realize"]
    assert len(calls(module, "qnn.conv2d")) == 2
    assert len(calls(module, "max")) == len(calls(module, "min")) == 3  # of each product's operand, at run time
    assert error(network, module) < 0.01 * float(np.var([Interpreter(network)(x[None]) for x in DATA]))


def test_several_processes_find_the_same(network):
    one, two = (stages(network, dataset=DATA, config=QConfig(num_workers=n)).table for n in (1, 2))
    assert one == two


def test_the_residual_stream_of_a_transformer_stays_float():
    """x + f(norm(x)): what the next normalization reads, too, is quantized only with nbit_activation of 8."""
    ones, zeros = constant(np.ones(8, np.float32)), constant(np.zeros(8, np.float32))
    weight = constant(np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32))

    def body(emit, x):
        for _ in range(2):
            normal = emit(relax.op.nn.layer_norm(x, ones, zeros, axes=[1]))
            x = emit(relax.op.add(x, emit(relax.op.matmul(normal, weight))))
        return x

    module = float_module((4, 8), body)
    for fields, roles in (
        ({}, {"input"}),
        ({"nbit_activation": 8, "dtype_activation": "int8"}, {"input", "activation"}),
    ):
        annotated = stages(module, config=QConfig(calibrate_mode="global_scale", **fields))["annotate"]
        assert {site.role for site in sites(annotated)} - {"weight"} == roles
