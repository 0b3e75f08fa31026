"""Winograd convolutions: floats within the bound that numerics/winograd.py states, integers exactly, where they are
predicted to gain."""

import numpy as np
import pytest
from tvm import relax

from qnn_ext import op as qnn
from qnn_ext.compiling.build import lower_module
from qnn_ext.numerics.winograd import FLOATS, NUMPY, is_exact
from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from qnn_ext.passes.bias_first import ask_for_biases
from qnn_ext.passes.winograd import GAIN, predicted_gain, winograd
from qnn_ext.targets.names import make_target
from tests.cpus import cpu_target

from .modules import run_lowered

CPUS = ["avx2", "avx512"]
CONVOLUTIONS = {
    "whole tiles": ((1, 16, 16, 32), 32, (1, 1, 1, 1)),
    "tiles beyond both ends": ((1, 15, 17, 32), 48, (1, 1, 1, 1)),
    "batch, padding of all kinds": ((3, 14, 11, 32), 32, (0, 2, 3, 1)),
    "no padding": ((1, 18, 18, 64), 16, (0, 0, 0, 0)),
    "wide padding": ((1, 13, 16, 16), 64, (7, 0, 0, 9)),
    "vectors of 8 and 4": ((1, 22, 20, 40), 36, (1, 1, 1, 1)),
    "one row of tiles": ((1, 4, 64, 64), 64, (1, 1, 1, 1)),
}


def convolution(name, rng, strides=(1, 1), groups=1, dtype="float32"):
    """A module that computes relu(conv2d + bias), its data, weights and padding."""
    shape, outputs, padding = CONVOLUTIONS[name]
    x = rng.standard_normal(shape).astype(dtype)
    w = rng.standard_normal((outputs, 3, 3, shape[-1] // groups)).astype(dtype)
    bias = rng.standard_normal(outputs).astype(np.float32)
    builder = relax.BlockBuilder()
    data = relax.Var("x", relax.TensorType(shape, dtype))
    with builder.function("main", [data]):
        with builder.dataflow():
            attributes = {"padding": padding, "strides": strides, "groups": groups, "out_dtype": "float32"}
            layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}
            y = builder.emit(relax.op.nn.conv2d(data, constant(w), **attributes, **layouts), "conv")
            y = builder.emit(relax.op.nn.relu(builder.emit(relax.op.add(y, constant(bias)))))
            result = builder.emit_output(y)
        builder.emit_func_output(result)
    return builder.get(), x, w, bias


def limit(x, w, bias, padding):
    """The largest error of each result: the bound of numerics/winograd.py, and roundings of bias and interpreter."""
    n, height, width, channels = x.shape
    top, left, bottom, right = padding
    rows, columns = height + top + bottom - 2, width + left + right - 2
    padded = np.pad(np.abs(x).astype(np.float64), ((0, 0), (top, bottom + 6), (left, right + 6), (0, 0)))
    eye = list(np.eye(6))
    b = np.abs(FLOATS.data(eye, NUMPY))
    a = np.abs(FLOATS.products(eye, NUMPY))
    g = np.abs(FLOATS.weights)
    weights = np.einsum("pr,orsi,qs->pqoi", g, np.abs(w).astype(np.float64), g)
    found = np.zeros((n, rows, columns, len(w)))
    for y in range(0, rows, 4):
        for z in range(0, columns, 4):
            tile = np.einsum("pi,nijc,qj->npqc", b, padded[:, y : y + 6, z : z + 6], b)
            sums = np.einsum("ip,npqc,pqoc,jq->nijo", a, tile, weights, a, optimize=True)
            here = found[:, y : y + 4, z : z + 4]
            here[...] = sums[:, : here.shape[1], : here.shape[2]]
    return (channels + 20) * 2.0**-24 * (found + np.abs(bias))


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_results(rng, name, cpu):
    module, x, w, bias = convolution(name, rng)
    kernels = lower_module(module, cpu_target(cpu, 2))
    script = kernels.script()
    assert '"winograd_data"' in script and '"winograd_results+add+nn.relu"' in script
    (expected,) = interpret(module, [x])
    (actual,) = run_lowered(kernels, [x], cpu_target(cpu, 2))
    assert (np.abs(actual.astype(np.float64) - expected) <= limit(x, w, bias, CONVOLUTIONS[name][2])).all()


def test_sums_in_xnnpacks_order_are_plain(rng):
    module, *_ = convolution("whole tiles", rng)
    script = lower_module(ask_for_biases(module), cpu_target(CPUS[0], 2)).script()
    assert "winograd" not in script and "bias_first" in script


def test_error_is_close_to_that_of_plain_sums(rng):
    """Against sums in float64, with many channels: 1.7 times that of direct products when the points were chosen."""
    w = rng.standard_normal((8, 3, 3, 256)).astype(np.float32) / 48
    x = np.maximum(rng.standard_normal((1, 16, 16, 256)), 0).astype(np.float32)
    v = qnn.OPS["winograd_data"].reference(x, padding=(0, 0, 0, 0), pad_value=0)
    u = FLOATS.transformed_weight(w).reshape(36, 8, 256)
    m = np.einsum("nyxpc,poc->nyxpo", v.reshape(1, 4, 4, 36, 256), u).reshape(1, 4, 4, 36 * 8)
    y = qnn.OPS["winograd_results"].reference(m, size=(14, 14))
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (3, 3), (1, 2))
    exact = np.einsum("nyxcrs,orsc->nyxo", windows, w.astype(np.float64))
    assert np.abs(y - exact).max() < 3e-6 * np.abs(exact).max()


@pytest.mark.parametrize("channels", [3, 12, 24, 32])
@pytest.mark.parametrize("cpu", ["x86-64", *CPUS])
def test_transforms_equal_their_references(rng, cpu, channels):
    x = rng.standard_normal((2, 9, 14, channels)).astype(np.float32)
    x[0, :2, :2] = [[[np.inf] * channels, [-np.inf] * channels], [[np.nan] * channels, [1e38] * channels]]
    builder = relax.BlockBuilder()
    data = relax.Var("x", relax.TensorType(x.shape, "float32"))
    with builder.function("main", [data]):
        with builder.dataflow():
            tiles = builder.emit(qnn.winograd_data(data, (2, 1, 1, 0)))
            result = builder.emit_output(qnn.winograd_results(tiles, (10, 13)))
        builder.emit_func_output(result)
    kernels = lower_module(builder.get(), cpu_target(cpu, 1))
    (actual,) = run_lowered(kernels, [x], cpu_target(cpu, 1))
    np.testing.assert_array_equal(actual, interpret(builder.get(), [x])[0])


@pytest.mark.parametrize("changed", [{"strides": (2, 2)}, {"groups": 2}, {"dtype": "float16"}])
def test_other_convolutions_are_computed_directly(rng, changed):
    module, *_ = convolution("whole tiles", rng, **changed)
    assert "winograd" not in lower_module(module, cpu_target("avx512", 1)).script()


def test_names_of_the_layer_are_on_all_its_kernels(rng):
    script = lower_module(convolution("whole tiles", rng)[0], cpu_target("avx512", 1)).script()
    assert script.count('"conv') >= 3


def test_gain():
    """A layer of ResNet-50, one whose weights are read for few tiles only, few channels, and odd ones."""
    assert predicted_gain(1, (56, 56), 64, 64) > 2.5
    assert predicted_gain(1, (7, 7), 512, 512) < GAIN < predicted_gain(8, (7, 7), 512, 512)
    assert predicted_gain(1, (112, 112), 4, 64) < GAIN
    assert predicted_gain(1, (56, 56), 63, 64) == 0


# ---- integers --------------------------------------------------------------------------------------------------------


INTEGER_CPUS = ["avx2", "avx512", "x86-64"]
INTEGER_CONVOLUTIONS = {
    "whole tiles": ((1, 16, 16, 64), 64, (1, 1, 1, 1)),
    "tiles beyond both ends, batch": ((2, 15, 17, 48), 80, (1, 1, 1, 1)),
    "padding of all kinds": ((1, 14, 11, 64), 64, (0, 2, 3, 1)),
    "no padding": ((1, 18, 18, 64), 48, (0, 0, 0, 0)),
    "vectors of 8 and 4": ((1, 20, 21, 72), 68, (1, 1, 1, 1)),
}


def integer_convolution(name, data_dtype, weight, pad_value):
    """A module that computes requantize(conv2d + bias) with zero points at both ends."""
    shape, outputs, padding = INTEGER_CONVOLUTIONS[name]
    builder = relax.BlockBuilder()
    data = relax.Var("x", relax.TensorType(shape, data_dtype))
    with builder.function("main", [data]):
        with builder.dataflow():
            sums = qnn.conv2d_accumulate(data, constant(weight), padding=padding, pad_value=pad_value)
            y = builder.emit(sums, "conv")
            y = builder.emit(relax.op.add(y, constant(np.arange(outputs, dtype=np.int32) * 997)))
            scales = [constant(np.float32(value)) for value in (1e-4, 0.05)]
            zeros = [constant(np.int32(value)) for value in (0, -128)]
            result = builder.emit_output(qnn.requantize(y, scales[0], zeros[0], scales[1], zeros[1], out_dtype="int8"))
        builder.emit_func_output(result)
    return builder.get()


def integers(rng, dtype, shape, values):
    """Random integers, or those at the ends of a dtype: the most that transforms and sums can reach."""
    ends = np.iinfo(dtype)
    if values == "random":
        return rng.integers(ends.min, ends.max, shape, endpoint=True).astype(dtype)
    return rng.choice(np.array([ends.min, ends.max], dtype), shape)


@pytest.mark.sampled("cpu", "dtype")
@pytest.mark.parametrize("cpu", INTEGER_CPUS)
@pytest.mark.parametrize("values", ["random", "ends"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("name", INTEGER_CONVOLUTIONS)
def test_integers_are_exact(rng, name, dtype, values, cpu):
    shape, outputs, _ = INTEGER_CONVOLUTIONS[name]
    x = integers(rng, dtype, shape, values)
    module = integer_convolution(name, dtype, integers(rng, "int8", (outputs, 3, 3, shape[-1]), values), 3)
    kernels = lower_module(module, cpu_target(cpu, 2))
    script = kernels.script()
    assert '"winograd_data"' in script and '"winograd_results+add+requantize"' in script
    (actual,) = run_lowered(kernels, [x], cpu_target(cpu, 2))
    np.testing.assert_array_equal(actual, interpret(module, [x])[0])


@pytest.mark.parametrize(("extreme", "sign"), [(255, 1), (0, 1), (255, -1)])
def test_integers_of_one_sign(extreme, sign):
    """The largest sums of all: data and weights at one end each."""
    module = integer_convolution("no padding", "uint8", np.full((48, 3, 3, 64), sign * 127, np.int8), 0)
    x = np.full(INTEGER_CONVOLUTIONS["no padding"][0], extreme, np.uint8)
    (actual,) = run_lowered(lower_module(module, cpu_target("avx2", 1)), [x], cpu_target("avx2", 1))
    np.testing.assert_array_equal(actual, interpret(module, [x])[0])


def test_weights_whose_sums_do_not_fit_are_multiplied_directly():
    """Transformed weights beyond 16 bits; four times a sum beyond 32 bits."""
    assert is_exact(np.full((1, 3, 3, 512), 127, np.int8), 255)
    assert not is_exact(np.full((1, 3, 3, 2048), 127, np.int8), 255)
    assert is_exact(np.full((1, 3, 3, 4), 3640, np.int16), 255)
    assert not is_exact(np.full((1, 3, 3, 4), 3641, np.int16), 255)


@pytest.mark.parametrize(
    ("cpu", "dtype", "expected"),
    [
        ("avx2", "uint8", True),
        ("avx512_vnni", "uint8", False),
        ("rpi3", "int8", True),
        ("rpi5", "int8", False),
        ("armv7", "int8", True),
    ],
)
def test_integers_gain_where_no_instruction_multiplies_four_bytes(rng, cpu, dtype, expected):
    module = integer_convolution("no padding", dtype, integers(rng, "int8", (48, 3, 3, 64), "random"), 0)
    assert ("winograd" in winograd(module, make_target(cpu)).script()) == expected
