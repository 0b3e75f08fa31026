"""Elements written to or read from places that other tensors name, bits, calls, suppressed boxes: against LiteRT."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import InputError, ModelFormatError, UnsupportedOperatorError
from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter

pytest.importorskip("ai_edge_litert", reason="models are built with ai-edge-litert")

from tests.conformance.tflite_models.builder import Graph, Q
from tests.conformance.tflite_models.runner import invoke

SCALE = {"int8": Q(0.1, 3), "uint8": Q(0.1, 130)}
RNG = np.random.default_rng(15)


def values(shape, dtype, low=-100, high=100):
    if dtype == "bool":
        return RNG.integers(0, 2, shape).astype(bool)
    if dtype == "float32":
        return (RNG.integers(low, high, shape) / 16).astype(np.float32)
    return RNG.integers(max(low, np.iinfo(dtype).min), min(high, np.iinfo(dtype).max), shape).astype(dtype)


def one(operator, inputs, outputs, known=(), quantization=None, **options):
    """A model of one operator. inputs: arrays; known: the positions of constants; outputs: (shape, dtype)."""
    graph = Graph()

    def scale_of(array):
        return SCALE.get(str(array.dtype)) if quantization is None else quantization

    operands = [
        graph.const(array, None, scale_of(array))
        if k in known
        else graph.input(array.shape, str(array.dtype), scale_of(array))
        for k, array in enumerate(inputs)
    ]
    results = [graph.output(shape, dtype, SCALE.get(dtype)) for shape, dtype in outputs]
    graph.op(operator, operands, results, **options)
    return graph.build()


def assert_equals_litert(model, trials, compiled=False):
    expected = invoke(model, trials, "builtin", stateful=False)
    module = from_tflite(model)
    for runner in (Interpreter(module), *([qnn_ext.build(module)] if compiled else [])):
        for trial, references in zip(trials, expected, strict=True):
            for found, reference in zip(runner.run(trial).values(), references, strict=True):
                np.testing.assert_array_equal(found, reference)
                assert (found.shape, found.dtype) == (reference.shape, reference.dtype)


def check(operator, inputs, outputs, known=(), **options):
    model = one(operator, inputs, outputs, known, **options)
    assert_equals_litert(model, [[array for k, array in enumerate(inputs) if k not in known]])


STARTS = [(0, 0, 0), (1, 2, 3), (-4, 9, 1), (2, 0, 4)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int8", "int32", "int64", "bool"])
@pytest.mark.parametrize("size", [(1, 2, 3), (3, 4, 5), (3, 1, 5)], ids=str)
def test_dynamic_update_slice(dtype, size, constant):
    x, update = values((3, 4, 5), dtype), values(size, dtype)
    for start in STARTS:
        inputs = [x, update, np.array(start, np.int32)]
        check("DYNAMIC_UPDATE_SLICE", inputs, [((3, 4, 5), dtype)], {2} if constant else ())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8", "int32", "int64", "bool"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_scatter_nd(dtype, depth):
    shape = (4, 3, 5)
    places = np.stack([RNG.integers(0, size, (2, 6)) for size in shape[:depth]], -1).astype(np.int32)
    updates = values((2, 6, *shape[depth:]), dtype)
    inputs = [places, updates, np.array(shape, np.int32)]
    check("SCATTER_ND", inputs, [(shape, dtype)], {2})
    check("SCATTER_ND", inputs, [(shape, dtype)], {0, 2})


def test_scatter_beyond_the_result_is_an_error():
    inputs = [np.array([[4]], np.int32), np.ones((1,), np.float32), np.array([3], np.int32)]
    with pytest.raises(ModelFormatError, match=r"SCATTER_ND #0.*index 4 is out of range 0 … 2"):
        from_tflite(one("SCATTER_ND", inputs, [((3,), "float32")], {0, 2}))
    engine = Interpreter(from_tflite(one("SCATTER_ND", inputs, [((3,), "float32")], {2})))
    with pytest.raises(InputError, match="out of range"):
        engine.run(inputs[:2])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int8", "int32"])
def test_embedding_lookup(dtype, constant):
    table = values((7, 4, 3), dtype)
    rows = np.array([0, 6, 3, 3], np.int32)
    check("EMBEDDING_LOOKUP", [rows, table], [((4, 4, 3), dtype)], {1} if constant else ())


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_embedding_lookup_of_a_quantized_table(dtype):
    inputs = [np.array([0, 6, 3, 3], np.int32), values((7, 5), dtype)]
    graph = Graph()
    rows, table = graph.input((4,), "int32"), graph.const(inputs[1], None, Q(0.03, 0))
    result = graph.output((4, 5), "float32")
    graph.op("EMBEDDING_LOOKUP", [rows, table], [result])
    assert_equals_litert(graph.build(), [inputs[:1]])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("axes", [(1, 0), (0, 1), (2, 0), (0, 3), (3, 1)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "uint8", "int16", "int32", "int64"])
def test_reverse_sequence(dtype, axes):
    shape = (3, 4, 2, 5)
    steps, batch = axes
    lengths = RNG.integers(0, shape[steps] + 1, shape[batch])
    for kind in ("int32", "int64"):
        inputs = [values(shape, dtype), lengths.astype(kind)]
        check("REVERSE_SEQUENCE", inputs, [(shape, dtype)], seqDim=steps, batchDim=batch)
        check("REVERSE_SEQUENCE", inputs, [(shape, dtype)], {1}, seqDim=steps, batchDim=batch)


@pytest.mark.parametrize("dtype", ["float32", "int8", "int32"])
def test_matrix_diagonals(dtype):
    check("MATRIX_DIAG", [values((2, 3), dtype)], [((2, 3, 3), dtype)])
    for rows, columns in ((3, 3), (2, 4), (5, 3)):
        inputs = [values((2, rows, columns), dtype), values((2, min(rows, columns)), dtype)]
        check("MATRIX_SET_DIAG", inputs, [((2, rows, columns), dtype)])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_bits(dtype):
    x = values((3, 7), dtype, -30000, 30000)
    for operator in ("BITWISE_XOR", "RIGHT_SHIFT"):
        y = values((3, 7), dtype, -3, 40) if operator == "RIGHT_SHIFT" else values((3, 7), dtype)
        graph = Graph()
        operands = [graph.input((3, 7), dtype) for _ in range(2)]
        graph.op(operator, operands, [graph.output((3, 7), dtype)])
        assert_equals_litert(graph.build(), [[x, y]])


def suppression(operator, count, most, least, iou, sigma=0.0, batch=()):
    graph = Graph()
    boxes, scores = graph.input((count, 4), "float32"), graph.input((count,), "float32")
    thresholds = [graph.const(np.float32(value)) for value in (iou, least)]
    outputs = [graph.output((*batch, most), "int32")]
    if operator.endswith("V5"):
        thresholds.append(graph.const(np.float32(sigma)))
        outputs.append(graph.output((*batch, most), "float32"))
    outputs.append(graph.output((), "int32"))
    graph.op(operator, [boxes, scores, graph.const(np.int32(most)), *thresholds], outputs)
    return graph.build()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("operator", ["NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5"])
@pytest.mark.parametrize("least", [0.25, 0.95])
@pytest.mark.parametrize("most", [4, 40])
def test_non_max_suppression(operator, most, least):
    model = suppression(operator, 30, most, least, 0.3)
    trials = []
    for _ in range(4):
        corner, size = RNG.random((30, 2)), RNG.random((30, 2)) * 0.5
        boxes = np.concatenate([corner, corner + size], 1).astype(np.float32)
        boxes[::3] = boxes[::3, [2, 3, 0, 1]]  # the other corner first
        trials.append([boxes, (RNG.permutation(31)[:30] / 30).astype(np.float32)])
    assert_equals_litert(model, trials, compiled=True)


@pytest.mark.parametrize("count", [4, 17, 40])
def test_non_max_suppression_of_equal_scores(count):
    """In the order of LiteRT's queue; overlaps of just the threshold, and boxes without area, which are taken again."""
    model = suppression("NON_MAX_SUPPRESSION_V5", count, count, 0.1, 0.5)
    trials = []
    for levels in (1, 2, 5, 12):
        corner = RNG.integers(0, 4, (count, 2))
        boxes = np.concatenate([corner, corner + RNG.integers(0 if levels == 5 else 1, 4, (count, 2))], 1)
        trials.append([boxes.astype(np.float32), (RNG.integers(0, levels + 1, count) / levels).astype(np.float32)])
    assert_equals_litert(model, trials, compiled=count == 17)


def test_results_of_non_max_suppression_declared_with_a_batch():
    """As TensorFlow's converter writes `non_max_suppression_padded`."""
    model = suppression("NON_MAX_SUPPRESSION_V4", 5, 3, 0.1, 0.5, batch=(1,))
    boxes = np.concatenate([corner := RNG.random((5, 2)), corner + 0.4], 1).astype(np.float32)
    assert_equals_litert(model, [[boxes, (RNG.permutation(5) / 5).astype(np.float32)]])


def test_soft_suppression_is_refused():
    with pytest.raises(UnsupportedOperatorError, match=r"NON_MAX_SUPPRESSION_V5 #0.*sigma"):
        from_tflite(suppression("NON_MAX_SUPPRESSION_V5", 5, 3, 0.1, 0.5, sigma=0.5))


def test_call_of_a_subgraph():
    graph = Graph()
    x, y = graph.input((2, 3), "float32"), graph.input((2, 3), "float32")
    callee = graph.subgraph("difference")
    callee.packed.inputs = [callee.tensor((2, 3), "float32") for _ in range(2)]
    callee.packed.outputs = [callee.tensor((2, 3), "float32")]
    callee.op("SUB", callee.packed.inputs, callee.packed.outputs)
    middle = graph.tensor((2, 3), "float32")
    graph.op("CALL", [x, y], [middle], subgraph=1)
    graph.op("CALL", [middle, y], [graph.output((2, 3), "float32")], subgraph=1)
    inputs = [values((2, 3), "float32") for _ in range(2)]
    (found,) = qnn_ext.build(from_tflite(graph.build())).run(inputs).values()
    np.testing.assert_array_equal(found, inputs[0] - 2 * inputs[1])


# ---- segments, sparse values, boundaries -------------------------------------------------------------------------


@pytest.mark.parametrize("values_count", [None, 3])
@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8", "int32", "int64"])
def test_sparse_to_dense(dtype, values_count):
    places = np.array([[0, 3], [2, 1], [1, 4]], np.int32)
    own = values(() if values_count is None else (values_count,), dtype)
    shape, default = np.array([3, 5], np.int32), values((), dtype)
    check("SPARSE_TO_DENSE", [places, shape, own, default], [((3, 5), dtype)], known=(1,))


def test_sparse_to_dense_of_a_vector():
    shape, places = np.array([6], np.int64), np.array([4, 0, 2], np.int64)
    inputs = [places, shape, values((3,), "float32"), values((), "float32")]
    check("SPARSE_TO_DENSE", inputs, [((6,), "float32")], known=(1,))
    model = one("SPARSE_TO_DENSE", inputs, [((6,), "float32")], known=(1,))
    with pytest.raises(InputError, match=r"index 6 is out of range 0 … 5"):
        Interpreter(from_tflite(model)).run([np.array([4, 6, 2], np.int64), *inputs[2:]])


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("kind", ["SUM", "PROD", "MAX", "MIN"])
def test_unsorted_segments(kind, dtype):
    """Segment 2 has no rows, and rows of negative segments belong to none."""
    segments = np.array([[0, 3], [-1, 0], [1, 0]], np.int32)
    data = values((3, 2, 4), dtype, -6, 7)
    model = one(f"UNSORTED_SEGMENT_{kind}", [data, segments, np.array(4, np.int32)], [((4, 4), dtype)], known=(2,))
    assert_equals_litert(model, [[data, segments]], compiled=kind in ("SUM", "MIN"))
    with pytest.raises(InputError, match="index 4 is out of range"):
        Interpreter(from_tflite(model)).run([data, segments + 1])


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
def test_bucketize(dtype):
    data = np.append(values((4, 5), dtype, -9, 10).reshape(-1), np.array([3, -2], dtype))
    check("BUCKETIZE", [data], [(data.shape, "int32")], boundaries=[-2.0, 0.5, 3.0, 3.0])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_conv3d(padding, bias):
    data, weight = values((2, 4, 5, 6, 3), "float32"), values((2, 3, 2, 3, 4), "float32")
    options = {"strideD": 1, "strideH": 2, "strideW": 1, "padding": padding, "fusedActivationFunction": 1}
    options |= {"dilationDFactor": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    shape = (2, 4, 3, 6, 4) if padding == "SAME" else (2, 3, 2, 5, 4)
    inputs = [data, weight, values((4,), "float32")][: 3 if bias else 2]
    model = one("CONV_3D", inputs, [(shape, "float32")], known=(1, 2), **options)
    expected = invoke(model, [[data]], "builtin", stateful=False)
    for runner in (Interpreter(from_tflite(model)), qnn_ext.build(from_tflite(model))):
        np.testing.assert_allclose(runner(data), expected[0][0], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("strides,dilation,more", [((1, 2, 1), 1, 0), ((3, 1, 2), 1, 1), ((2, 2, 3), 2, 0)])
def test_conv3d_transpose(strides, dilation, more, padding, bias):
    """more: rows at the end that no element reaches; with SAME, fewer rows than strides say"""
    data, weight = values((2, 2, 3, 4, 3), "float32"), values((2, 3, 2, 4, 3), "float32")
    size = [
        stride * (length - (padding == "VALID")) + (dilation * (window - 1) + 1) * (padding == "VALID")
        for length, window, stride in zip(data.shape[1:4], weight.shape[:3], strides, strict=True)
    ]
    shape = (2, size[0] + (more if padding == "VALID" else -more), *size[1:], 4)
    names = zip("DHW", strides, strict=True)
    options = {f"stride{axis}": step for axis, step in names} | {f"dilation{axis}Factor": dilation for axis in "DHW"}
    inputs = [np.array(shape, np.int32), weight, data, values((4,), "float32")][: 4 if bias else 3]
    options |= {"padding": padding, "fusedActivationFunction": 1}
    model = one("CONV_3D_TRANSPOSE", inputs, [(shape, "float32")], known=(0, 1, 3), **options)
    expected = invoke(model, [[data]], "builtin", stateful=False)
    for runner in (Interpreter(from_tflite(model)), *([qnn_ext.build(from_tflite(model))] if bias else [])):
        np.testing.assert_allclose(runner(data), expected[0][0], rtol=1e-5, atol=1e-4)
