"""QONNX's quantizers, against the specification's formulas in NumPy."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext import ModelFormatError, UnsupportedOperatorError
from qnn_ext.frontends.onnx import from_onnx
from qnn_ext.frontends.onnx.converters.qonnx import DOMAINS

from .graphs import model, node, onnx, operators, run_ort, value

F32 = np.float32
ROUNDINGS = {
    "ROUND": np.round,
    "HALF_EVEN": np.round,
    "CEIL": np.ceil,
    "FLOOR": np.floor,
    "UP": lambda x: np.sign(x) * np.ceil(np.abs(x)),
    "DOWN": np.fix,
    "HALF_UP": lambda x: np.sign(x) * np.floor(np.abs(x) + F32(0.5)),
    "HALF_DOWN": lambda x: np.sign(x) * np.ceil(np.abs(x) - F32(0.5)),
}


def integers(bits, signed, narrow):
    """The lowest and highest integer."""
    if signed:
        return F32(-(2 ** (bits - 1)) + narrow), F32(2 ** (bits - 1) - 1)
    return F32(0), F32(2**bits - 1 - narrow)


def quant(x, scale, zero_point, bits, signed=1, narrow=1, rounding_mode="ROUND"):
    """(round(clip(x / scale + zero_point)) − zero_point) · scale"""
    steps = x / scale + zero_point
    if bits == 1 and signed:
        steps = np.where(steps >= 0, F32(1), F32(-1))
    else:
        steps = ROUNDINGS[rounding_mode.upper()](np.clip(steps, *integers(bits, signed, narrow)))
    return (steps - zero_point) * scale


def first_trunc(x, scale, zero_point, bits, out_bits, rounding_mode="FLOOR"):
    """(round(rint(x / scale + zero_point) / 2^(bits − out_bits)) − zero_point) · scale"""
    steps = np.round(x / scale + zero_point) / F32(2.0 ** (bits - out_bits))
    return (ROUNDINGS[rounding_mode](steps) - zero_point) * scale


def second_trunc(x, scale, zero_point, bits, out_scale, out_bits, rounding_mode="FLOOR", signed=1, narrow=0):
    """(round(clip(rint(x / scale + zero_point) / 2^k)) − zero_point / 2^k) · out_scale"""
    factor = F32(2.0 ** np.round(np.log2(out_scale / scale)))
    steps = np.clip(np.round(x / scale + zero_point) / factor, *integers(out_bits, signed, narrow))
    return (ROUNDINGS[rounding_mode](steps) - zero_point / factor) * out_scale


def quantizer(op, x, *parameters, domain=DOMAINS[0], version=1, **attributes):
    """A model of one quantizer with constant parameters."""
    names = [f"p{index}" for index in range(len(parameters))]
    constants = {name: np.asarray(parameter, F32) for name, parameter in zip(names, parameters, strict=True)}
    nodes = [node(op, ["x", *names], ["y"], op, domain=domain, **attributes)]
    return imported(model(nodes, [value("x", x.shape)], [value("y", None)], constants), domain, version)


def imported(proto, domain=DOMAINS[0], version=1):
    proto.opset_import.append(onnx.helper.make_opsetid(domain, version))
    return proto


def both(proto, feed):
    """The module and its output, equal in the interpreter and compiled."""
    module = from_onnx(proto)
    (found,) = qnn_ext.Interpreter(module).run(feed).values()
    (compiled,) = qnn_ext.build(module, num_threads=1).run(feed).values()
    np.testing.assert_array_equal(compiled, found)
    return module, found


def samples(scale, bits, shape=(4, 6, 5)):
    """Values within and beyond the range, midpoints between two integers and their neighbours among them."""
    count = int(np.prod(shape))
    rng = np.random.default_rng(bits)
    steps = rng.integers(-(2**bits), 2**bits, count) * F32(0.5)
    steps[::5] = np.nextafter(steps[::5], F32(np.inf))
    steps[1::5] = rng.standard_normal(len(steps[1::5])) * 2**bits
    steps[:4] = [0.5, 0.49999997, -0.49999997, -0.5]
    return (steps.astype(F32) * F32(scale)).reshape(shape)


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("op", ["Quant", "IntQuant"])
def test_every_domain(domain, op):
    x = samples(0.25, 4)
    proto = quantizer(op, x, 0.25, 0, 4, domain=domain, signed=1, narrow=0, rounding_mode="ROUND")
    np.testing.assert_array_equal(both(proto, {"x": x})[1], quant(x, F32(0.25), F32(0), 4, narrow=0))


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 8, 9, 16, 24])
@pytest.mark.parametrize("signed", [0, 1])
@pytest.mark.parametrize("narrow", [0, 1])
def test_widths(bits, signed, narrow):
    x, scale = samples(0.11, bits), F32(0.11)
    proto = quantizer("Quant", x, scale, 0, bits, signed=signed, narrow=narrow)
    expected = quant(x, scale, F32(0), bits, signed, narrow)
    np.testing.assert_array_equal(both(proto, {"x": x})[1], expected)


@pytest.mark.parametrize("mode", [*ROUNDINGS, "round", "half_up"])
@pytest.mark.parametrize("zero_point", [0, 5])
def test_rounding_modes(mode, zero_point):
    x, scale = samples(0.25, 4), F32(0.25)
    proto = quantizer("Quant", x, scale, zero_point, 4, signed=1, narrow=0, rounding_mode=mode)
    expected = quant(x, scale, F32(zero_point), 4, 1, 0, mode)
    np.testing.assert_array_equal(both(proto, {"x": x})[1], expected)


def test_a_zero_point_is_added_before_rounding():
    """0.5 + 1 is rounded to 2, and not to 0 + 1."""
    x = np.asarray([0.5, 1.5, 2.5], F32)
    _, found = both(quantizer("Quant", x, 1, 1, 8, signed=0, narrow=0), {"x": x})
    np.testing.assert_array_equal(found, [1, 1, 3])


@pytest.mark.parametrize("shape", [(1, 6, 1), (6, 1), (4, 1, 1), (5,), (1, 1, 1)])
@pytest.mark.parametrize("zero_points", [False, True])
def test_one_scale_for_each_channel(shape, zero_points):
    x, rng = samples(0.25, 4), np.random.default_rng(0)
    scale = rng.uniform(0.1, 0.4, shape).astype(F32)
    zero_point = rng.integers(-3, 3, shape).astype(F32) if zero_points else F32(0)
    proto = quantizer("Quant", x, scale, zero_point, 4, signed=1, narrow=1)
    np.testing.assert_array_equal(both(proto, {"x": x})[1], quant(x, scale, zero_point, 4))


def test_bipolar():
    x = samples(0.25, 4)
    x[0, 0] = [0.0, -0.0, 1e-30, -1e-30, 3]
    scale = np.asarray([0.5, 0.1, 0.2, 0.3, 0.7, 2], F32).reshape(6, 1)
    _, found = both(quantizer("BipolarQuant", x, scale), {"x": x})
    np.testing.assert_array_equal(found, np.where(x >= 0, scale, -scale))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("mode", ROUNDINGS)
@pytest.mark.parametrize("zero_point", [0, 16])
def test_truncation(mode, zero_point):
    x, scale, zero = samples(0.25, 9), F32(0.25), F32(zero_point)
    proto = quantizer("Trunc", x, scale, zero_point, 8, 4, rounding_mode=mode)
    np.testing.assert_array_equal(both(proto, {"x": x})[1], first_trunc(x, scale, zero, 8, 4, mode))
    for signed, narrow in ((0, 0), (1, 0), (1, 1)):
        attributes = dict(rounding_mode=mode, signed=signed, narrow=narrow)
        proto = quantizer("Trunc", x, scale, zero_point, 8, 4, 5, version=2, **attributes)
        expected = second_trunc(x, scale, zero, 8, F32(4), 5, **attributes)
        np.testing.assert_array_equal(both(proto, {"x": x})[1], expected)


def network(rng, quantizers, domain=DOMAINS[0]):
    """Quantized images → convolution → ReLU → quantize → pool → matrix product. All scales are powers of two, so that
    float arithmetic is exact. quantizers: (node of the data, weights and activations) -> nodes"""
    weight = (rng.standard_normal((4, 3, 3, 3)) * 0.25).astype(F32)
    matrix = (rng.standard_normal((4, 5)) * 0.25).astype(F32)
    nodes = [
        *quantizers("x", "qx", 0),
        *quantizers("w", "qw", 1),
        node("Conv", ["qx", "qw"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        *quantizers("r", "qr", 2),
        node("GlobalAveragePool", ["qr"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        *quantizers("f", "qf", 2),
        *quantizers("m", "qm", 3),
        node("MatMul", ["qf", "qm"], ["y"]),
    ]
    return nodes, {"w": weight, "m": matrix}


SETTINGS = [  # scale, bits, signed, narrow
    (F32(0.0625), 8, 1, 0),
    (np.asarray([0.125, 0.0625, 0.25, 0.125], F32).reshape(4, 1, 1, 1), 4, 1, 1),
    (F32(0.125), 4, 0, 0),
    (np.asarray([0.125, 0.0625, 0.25, 0.125, 0.25], F32), 3, 1, 0),
]


def float_network(x, constants):
    """The network's formulas in float64, which are exact."""
    qx, qw, qm = (
        quant(array, *_of(index)).astype(np.float64)
        for array, index in ((x, 0), (constants["w"], 1), (constants["m"], 3))
    )
    padded = np.pad(qx, [(0, 0), (0, 0), (1, 1), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    convolved = np.einsum("nchwij,ocij->nohw", windows, qw)
    activated = quant(np.maximum(convolved, 0).astype(F32), *_of(2))
    pooled = activated.astype(np.float64).mean((2, 3)).astype(F32)
    return (quant(pooled, *_of(2)).astype(np.float64) @ qm).astype(F32)


def _of(index):
    scale, bits, signed, narrow = SETTINGS[index]
    return scale, F32(0), bits, signed, narrow


def products_in_integers(module):
    """Whether every product is one of integers and no operator runs in float for want of a rule."""
    names = operators(module)
    return not module.notes and not any(name in ("nn.conv2d", "matmul") for name in names)


def test_a_network_runs_in_integers(rng):
    def quantizers(source, target, index):
        scale, bits, signed, narrow = SETTINGS[index]
        for name, parameter in (("s", scale), ("b", F32(bits))):
            constants[f"{target}_{name}"] = np.asarray(parameter)
        inputs = [source, f"{target}_s", "zero", f"{target}_b"]
        return [node("Quant", inputs, [target], domain=DOMAINS[0], signed=signed, narrow=narrow, rounding_mode="ROUND")]

    constants = {"zero": np.asarray(0, F32)}
    nodes, weights = network(rng, quantizers)
    proto = imported(model(nodes, [value("x", (2, 3, 8, 8))], [value("y", (2, 5))], constants | weights))
    x = (rng.standard_normal((2, 3, 8, 8)) * 4).astype(F32)
    module, found = both(proto, {"x": x})
    np.testing.assert_array_equal(found, float_network(x, weights))
    assert products_in_integers(module), (operators(module), module.notes)


def test_quantize_clip_dequantize_runs_in_integers(rng):
    """The form in which Brevitas writes narrow integers with standard operators."""

    def quantizers(source, target, index):
        scale, bits, signed, narrow = SETTINGS[index]
        dtype = np.int8 if signed else np.uint8
        low, high = (np.asarray(bound, dtype) for bound in integers(bits, signed, narrow))
        flat = scale.reshape(-1) if scale.size > 1 else scale
        axis = {1: {"axis": 0}, 3: {"axis": 1}}.get(index, {})
        constants.update({f"{target}_s": flat, f"{target}_z": np.zeros(flat.shape, dtype)})
        constants.update({f"{target}_low": low, f"{target}_high": high})
        parameters = [f"{target}_s", f"{target}_z"]
        return [
            node("QuantizeLinear", [source, *parameters], [f"{target}_q"], **axis),
            node("Clip", [f"{target}_q", f"{target}_low", f"{target}_high"], [f"{target}_c"]),
            node("DequantizeLinear", [f"{target}_c", *parameters], [target], **axis),
        ]

    constants = {}
    nodes, weights = network(rng, quantizers)
    proto = model(nodes, [value("x", (2, 3, 8, 8))], [value("y", (2, 5))], constants | weights, opset=13)
    x = (rng.standard_normal((2, 3, 8, 8)) * 4).astype(F32)
    module, found = both(proto, {"x": x})
    np.testing.assert_array_equal(found, float_network(x, weights))
    np.testing.assert_array_equal(found, run_ort(proto, {"x": x})[0])
    assert products_in_integers(module), (operators(module), module.notes)


def test_a_bias_of_32_bits_is_added_to_the_accumulator(rng):
    weight, bias = rng.standard_normal((6, 5)).astype(F32), rng.standard_normal(5).astype(F32)
    constants = {
        "zero": F32(0),
        "eight": F32(8),
        "all": F32(32),
        "s": F32(0.03),
        "t": F32(0.02),
        "st": F32(0.03) * F32(0.02),
        "w": weight,
        "b": bias,
    }
    attributes = dict(domain=DOMAINS[1], signed=1, narrow=0, rounding_mode="ROUND")
    nodes = [
        node("Quant", ["x", "s", "zero", "eight"], ["qx"], **attributes),
        node("Quant", ["w", "t", "zero", "eight"], ["qw"], **attributes),
        node("Quant", ["b", "st", "zero", "all"], ["qb"], **attributes),
        node("Gemm", ["qx", "qw", "qb"], ["g"]),
        node("Quant", ["g", "s", "zero", "eight"], ["y"], **attributes),
    ]
    x = rng.standard_normal((3, 6)).astype(F32)
    module, found = both(
        imported(model(nodes, [value("x", (3, 6))], [value("y", (3, 5))], constants), DOMAINS[1]), {"x": x}
    )
    steps = [np.clip(np.rint(a / constants[s]), -128, 127).astype(np.int64) for a, s in ((x, "s"), (weight, "t"))]
    total = steps[0] @ steps[1] + np.rint(bias / constants["st"]).astype(np.int64)
    multiplier = constants["st"] / constants["s"]
    expected = np.clip(np.rint(total.astype(F32) * multiplier), -128, 127).astype(F32) * constants["s"]
    np.testing.assert_array_equal(found, expected)
    assert products_in_integers(module), (operators(module), module.notes)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "Gemm"])
@pytest.mark.parametrize("quantized_weights", [True, False])
def test_float_biases_and_weights_stay_what_they_are(op, quantized_weights, rng):
    """ONNX Runtime rounds them in its own models: biases to steps of data times those of weights, 0.15 here."""
    weight = rng.standard_normal((5, 5) if op == "Gemm" else (5, 5, 1, 1)).astype(F32)
    bias = np.linspace(-0.4, 0.4, 5).astype(F32)
    constants = {"zero": F32(0), "four": F32(4), "eight": F32(8), "s": F32(0.5), "t": F32(0.3), "u": F32(0.01)}
    attributes = dict(domain=DOMAINS[0], signed=1, narrow=0, rounding_mode="ROUND")
    nodes = [
        node("Quant", ["x", "s", "zero", "four"], ["qx"], **attributes),
        node("Quant", ["w", "t", "zero", "four"], ["qw"], **attributes),
        node(op, ["qx", "qw" if quantized_weights else "w", "b"], ["p"]),
        node("Quant", ["p", "u", "zero", "eight"], ["y"], **attributes),
    ]
    shape = (3, 5) if op == "Gemm" else (3, 5, 1, 1)
    constants = {name: np.asarray(array) for name, array in (constants | {"w": weight, "b": bias}).items()}
    x = rng.standard_normal(shape).astype(F32)
    _, found = both(imported(model(nodes, [value("x", shape)], [value("y", shape)], constants)), {"x": x})
    matrix = quant(weight, F32(0.3), F32(0), 4, narrow=0) if quantized_weights else weight
    matrix = matrix.reshape(5, 5).T if op == "Conv" else matrix.reshape(5, 5)
    total = (quant(x, F32(0.5), F32(0), 4, narrow=0).reshape(3, 5) @ matrix + bias).astype(np.float64)
    expected = np.clip(np.rint(total / F32(0.01)), -128, 127)
    near_tie = np.abs(np.abs(total / F32(0.01)) % 1 - 0.5) < 1e-3
    steps = np.rint(found.reshape(3, 5) / F32(0.01))
    np.testing.assert_array_equal(steps[~near_tie], expected[~near_tie])


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "op, parameters, attributes, error, message",
    [
        ("Quant", (-0.5, 0, 8), {}, ModelFormatError, "must hold positive scales"),
        ("Quant", (np.nan, 0, 8), {}, ModelFormatError, "must hold finite numbers"),
        ("Quant", (np.zeros(0), 0, 8), {}, ModelFormatError, "must hold finite numbers"),
        ("Quant", (0.5, 0.25, 8), {}, UnsupportedOperatorError, "zero point 0.25; it must be an integer"),
        ("Quant", (0.5, 0, 4.5), {}, UnsupportedOperatorError, r"bit width \[4.5\]"),
        ("Quant", (0.5, 0, 0), {}, UnsupportedOperatorError, "from 1 to 32"),
        ("Quant", (0.5, 0, 1e30), {}, UnsupportedOperatorError, "from 1 to 32"),
        ("Quant", (0.5, 0, [4, 8]), {}, UnsupportedOperatorError, r"bit width \[4.0, 8.0\]"),
        ("Quant", (0.5, 0, 32), {"signed": 0}, UnsupportedOperatorError, "unsigned integers of 32 bits"),
        ("Quant", (0.5, 0, 8), {"rounding_mode": "STOCHASTIC"}, ModelFormatError, "must be one of FLOOR, CEIL, ROUND"),
        ("Quant", (np.ones((6, 5)), 0, 8), {}, UnsupportedOperatorError, r"shapes \(6, 5\) and \(\)"),
        ("Quant", (np.ones(6), 0, 8), {}, UnsupportedOperatorError, "a single axis"),
        ("Quant", (np.ones((2, 1, 1, 1)), 0, 8), {}, UnsupportedOperatorError, "a single axis"),
        ("Quant", (0.5, 0), {}, ModelFormatError, "input 3 is missing"),
        ("BipolarQuant", (), {}, ModelFormatError, "input 1 is missing"),
        ("Trunc", (0.5, 0, 8), {}, ModelFormatError, "5 inputs, or 6 in version 2; found 4"),
        ("Trunc", (0.5, 3, 8, 2.0, 8), {}, UnsupportedOperatorError, "zero point 3, of which 2\\^2 is no divisor"),
        ("Trunc", (np.ones((6, 1)), 0, 8, 4), {}, UnsupportedOperatorError, "for each channel"),
        ("Trunc", (1e-38, 0, 8, 1e38, 4), {}, UnsupportedOperatorError, "truncation by 252 bits"),
    ],
)
def test_parameters_that_are_refused(op, parameters, attributes, error, message):
    with pytest.raises(error, match=message):
        from_onnx(quantizer(op, np.zeros((4, 6, 5), F32), *parameters, **attributes))


def test_parameters_computed_at_run_time_are_refused():
    nodes = [node("Quant", ["x", "s", "zero", "bits"], ["y"], domain=DOMAINS[0])]
    inputs = [value("x", (2, 3)), value("s", ())]
    proto = imported(model(nodes, inputs, [value("y", None)], {"zero": F32(0), "bits": F32(8)}))
    with pytest.raises(UnsupportedOperatorError, match=r"Quant.*input 1 \('s'\) computed at run time"):
        from_onnx(proto)
