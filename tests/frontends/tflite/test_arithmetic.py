"""ADD … POW and DIV: against LiteRT, and divisions that LiteRT does not carry out."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext import op
from qnn_ext.errors import InputError, UnsupportedOperatorError
from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter
from tests.conformance.tflite_models.builder import Graph, Q
from tests.conformance.tflite_models.runner import invoke
from tests.op.helpers import evaluate

from .oracle_cases import assert_equals_reference, cases_of

OPERATORS = "ADD SUB MUL DIV SQUARED_DIFFERENCE MAXIMUM MINIMUM POW SQUARE FLOOR_DIV FLOOR_MOD ADD_N"


@pytest.mark.parametrize("case", cases_of(OPERATORS))
def test_equals_litert(case):
    assert_equals_reference(case)


def binary(operator, dtype, x, y, qs=(None, None, None), numerics="tflite", **options):
    """The operator on two vectors; qs: (scale, zero point) of both and of the result."""
    pytest.importorskip("ai_edge_litert", reason="models are built with ai-edge-litert")
    from tests.conformance.tflite_models import builder

    graph = builder.Graph()
    one, two, out = (builder.Q(*q) if q else None for q in qs)
    ins = [graph.input((len(x),), dtype, one), graph.input((len(y),), dtype, two)]
    graph.op(operator, ins, [graph.output((len(x),), dtype, out)], **options)
    module = from_tflite(graph.build(), numerics=numerics)
    return Interpreter(module)(np.array(x, dtype), np.array(y, dtype))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_floor_mod_of_every_sign(dtype):
    low = int(np.iinfo(dtype).min)
    x, y = [7, -7, 7, -7, low, low], [3, 3, -3, -3, -1, 1]
    np.testing.assert_array_equal(binary("FLOOR_MOD", dtype, x, y), [1, 2, -2, -1, 0, 0])


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32"])
def test_floor_div_of_every_sign(dtype):
    low = int(np.iinfo(dtype).min)
    x, y = [7, -7, 7, -7, low], [3, 3, -3, -3, -1]
    np.testing.assert_array_equal(binary("FLOOR_DIV", dtype, x, y), [2, -3, -3, 2, low])


def test_int32_division_does_not_trap():
    low = -(2**31)
    np.testing.assert_array_equal(binary("DIV", "int32", [7, -7, low, low], [2, 2, -1, 1]), [3, -3, low, low])


@pytest.mark.parametrize("operator", ["DIV", "FLOOR_DIV", "FLOOR_MOD"])
def test_integer_division_by_zero_is_refused(operator):
    with pytest.raises(InputError, match=f"{operator} #0 .*: integer division by zero"):
        binary(operator, "int32", [7, 1], [2, 0])


def test_float_floor_mod_has_the_sign_of_the_divisor():
    x, y = [5.5, -5.5, 5.5, -5.5, 6.0], [2.0, 2.0, -2.0, -2.0, -2.0]
    np.testing.assert_array_equal(binary("FLOOR_MOD", "float32", x, y), [1.5, 0.5, -0.5, -1.5, 0.0])


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_quantized_division_by_zero_is_refused(dtype):
    qs = ((0.1, 0), (0.1, 4 if dtype == "int8" else 0), (0.1, 0))
    zero = qs[1][1]
    np.testing.assert_array_equal(binary("DIV", dtype, [50], [zero + 100], qs), [5])
    with pytest.raises(InputError, match=r"DIV #0 .*: integer division by zero"):
        binary("DIV", dtype, [50, 50], [zero + 100, zero], qs)


def check_quotients(dtype, scales, x, y):
    """Against LiteRT's default kernel and its reference kernel."""
    graph, middle = Graph(), 128 if dtype == "uint8" else 0
    operands = [graph.input(x.shape, dtype, Q(scale, middle)) for scale in scales[:2]]
    graph.op("DIV", operands, [graph.output(x.shape, dtype, Q(scales[2], middle))], act="none")
    content = graph.build()
    for kernels, numerics in (("default", "float32"), ("reference", "tflite")):
        ((expected,),) = invoke(content, [[x, y]], kernels, False)
        np.testing.assert_array_equal(Interpreter(from_tflite(content, numerics=numerics))(x, y), expected)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("scales", [(0.05, 0.05, 0.24), (0.011, 0.7, 0.02), (0.3, 0.01, 4.0)])
def test_all_quotients_of_bytes(dtype, scales):
    """Small ones too, where LiteRT's shift wraps around."""
    values = np.arange(256, dtype=np.uint8).view(dtype)
    divisors = values[values != (128 if dtype == "uint8" else 0)]
    x, y = (column.reshape(-1) for column in np.meshgrid(values, divisors, indexing="ij"))
    check_quotients(dtype, scales, x, y)


@pytest.mark.parametrize("scales", [(0.05, 0.05, 0.0043), (1.0, 2.0**-15, 1.0), (1.0, 2.0**-30, 0.9), (1e-5, 1.0, 1.0)])
def test_quotients_of_int16(rng, scales):
    """Near zero, and of scales far apart, LiteRT's shift wraps around."""
    x, y = rng.integers(-32768, 32768, (2, 3000)).astype(np.int16)
    x[:1000], y[500:1500] = rng.integers(-50, 50, 1000), rng.integers(-50, 50, 1000)
    y[y == 0] = 1
    check_quotients("int16", scales, x, y)


def test_quantized_floor_div_is_refused():
    with pytest.raises(UnsupportedOperatorError, match=r"FLOOR_DIV #0 .*quantized"):
        binary("FLOOR_DIV", "int8", [1], [1], ((0.1, 0),) * 3)


def test_activations_without_integer_form_are_refused():
    with pytest.raises(UnsupportedOperatorError, match="fused activation TANH"):
        binary("ADD", "int8", [1], [1], ((0.1, 0),) * 3, act="tanh")
    with pytest.raises(UnsupportedOperatorError, match="fused activation TANH"):
        binary("ADD", "int32", [1], [1], act="tanh")


def test_floor_division_of_floats_is_in_double_precision():
    """The quotient −1e-60 is not a float32 number, but rounds down to −1."""
    graph = Graph()
    operands = [graph.input((2,), "float32"), graph.input((2,), "float32")]
    graph.op("FLOOR_DIV", operands, [graph.output((2,), "float32")])
    module = from_tflite(graph.build())
    values = np.array([-1e-30, 7.5], np.float32), np.array([1e30, 2], np.float32)
    for runner in (Interpreter(module), qnn_ext.build(module, num_threads=1)):
        np.testing.assert_array_equal(runner(*values), [-1, 3])


# ---- ADD of 16 bits ------------------------------------------------------------------------------------------------

FINE = ((0.05, 0.03, 0.06), (1e-9, 0.5, 0.4))


def sums(scales, one, two, **options):
    """A model that adds two tensors."""
    graph = Graph()
    x, y = (
        graph.input(value.shape, "int16", Q(float(np.float32(scale))))
        for value, scale in zip((one, two), scales, strict=False)
    )
    output = graph.output(np.broadcast_shapes(one.shape, two.shape), "int16", Q(float(np.float32(scales[2]))))
    graph.op("ADD", [x, y], [output], **{"potScaleInt16": False, **options})
    return graph.build()


def near_ties(scales, rng):
    """31 pairs on whose sums TFLite's two roundings disagree."""
    one, two = rng.integers(-(2**15), 2**15, (2, 400_000)).astype(np.int16)
    once, twice = (
        evaluate(op.add(one, two, scales[0], 0, scales[1], 0, scales[2], 0, rounding=rounding, out_dtype="int16"))
        for rounding in ("TFLITE_SHIFTED", "TFLITE")
    )
    found = np.flatnonzero(once != twice)[:31]
    assert len(found) == 31
    return one[found], two[found], once[found], twice[found]


@pytest.mark.parametrize("scales", FINE)
def test_near_ties_of_16_bits(scales, rng):
    """LiteRT's optimized kernel shifts the operands of whole vectors of 16 elements before it rounds."""
    one, two, once, twice = near_ties(scales, rng)
    for shapes in (((15,), (15,)), ((16,), (1, 16)), ((1, 31), (31,))):
        x, y = (value[: shape[-1]].reshape(shape) for value, shape in zip((one, two), shapes, strict=True))
        model = sums(scales, x, y)
        (expected,) = invoke(model, [[x, y]], "default", False)[0]
        found = Interpreter(from_tflite(model))(x, y)
        np.testing.assert_array_equal(found, expected)
        whole = x.size - x.size % 16
        np.testing.assert_array_equal(found.reshape(-1), [*once[:whole], *twice[whole : x.size]])
        np.testing.assert_array_equal(Interpreter(from_tflite(model, numerics="tflite"))(x, y).ravel(), twice[: x.size])


@pytest.mark.parametrize("options", [{"act": "relu"}, {"potScaleInt16": True}])
def test_near_ties_of_16_bits_compiled(options, rng):
    one, two, *_ = near_ties(FINE[0], rng)
    model = sums(FINE[0], one, two, **options)
    (expected,) = invoke(model, [[one, two]], "default", False)[0]
    np.testing.assert_array_equal(qnn_ext.build(from_tflite(model), num_threads=1)(one, two), expected)


def test_broadcast_sums_of_16_bits_take_the_reference_kernel(rng):
    one, two, *_ = near_ties(FINE[0], rng)
    one, two = one[:, None], two[None]
    model = sums(FINE[0], one, two)
    (expected,) = invoke(model, [[one, two]], "default", False)[0]
    np.testing.assert_array_equal(Interpreter(from_tflite(model))(one, two), expected)


def test_a_difference_too_small_for_its_scale(rng):
    """Attention's mask in BERT, 1 − mask, has the scale of what it is multiplied by, −10000: it is 0 whatever the mask,
    which TVM's simplifier finds."""
    pytest.importorskip("ai_edge_litert", reason="models are built with ai-edge-litert")
    graph, unit, large = Graph(), Q(1 / 255, -128), Q(10000 / 255, 127)
    mask = graph.input((1, 96), "float32")
    quantized = graph.tensor((1, 96), "int8", unit)
    graph.op("QUANTIZE", [mask], [quantized])
    difference, result = graph.tensor((1, 96), "int8", large), graph.output((1, 96), "int8", large)
    graph.op("SUB", [graph.const(np.array([127]), "int8", unit), quantized], [difference])
    graph.op("MUL", [difference, graph.const(np.array([-128]), "int8", large)], [result])
    model, data = graph.build(), rng.random((1, 96), np.float32)
    ((expected,),) = invoke(model, [[data]], "default", False)
    np.testing.assert_array_equal(qnn_ext.build(from_tflite(model), num_threads=1)(data), expected)
