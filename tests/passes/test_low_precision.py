"""Products in float16 and bfloat16: operands rounded, sums in float32."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.compiling.build import lower_module
from qnn_ext.compiling.cache import _key
from qnn_ext.compiling.describe import kernels_of
from qnn_ext.errors import QnnError
from qnn_ext.interpreter import Interpreter
from qnn_ext.numerics.bfloat16 import BITS
from qnn_ext.op.base import constant, constant_value
from qnn_ext.op.evaluate import interpret
from qnn_ext.passes.low_precision import at_precision, in_precision
from qnn_ext.passes.rewrite import bindings_of, op_name, rewrite
from qnn_ext.quantize import QConfig, quantize
from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8.cpu import conv2d
from qnn_ext.topi_int8.x86.amx import TDPBF16PS
from tests.cases.blockwise import bound_of, float_product, weight_of
from tests.cases.convolutions import conv
from tests.cpus import cpu_target
from tests.quantize.networks import float_module
from tests.x86 import emulator as amx

from .modules import module, run_lowered
from .test_float_products import CONVOLUTIONS, MATRICES, convolution

RNG = np.random.default_rng(4)
WEIGHTS = {
    "matmul": RNG.normal(size=(6, 5)).astype(np.float32),
    "nn.conv2d": RNG.normal(size=(5, 6, 3, 3)).astype(np.float32),
}


def in_half(name: str):
    """A float module with one product and the same with it in float16."""
    shape = (3, 6) if name == "matmul" else (1, 6, 7, 7)
    operator = relax.op.matmul if name == "matmul" else relax.op.nn.conv2d
    module = float_module(shape, lambda emit, x: emit(operator(x, constant(WEIGHTS[name]))))
    rule = lambda value, emit: in_precision(value, emit, "float16") if op_name(value) == name else None  # noqa: E731
    return module, qnn_ext.QnnModule(rewrite(module.ir, rule), module.inputs, module.outputs)


@pytest.mark.parametrize("name", WEIGHTS)
def test_operands_are_rounded_and_sums_are_not(name):
    module, half = in_half(name)
    x = RNG.normal(size=module.inputs[0].shape).astype(np.float32)
    weight = WEIGHTS[name].astype(np.float16).astype(np.float32)
    exact = float_module(x.shape, lambda emit, v: emit(_like(module, v, weight)))
    expected = Interpreter(exact)(x.astype(np.float16).astype(np.float32))
    for found in (Interpreter(half)(x), qnn_ext.build(half, num_threads=1)(x)):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert np.abs(expected - Interpreter(module)(x)).max() > 1e-4


def _like(module, x, weight):
    call = bindings_of(module.ir["main"])[0].value
    return relax.Call(call.op, [x, constant(weight)], call.attrs, call.ty_args)


def test_weights_are_stored_in_float16():
    _, half = in_half("matmul")
    (call,) = (b.value for b in bindings_of(half.ir["main"]) if op_name(b.value) == "matmul")
    assert constant_value(call.args[1]).dtype == np.float16


def test_values_beyond_float16_become_its_largest():
    _, half = in_half("matmul")
    x = np.full((3, 6), 1e6, np.float32)
    expected = np.full((3, 6), 65504, np.float32) @ WEIGHTS["matmul"].astype(np.float16).astype(np.float32)
    np.testing.assert_allclose(Interpreter(half)(x), expected, rtol=1e-5)


# ---- kernels -----------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    """Matrices for small products too."""
    monkeypatch.setattr("qnn_ext.topi_int8.x86.amx.PORTS", 1e9)
    monkeypatch.setattr("qnn_ext.topi_int8.x86.amx.FEWEST_ROWS", 1)


def compare(cpu, precision, build, arrays, terms):
    """Compiled against interpreted: sums of `terms` products of rounded operands; returns the kernels' names.

    Each may differ from the exact sum by k · 2⁻²³ · Σ |a · b|, and subnormal numbers may count as zero.
    """
    target = cpu_target(cpu, 1)
    shapes = [(array.shape, "float32") for array in arrays]
    exact, magnitudes = (
        at_precision(module(shapes, lambda emit, *x, one=one: [build(emit, *x, one)]), precision)
        for one in (lambda array: array, np.abs)
    )
    kernels = lower_module(exact, target)
    (expected,), (products,) = interpret(exact, arrays), interpret(magnitudes, [np.abs(array) for array in arrays])
    emulated = amx.emulates(target)
    before = amx.counts()["tdpbf16ps"] if emulated else 0
    (actual,) = run_lowered(kernels, arrays, target)
    names = " ".join(kernel.implementation for kernel in kernels_of(kernels))
    assert not emulated or (amx.counts()["tdpbf16ps"] > before) == ("tdpbf16ps" in names)
    assert (np.abs(actual.astype(np.float64) - expected) <= (terms + 4) * 2.0**-23 * products).all()
    return names


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("cpu", ["avx512", "x86-64"])
def test_activations_of_packed_weights(rng, cpu, precision):
    """Whatever the CPU multiplies, it multiplies rounded activations."""
    weight = weight_of(rng, 40, 96, 32, "int4", "floats")
    mod, inputs = float_product(rng, 3, weight)
    rounded = at_precision(mod, precision)
    (expected,), (unrounded,) = interpret(rounded, inputs), interpret(mod, inputs)
    target = cpu_target(cpu, 1)
    (actual,) = run_lowered(lower_module(rounded, target), inputs, target)
    bound = bound_of(inputs[0], weight)
    assert (np.abs(actual.astype(np.float64) - expected) <= bound).all()
    assert (np.abs(unrounded - expected) > 2 * bound).any()


KERNELS = {
    ("amx_bfloat16", "bfloat16"): "tdpbf16ps",
    ("bfloat16", "bfloat16"): "vdpbf16ps_512",
    ("avx512", "bfloat16"): "_bfloat16",
    ("avx2", "bfloat16"): "_bfloat16",
    ("avx2", "float16"): "_float16",
}


@pytest.mark.parametrize(("cpu", "precision"), KERNELS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(rng, name, cpu, precision):
    x, w, product = convolution(name, rng)

    def build(emit, data, one):
        return emit(relax.op.nn.relu(emit(product(data, constant(one(w))))))

    found = compare(cpu, precision, build, [x], w[0].size)
    depthwise = CONVOLUTIONS[name][2].get("groups") == x.shape[-1]
    assert (KERNELS[cpu, precision] in found) == (not depthwise)


@pytest.mark.parametrize("cpu", ["amx_bfloat16", "bfloat16"])
def test_pixels_are_apart(rng, cpu):
    """What is no number, in one pixel, reaches only the windows around it: no step of the reduction is filled with
    other pixels, times zero."""
    x, w, product = convolution("colours", rng)
    x[0, 7, 8] = np.inf
    mod = at_precision(module([(x.shape, "float32")], lambda emit, data: emit(product(data, constant(w)))), "bfloat16")
    target = cpu_target(cpu, 1)
    kernels = lower_module(mod, target)
    assert [KERNELS[cpu, "bfloat16"] in kernel.implementation for kernel in kernels_of(kernels)].count(True) == 1
    amx.emulates(target)
    (expected,), (actual,) = interpret(mod, [x]), run_lowered(kernels, [x], target)
    assert not np.isfinite(expected).all()
    np.testing.assert_array_equal(np.isfinite(actual), np.isfinite(expected))


def test_a_row_of_the_window_is_one_step():
    """Also of floats with three channels, whose pixels are padded to four."""
    workload = conv((1, 224, 224, 3), 64, (7, 7), strides=(2, 2), padding=(3, 3, 3, 3), data_dtype=BITS)
    workload = replace(workload, weight_dtype=BITS, out_dtype="float32")
    assert conv2d.plan(workload, TDPBF16PS.suited(workload)).mode.taps == (7, 1, 28)


@pytest.mark.parametrize(("cpu", "precision"), KERNELS)
@pytest.mark.parametrize("name", MATRICES)
def test_matrices(rng, name, cpu, precision):
    *shapes, is_constant = MATRICES[name]
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)

    def build(emit, data, *more):
        return emit(relax.op.matmul(data, constant(more[-1](y)) if is_constant else more[0]))

    found = compare(cpu, precision, build, [x] if is_constant else [x, y], x.shape[-1])
    assert (KERNELS[cpu, precision] in found) == (is_constant or cpu in ("amx_bfloat16", "bfloat16"))


def test_a_cpu_without_multiply_adds_multiplies_rounded_values(rng):
    x, w, product = convolution("window", rng)
    build = lambda emit, data, one: emit(product(data, constant(one(w))))  # noqa: E731
    assert "16" not in compare("x86-64", "bfloat16", build, [x], w[0].size)


# ---- what is chosen ----------------------------------------------------------------------------------------------


def two_layers():
    w = [np.random.default_rng(seed).normal(size=(6, 6)).astype(np.float32) for seed in (1, 2)]
    return float_module(
        (3, 6), lambda emit, x: emit(relax.op.matmul(emit(relax.op.matmul(x, constant(w[0]))), constant(w[1])))
    )


def test_build_rounds_all_products_to_a_precision(rng):
    network, x = two_layers(), rng.standard_normal((3, 6)).astype(np.float32)
    engine = qnn_ext.build(network, "avx2", num_threads=1, precision="bfloat16")
    assert sum("bfloat16" in kernel.implementation for kernel in engine.kernels) == 2
    rounded = qnn_ext.QnnModule(at_precision(network.ir, "bfloat16"), network.inputs, network.outputs)
    np.testing.assert_allclose(engine(x), Interpreter(rounded)(x), rtol=1e-6, atol=1e-6)
    assert np.abs(engine(x) - Interpreter(network)(x)).max() > 1e-4


def test_a_tensor_is_rounded_once(rng):
    w = rng.standard_normal((6, 6)).astype(np.float32)
    network = float_module(
        (3, 6), lambda emit, x: emit(relax.op.add(*(emit(relax.op.matmul(x, constant(one))) for one in (w, -w))))
    )
    names = [op_name(binding.value) for binding in bindings_of(at_precision(network.ir, "bfloat16")["main"])]
    assert names.count("qnn.bfloat16") == 1 and names.count("matmul") == 2


def test_single_layers(rng):
    network, x = two_layers(), rng.standard_normal((3, 6)).astype(np.float32)
    names = [binding.var.name for binding in bindings_of(network.ir["main"])]
    config = QConfig(calibrate_mode="global_scale", overrides={names[1]: {"precision": "bfloat16"}})
    mixed = quantize(network, config=config)
    engine = qnn_ext.build(mixed, "avx2", num_threads=1)
    assert ["bfloat16" in kernel.implementation for kernel in engine.kernels if kernel.macs] == [False, True]
    np.testing.assert_allclose(engine(x), Interpreter(mixed)(x), rtol=1e-6, atol=1e-6)


def test_the_precision_is_in_the_key_of_a_build(monkeypatch):
    monkeypatch.delitem(sys.modules, "qnn_ext.plugins", raising=False)  # with plugins, builds have no key
    network, target = two_layers(), make_target("avx2", 1)
    keys = {
        _key([qnn_ext.QnnModule(at_precision(network.ir, one), network.inputs, network.outputs)], target, True)
        for one in ("float32", "bfloat16", "float16")
    }
    assert len(keys) == 3 and None not in keys


def test_an_unknown_precision():
    with pytest.raises(QnnError, match="precision: must be one of 'float32', 'bfloat16', 'float16', found 'half'"):
        qnn_ext.build(two_layers(), "avx2", precision="half")
