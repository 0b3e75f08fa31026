"""Each of the 17 fields of Relay's qconfig changes what quantize makes, as its documentation says."""

import warnings

import numpy as np
import pytest
from tvm import relax

from qnn_ext.errors import QuantizationError
from qnn_ext.interpreter import Interpreter
from qnn_ext.op.base import call_attributes, constant, constant_value
from qnn_ext.passes.rewrite import bindings_of
from qnn_ext.quantize import QConfig, quantize, sites, stages
from qnn_ext.quantize.partition import PARTS, partitions

from .networks import float_module
from .residual import DATA, calls, error, quantized, residual_network, results, weights


def test_nbit_input(network):
    eight, four = quantized(network), quantized(network, nbit_input=4, calibrate_mode="minmax")
    assert error(network, four) > 10 * error(network, eight)
    found = stages(network, dataset=DATA, config=QConfig(nbit_input=4))
    assert {site.bits for site in sites(found["annotate"]) if site.role == "input"} == {4}


def test_nbit_weight(network):
    for bits in (8, 4):
        assert all(np.abs(w).max() == 2 ** (bits - 1) - 1 for w in weights(quantized(network, nbit_weight=bits)))


def test_nbit_activation(network):
    """8 bits quantize what goes into the sum, 32 leave it an accumulator."""
    assert len(calls(quantized(network, nbit_activation=32), "qnn.requantize")) < len(
        calls(quantized(network, nbit_activation=8, dtype_activation="int8"), "qnn.requantize")
    )


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_dtype_input(network, dtype):
    module = quantized(network, dtype_input=dtype)
    assert {str(call.args[0].ty.dtype) for call in calls(module, "qnn.conv2d")} == {dtype}


def test_dtype_weight(network):
    assert {w.dtype.name for w in weights(quantized(network, dtype_weight="int8"))} == {"int8"}
    with pytest.raises(QuantizationError, match="dtype_weight must be one of 'int8'"):
        quantized(network, dtype_weight="uint8")


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_dtype_activation(network, dtype):
    config = QConfig(nbit_activation=8, dtype_activation=dtype)
    annotated = stages(network, dataset=DATA, config=config)["annotate"]
    assert {site.dtype for site in sites(annotated) if site.role == "activation"} == {dtype}


MODES = ("global_scale", "minmax", "moving_average", "percentile", "kl_divergence", "entropy", "mse")


@pytest.mark.parametrize("mode", MODES)
def test_calibrate_mode(network, mode):
    found = stages(network, dataset=DATA, config=QConfig(calibrate_mode=mode, percentile=99.0))
    inner = [site.name for site in sites(found["annotate"]) if site.role != "weight"]
    assert {found.table[name].method for name in inner} == {mode}
    if mode == "minmax":
        assert (found.table["x"].low, found.table["x"].high) == (DATA.min(), DATA.max())
    if mode == "percentile":
        assert DATA.min() < found.table["x"].low < 0 < found.table["x"].high < DATA.max()


@pytest.mark.parametrize("scale", [8.0, 2.0])
def test_global_scale(network, scale):
    module = quantize(network, config=QConfig(calibrate_mode="global_scale", global_scale=scale))
    assert constant_value(calls(module, "qnn.quantize")[0].args[1]) == scale / 128


def test_weight_scale(network):
    fields = {"symmetric": True, "calibrate_mode": "global_scale", "per_channel": False}
    for mode, power in (("max", False), ("power2", True)):
        module = quantized(network, weight_scale=mode, **fields)
        scales = [constant_value(call.args[1]) for call in calls(module, "qnn.requantize")]
        assert scales
        assert all((np.frexp(scale)[0] == 0.5).all() == power for scale in scales)


def test_skip_dense_layer(network):
    assert not calls(quantized(network), "matmul")
    module = quantized(network, skip_dense_layer=True)
    assert len(calls(module, "matmul")) == 1
    assert len(calls(module, "qnn.conv2d")) == 2


@pytest.mark.parametrize("skipped", [(0,), (1,), (0, 1)])
def test_skip_conv_layers(network, skipped):
    module = quantized(network, skip_conv_layers=skipped)
    assert len(calls(module, "nn.conv2d")) == len(skipped)
    assert len(calls(module, "qnn.conv2d")) == 2 - len(skipped)
    kernels = {tuple(int(n) for n in call.args[1].ty.shape) for call in calls(module, "nn.conv2d")}
    assert kernels == {((8, 4, 3, 3), (8, 8, 1, 1))[index] for index in skipped}


def test_do_simulation(network):
    simulation, integers = quantized(network, do_simulation=True), quantized(network)
    assert not calls(simulation, "qnn.conv2d")
    assert calls(simulation, "nn.conv2d")
    assert calls(simulation, "qnn.quantize")
    step = 0.02  # the last layer's input moves by a step where a sum in float32 lies next to a midpoint
    np.testing.assert_allclose(results(simulation), results(integers), atol=step)
    assert error(network, simulation) > 0


def test_round_for_shift():
    """With powers of two as scales a requantize is a shift: (q + 2ⁿ⁻¹) >> n, or q >> n."""
    weight = np.float32([[0.25, -0.5]])
    module = float_module((1, 1, 2, 2), lambda emit, x: two_convolutions(emit, x, weight))
    data = np.random.default_rng(0).uniform(-7, 7, (1, 1, 2, 2)).astype(np.float32)
    fields = {"skip_conv_layers": None, "global_scale": 8.0}
    for rounds in (True, False):
        found = quantize(module, config=QConfig.relay(round_for_shift=rounds, **fields))
        q = np.rint(data * 16).astype(np.int64)  # x = q / 16
        kernel = np.int64([64, -127])  # w = k / 256: ±0.5 is one step outside of a signed byte
        accumulator = q * kernel.reshape(1, 2, 1, 1)  # a / 4096, which the next layer takes as q / 16: a >> 8
        exact = accumulator / 256
        shifted = np.floor(exact + 0.5) if rounds else np.floor(exact)
        expected = shifted.clip(-128, 127).sum(axis=1, keepdims=True) * 127 / 256 / 16 * 1.0
        np.testing.assert_allclose(Interpreter(found)(data), expected, atol=1e-6)


def two_convolutions(emit, x, weight):
    y = emit(relax.op.nn.conv2d(x, constant(weight.reshape(2, 1, 1, 1))))
    return emit(relax.op.nn.conv2d(y, constant(np.full((1, 2, 1, 1), 0.5, np.float32))))


def test_debug_enabled_ops(network):
    module = quantized(network, debug_enabled_ops=["nn.dense"])
    assert len(calls(module, "nn.conv2d")) == 2
    assert len(calls(module, "qnn.dense")) == 1
    module = quantized(network, debug_enabled_ops=["nn.conv2d"])
    assert len(calls(module, "qnn.conv2d")) == 2
    assert not calls(module, "qnn.dense")


@pytest.mark.parametrize("rounding", ["TONEAREST_EVEN", "UPWARD", "TONEAREST"])
def test_rounding(network, rounding):
    for truncates in (False, True):  # shifts, of which this network has none
        module = quantized(network, rounding=rounding, round_for_shift=not truncates)
        assert {call_attributes(call)["rounding"] for call in calls(module, "qnn.requantize")} == {rounding}


@pytest.mark.parametrize("chunk,passes", [(-1, 1), (2, 2), (1, 4)])
def test_calibrate_chunk_by(network, chunk, passes):
    seen = []

    def samples():
        seen.append(None)
        return DATA

    found = stages(network, dataset=samples, config=QConfig(calibrate_chunk_by=chunk, calibrate_mode="minmax"))
    assert len([site for site in sites(found["annotate"]) if site.role != "weight"]) == 4
    assert len(seen) == passes
    assert found.table == stages(network, dataset=DATA, config=QConfig(calibrate_mode="minmax")).table


def test_partition_conversions(network):
    whole, split = quantized(network), quantized(network, partition_conversions="enabled")
    assert {var.name_hint for var in whole.ir.get_global_vars()} == {"main"}
    assert {var.name_hint for var in split.ir.get_global_vars()} == {"main", *PARTS}
    np.testing.assert_array_equal(results(split), results(whole))
    parts = partitions(split)
    x = DATA[:1]
    for name in PARTS:
        x = Interpreter(parts[name])(x)
    np.testing.assert_array_equal(x, results(whole)[:1])
    assert {spec.dtype for spec in parts["integer_middle"].inputs} == {"uint8"}


def test_fully_integral(network):
    """With 8 bits between layers the residual sum is one of integers, too."""
    eight_bits = {"nbit_activation": 8, "dtype_activation": "uint8", "dtype_input": "uint8"}
    module = quantized(network, partition_conversions="fully_integral", **eight_bits)
    assert len(calls(module, "qnn.qlinear_add", "integer_middle")) == 1
    for binding in bindings_of(module.ir["integer_middle"]):
        types = binding.var.ty.fields if isinstance(binding.var.ty, relax.TupleType) else [binding.var.ty]
        assert all("int" in str(ty.dtype) for ty in types)


def test_fully_integral_refuses_floats_between():
    def softmax(emit, x):
        return emit(relax.op.nn.softmax(x, axis=1))

    module = residual_network(np.random.default_rng(3), middle=softmax)
    with pytest.raises(QuantizationError, match=r"fully_integral.*nn\.softmax"):
        quantized(module, partition_conversions="fully_integral")


def test_relay_as_a_whole(network):
    """Relay's defaults: the first convolution and the dense layer in float, scales of powers of two, shifts."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module = quantize(network, config=QConfig.relay())
    assert [len(calls(module, name)) for name in ("nn.conv2d", "qnn.conv2d", "matmul", "qnn.dense")] == [1, 1, 1, 0]
    assert error(network, module) < 0.05 * float(np.mean(results(network) ** 2))
