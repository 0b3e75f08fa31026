"""Windows, elements between elements, index vectors of STABLEHLO, bits and angles: against LiteRT."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import UnsupportedOperatorError
from qnn_ext.frontends.tflite.importer import from_tflite

pytest.importorskip("ai_edge_litert", reason="models are built with ai-edge-litert")

from tests.conformance.tflite_models.builder import Graph
from tests.frontends.tflite.test_updates import assert_equals_litert, check, values

RNG = np.random.default_rng(16)


def with_body(operator, body, inputs, known, output, option, margins=None, **options):
    """A model of one operator with a subgraph of one operator, or none, on two scalars."""
    graph, dtype = Graph(), str(inputs[0].dtype)
    operands = [
        graph.const(array) if index in known else graph.input(array.shape, str(array.dtype))
        for index, array in enumerate(inputs)
    ]
    graph.op(operator, operands, [graph.output(output, dtype)], **{option: 1}, **options)
    if margins is not None:
        graph.packed.operators[-1].builtinOptions2.padding = list(margins)  # elsewhere an enum
    inner = graph.subgraph("body")
    left, right = inner.tensor((), dtype), inner.tensor((), dtype)
    inner.packed.inputs, inner.packed.outputs = [left, right], [right]
    if body is not None:
        result = inner.tensor((), dtype)
        inner.op(body, [left, right], [result])
        inner.packed.outputs = [result]
    return graph.build(), [array for index, array in enumerate(inputs) if index not in known]


# ---- windows ------------------------------------------------------------------------------------------------------

BODIES = ["STABLEHLO_ADD", "STABLEHLO_MAXIMUM", "STABLEHLO_MINIMUM", "STABLEHLO_MULTIPLY"]
WINDOWS = {
    "pool": dict(window=(1, 2, 3), strides=(1, 2, 1)),
    "running": dict(window=(1, 5, 1), padding=(0, 0, 4, 0, 0, 0)),
    "dilated": dict(window=(2, 1, 2), dilations=(1, 1, 3), strides=(1, 1, 2)),
    "between": dict(window=(1, 3, 2), between=(1, 2, 3), padding=(0, 0, 1, 2, 0, 1)),
    "cut": dict(window=(1, 1, 2), padding=(0, 0, -1, 0, -2, 3)),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", WINDOWS)
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_reduce_window(dtype, body, case):
    shape, start = (3, 5, 7), 2
    options = {"strides": (1, 1, 1), "dilations": (1, 1, 1), "between": (1, 1, 1), "padding": (0,) * 6, **WINDOWS[case]}
    sizes = [(n - 1) * f + 1 for n, f in zip(shape, options["between"], strict=True)]
    sizes = [
        n + low + high for n, low, high in zip(sizes, options["padding"][::2], options["padding"][1::2], strict=True)
    ]
    output = [
        (n - (w - 1) * d - 1) // s + 1
        for n, w, d, s in zip(sizes, options["window"], options["dilations"], options["strides"], strict=True)
    ]
    model, trial = with_body(
        "STABLEHLO_REDUCE_WINDOW",
        body,
        [values(shape, dtype, -4, 5), np.array(start, dtype)],
        {1},
        output,
        "bodySubgraphIndex",
        windowDimensions=options["window"],
        windowStrides=options["strides"],
        baseDilations=options["between"],
        windowDilations=options["dilations"],
        margins=options["padding"],
    )
    assert_equals_litert(model, [trial], compiled=case == "between")


FUNCTIONS = {"ADD": 1, "MUL": 2, "MINIMUM": 3, "MAXIMUM": 4}  # the schema's ReduceWindowFunction


@pytest.mark.parametrize("reduction", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_tflites_own_reduce_window(dtype, reduction):
    window, strides, dilations = ([1, 2, 3], [1, 2, 1], [1, 1, 2])
    inputs = [values((3, 5, 7), dtype, -4, 5), np.array(2, dtype)]
    inputs += [np.array(value, np.int64) for value in (window, strides, dilations)]
    check(
        "REDUCE_WINDOW",
        inputs,
        [((3, 2, 3), dtype)],
        {1, 2, 3, 4},
        quantization=False,
        reduceFunction=FUNCTIONS[reduction],
    )


def test_a_window_that_a_long_body_combines_is_refused():
    model, _ = with_body(
        "STABLEHLO_REDUCE_WINDOW",
        "SUB",
        [values((4,), "float32"), np.float32(0)],
        {1},
        (3,),
        "bodySubgraphIndex",
        windowDimensions=(2,),
        windowStrides=(1,),
        baseDilations=(1,),
        windowDilations=(1,),
        margins=(0, 0),
    )
    with pytest.raises(UnsupportedOperatorError, match="operators SUB; it must be one of ADD"):
        from_tflite(model)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", ["float32", "int8", "int32", "int64"])
@pytest.mark.parametrize("factors", [(1, 1), (2, 3), (4, 1)])
def test_dilate(dtype, factors):
    shape = (3, 4)
    inputs = [values(shape, dtype), np.array(factors, np.int32), np.array(7, dtype)]
    output = tuple((n - 1) * f + 1 for n, f in zip(shape, factors, strict=True))
    check("DILATE", inputs, [(output, dtype)], {1, 2}, quantization=False)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize(
    ("low", "high", "between"), [((1, 0), (0, 2), (0, 0)), ((-1, 1), (2, -2), (1, 2)), ((0, 0), (0, 0), (3, 0))]
)
def test_stablehlo_pad(dtype, low, high, between):
    shape = (3, 4)
    output = tuple(n + lo + hi + (n - 1) * b for n, lo, hi, b in zip(shape, low, high, between, strict=True))
    options = {"edgePaddingLow": low, "edgePaddingHigh": high, "interiorPadding": between}
    check("STABLEHLO_PAD", [values(shape, dtype), np.array(7, dtype)], [(output, dtype)], {1}, **options)


# ---- elementwise --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("operator", BODIES)
def test_stablehlo_arithmetic(dtype, operator):
    check(operator, [values((3, 5), dtype), values((3, 5), dtype)], [((3, 5), dtype)])


@pytest.mark.parametrize("dtype", ["bool", "int32", "int64"])
def test_stablehlo_and(dtype):
    check("STABLEHLO_AND", [values((3, 5), dtype), values((3, 5), dtype)], [((3, 5), dtype)])


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32"])
def test_stablehlo_shift_left(dtype):
    bits = np.arange(15).reshape(3, 5).astype(dtype) % (np.iinfo(dtype).bits - 1)
    check("STABLEHLO_SHIFT_LEFT", [values((3, 5), dtype), bits], [((3, 5), dtype)], quantization=False)


# ---- index vectors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("constant", [False, True])
def test_stablehlo_gather(dtype, constant):
    """Slices (1, 3, 2) of (4, 5, 6), without their first dimension, of which some would begin too late."""
    places = np.array([[[0, 1], [3, 4]], [[2, 0], [1, 2]], [[3, 3], [0, 4]]], np.int32)  # (3, 2 rows, 2 numbers)
    options = {
        "offsetDims": (1, 3),
        "collapsedSliceDims": (0,),
        "startIndexMap": (0, 2),
        "indexVectorDim": 2,
        "sliceSizes": (1, 3, 2),
    }
    inputs = [values((4, 5, 6), dtype), places]
    check("STABLEHLO_GATHER", inputs, [((3, 3, 2, 2), dtype)], {1} if constant else (), **options)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize(
    "body", [None, "STABLEHLO_ADD", "STABLEHLO_MULTIPLY", "STABLEHLO_MAXIMUM", "STABLEHLO_MINIMUM"]
)
def test_stablehlo_scatter(dtype, body):
    """Windows (2, 3) of a (4, 5) tensor at places that the second dimension of the indices names; one lies outside."""
    places = np.array([[0, 2, 3, 0], [1, 2, 0, 0]], np.int32)
    updates = values((4, 2, 3), dtype, -4, 5)
    if body is None:
        places, updates = places[:, :2] * [[1], [0]] + [[0], [1]], updates[:2]
    model, trial = with_body(
        "STABLEHLO_SCATTER",
        body,
        [values((4, 5), dtype, -4, 5), places.astype(np.int32), updates],
        set(),
        (4, 5),
        "updateComputationSubgraphIndex",
        updateWindowDims=(1, 2),
        scatterDimsToOperandDims=(0, 1),
        indexVectorDim=0,
    )
    assert_equals_litert(model, [trial], compiled=True)


# ---- bits, angles, segments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "target"),
    [("float32", "int32"), ("int32", "float32"), ("uint8", "int8"), ("int16", "uint16"), ("int64", "float64")],
)
def test_bitcast_of_the_same_size(source, target):
    bits = RNG.integers(0, 256, (3, 4 * np.dtype(source).itemsize), np.uint8)
    if source == "float32":
        bits = np.float32([0.0, -0.0, 1.5, -np.inf] * 3).view(np.uint8).reshape(3, -1)
    elif target.startswith("float"):
        bits[:, np.dtype(source).itemsize - 1 :: np.dtype(source).itemsize] = 0x3F  # no NaN
    data = bits.view(source)
    model_inputs = [data]
    check("BITCAST", model_inputs, [(data.shape, target)], quantization=False)


@pytest.mark.parametrize(("source", "target"), [("int32", "uint8"), ("float32", "int16"), ("int64", "int32")])
def test_bitcast_of_other_sizes(source, target):
    count = np.dtype(source).itemsize // np.dtype(target).itemsize
    wide = values((2, 3), source, -2000, 2000)
    narrow = wide.view(target).reshape(2, 3, count)
    check("BITCAST", [wide], [((2, 3, count), target)], quantization=False)
    check("BITCAST", [narrow], [((2, 3), source)], quantization=False)


def test_atan2():
    """All quadrants, signed zeros and infinities."""
    ends = np.float32([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, 1e-38, 3e38, np.nan])
    y, x = (part.reshape(-1) for part in np.meshgrid(ends, ends))
    more = RNG.normal(0, 3, (2, 500)).astype(np.float32)
    y, x = np.concatenate([y, more[0]]), np.concatenate([x, more[1]])
    graph = Graph()
    operands = [graph.input(y.shape, "float32") for _ in "yx"]
    graph.op("ATAN2", operands, [graph.output(y.shape, "float32")])
    module = from_tflite(graph.build())
    expected = np.arctan2(y.astype(np.float64), x.astype(np.float64)).astype(np.float32)
    for runner in (qnn_ext.Interpreter(module), qnn_ext.build(module)):
        (found,) = runner.run([y, x]).values()
        np.testing.assert_array_max_ulp(found[~np.isnan(expected)], expected[~np.isnan(expected)], 1)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
        np.testing.assert_array_equal(np.signbit(found[expected == 0]), np.signbit(expected[expected == 0]))
    assert_close_to_litert(graph.build(), [y, x])


def assert_close_to_litert(model, trial):
    from tests.conformance.tflite_models.runner import invoke

    ((expected,),) = invoke(model, [trial], "builtin", stateful=False)
    (found,) = qnn_ext.Interpreter(from_tflite(model)).run(trial).values()
    np.testing.assert_allclose(found, expected, rtol=3e-7, atol=0)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_segment_sum(dtype):
    segments = np.array([0, 0, 1, 2, 2, 2], np.int32)
    check("SEGMENT_SUM", [values((6, 4), dtype), segments], [((3, 4), dtype)], {1})


def test_operator_codes_in_the_newer_field_alone():
    """As ai-edge-quantizer writes them: 0 in the older field does not mean ADD."""
    graph = Graph()
    graph.op("RELU", [graph.input((2, 3), "float32")], [graph.output((2, 3), "float32")])
    (code,) = graph.opcodes
    code.deprecatedBuiltinCode = 0
    assert_equals_litert(graph.build(), [[values((2, 3), "float32")]])
