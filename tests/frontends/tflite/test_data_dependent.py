"""WHERE, and what follows tensors whose sizes depend on data: LiteRT's results."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import InputError, UnsupportedOperatorError
from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter

pytest.importorskip("ai_edge_litert", reason="models are built with ai-edge-litert")

from tests.conformance.tflite_models.builder import Graph
from tests.conformance.tflite_models.runner import invoke

from .test_updates import suppression

I32, I64, F32 = np.int32, np.int64, np.float32


def check(model, trials, build=False):
    expected = invoke(model, trials, "builtin", stateful=False)
    module = from_tflite(model)
    for runner in (Interpreter(module), *([qnn_ext.build(module, num_threads=1)] if build else [])):
        for trial, references in zip(trials, expected, strict=True):
            for found, reference in zip(runner.run(trial).values(), references, strict=True):
                assert (found.shape, found.dtype) == (reference.shape, reference.dtype)
                np.testing.assert_array_equal(found, reference)


def trials_of(rng, *shape):
    """Some, all and no elements."""
    drawn = np.rint(rng.standard_normal(shape) * 2).astype(F32)
    return [[drawn], [np.ones(shape, F32)], [np.zeros(shape, F32)]]


@pytest.mark.parametrize("dtype", ["bool", "float32", "int32", "int64", "int8"])
@pytest.mark.parametrize("shape", [(6,), (2, 3, 4)], ids=str)
def test_where(dtype, shape, rng):
    graph = Graph()
    graph.op("WHERE", [graph.input(shape, dtype)], [graph.output((), "int64")])
    trials = [[x.astype(dtype)] for (x,) in trials_of(rng, *shape)]
    check(graph.build(), trials[:2])
    (found,) = Interpreter(from_tflite(graph.build())).run(trials[2]).values()
    assert found.shape == (0, len(shape))  # what LiteRT's Python cannot return


def network(tail, shape=(5, 3)):
    """Rows by a mask of their first element, and what `tail` adds: (graph, indices of the rows, x) -> nothing."""
    graph = Graph()
    x = graph.input(shape, "float32")
    first = graph.tensor((shape[0],), "float32")
    options = {"beginMask": 0, "endMask": 1, "ellipsisMask": 0, "newAxisMask": 0, "shrinkAxisMask": 2}
    graph.op("STRIDED_SLICE", [x, *map(graph.const, (I32([0, 0]), I32([0, 1]), I32([1, 1])))], [first], **options)
    mask, found, rows = (graph.tensor(*one) for one in (((shape[0],), "bool"), ((), "int64"), ((), "int64")))
    graph.op("GREATER", [first, graph.const(F32(0))], [mask])
    graph.op("WHERE", [mask], [found])
    graph.op("RESHAPE", [found, graph.const(I32([-1]))], [rows], newShape=[-1])
    tail(graph, rows, x)
    return graph.build()


def gathered(graph, rows, x):
    picked, total = graph.output((), "float32"), graph.output((3,), "float32")
    graph.op("GATHER", [x, rows], [picked], axis=0, batchDims=0)
    graph.op("REDUCE_MAX", [picked, graph.const(I32([0, 1]))], [top := graph.tensor((), "float32")], keepDims=False)
    graph.op("SUB", [picked, top], [below := graph.tensor((), "float32")])
    graph.op("CONCATENATION", [picked, below], [graph.output((), "float32")], axis=0)
    graph.op("SUM", [picked, graph.const(I32([0]))], [total], keepDims=False)


def shaped(graph, rows, x):
    graph.op("GATHER", [x, rows], [picked := graph.tensor((), "float32")], axis=0, batchDims=0)
    graph.op("SHAPE", [picked], [shape := graph.tensor((2,), "int32")], outType=2)
    options = {"beginMask": 0, "endMask": 0, "ellipsisMask": 0, "newAxisMask": 0, "shrinkAxisMask": 1}
    bounds = [graph.const(I32([value])) for value in (0, 1, 1)]
    graph.op("STRIDED_SLICE", [shape, *bounds], [count := graph.output((), "int32")], **options)
    graph.op("MUL", [count, graph.const(I32(3))], [many := graph.tensor((), "int32")])
    graph.op("PACK", [many, graph.const(I32(1))], [target := graph.tensor((2,), "int32")], valuesCount=2, axis=0)
    graph.op("RESHAPE", [picked, target], [graph.output((), "float32")], newShape=[])
    graph.op("PACK", [count, graph.const(I32(2))], [pair := graph.tensor((2,), "int32")], valuesCount=2, axis=0)
    graph.op("FILL", [pair, graph.const(F32(7))], [graph.output((), "float32")])
    graph.op("RANGE", [graph.const(I32(0)), count, graph.const(I32(1))], [graph.output((), "int32")])


def sliced(graph, rows, x):
    options = {"beginMask": 0, "endMask": 0, "ellipsisMask": 0, "newAxisMask": 0, "shrinkAxisMask": 0}
    for begin, end, step, masks in (
        (0, 2, 1, {}),
        (1, 0, 1, {"endMask": 1}),
        (-2, 0, 1, {"endMask": 1}),
        (0, -1, 2, {}),
    ):
        bounds = [graph.const(I32([value])) for value in (begin, end, step)]
        graph.op("STRIDED_SLICE", [rows, *bounds], [graph.output((), "int64")], **{**options, **masks})


def averaged(graph, rows, x):
    graph.op("GATHER", [x, rows], [picked := graph.tensor((), "float32")], axis=0, batchDims=0)
    graph.op("CAST", [picked], [whole := graph.tensor((), "int32")], inDataType=0, outDataType=2)
    for axes, kept in (([0], False), ([0, 1], True), ([1], False)):
        for value, dtype in ((picked, "float32"), (whole, "int32")):
            result = graph.output((), dtype)
            graph.op("MEAN", [value, graph.const(I32(axes))], [result], keepDims=kept)


def distinct(graph, rows, x):
    graph.op("GATHER", [x, rows], [picked := graph.tensor((), "float32")], axis=0, batchDims=0)
    graph.op("RESHAPE", [picked, graph.const(I32([-1]))], [flat := graph.tensor((), "float32")], newShape=[-1])
    values, places = graph.output((), "float32"), graph.output((), "int64")
    graph.op("UNIQUE", [flat], [values, places], idxOutType=4)


@pytest.mark.parametrize("tail", [gathered, shaped, sliced, averaged, distinct], ids=lambda tail: tail.__name__)
def test_network(tail, rng):
    trials = trials_of(rng, 5, 3)
    check(network(tail), trials[: 3 if tail is sliced else 2], build=tail is gathered)


def test_a_mean_of_nothing():
    """0, as in TFLite, where it can be asked."""
    module = from_tflite(network(averaged))
    results = list(Interpreter(module).run([np.zeros((5, 3), F32)]).values())
    assert [result.tolist() for result in results] == [[0, 0, 0], [0, 0, 0], [[0]], [[0]], [], []]


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64", "int8", "uint8", "int16"])
@pytest.mark.parametrize("code", [2, 4])
def test_unique(dtype, code, rng):
    graph = Graph()
    indices = graph.output((9,), "int32" if code == 2 else "int64")
    graph.op("UNIQUE", [graph.input((9,), dtype)], [graph.output((), dtype), indices], idxOutType=code)
    trials = [[rng.integers(low, 4, 9).astype(dtype)] for low in (0, 0, 3)]
    if dtype == "float32":
        trials.append([F32([-0.0, 0.0, 1, np.inf, -np.inf, np.inf, 1, 5, 5])])
    check(graph.build(), trials, build=code == 4)


def up_to(start, step, *, limited=True):
    """A range up to the number of positive elements."""
    graph = Graph()
    x = graph.input((7,), "float32")
    mask, ones, many = (graph.tensor((7,), "bool"), graph.tensor((7,), "int32"), graph.tensor((), "int32"))
    graph.op("GREATER", [x, graph.const(F32(0))], [mask])
    graph.op("CAST", [mask if limited else x], [ones], inDataType=6 if limited else 0, outDataType=2)
    graph.op("SUM", [ones, graph.const(I32([0]))], [many], keepDims=False)
    result = graph.output((), "int32")
    graph.op("RANGE", [graph.const(I32(start)), many, graph.const(I32(step))], [result])
    return graph.build()


@pytest.mark.parametrize("start,step", [(0, 1), (-2, 1), (1, 3)])
def test_range_up_to_a_count(start, step, rng):
    check(up_to(start, step), [[F32([1, -1, 2, 1, 0, 3, 1])], [np.ones(7, F32)]], build=step == 3)


def test_ranges_without_a_known_end():
    with pytest.raises(InputError, match=r"below 1|out of range"):
        Interpreter(from_tflite(up_to(1, 1))).run([np.zeros(7, F32)])
    with pytest.raises(UnsupportedOperatorError, match=r"RANGE #3 .*whose largest value is not known.*tf.minimum"):
        from_tflite(up_to(0, 1, limited=False))


def test_bounds_of_a_value_that_many_ways_lead_to():
    graph = Graph()
    value = graph.input((), "int8")
    wide = graph.tensor((), "int64")
    graph.op("CAST", [value], [wide], inDataType=9, outDataType=4)
    for _ in range(50):
        doubled = graph.tensor((), "int64")
        graph.op("MAXIMUM", [wide, wide], [doubled])
        wide = doubled
    graph.op("RANGE", [graph.const(I64(0)), wide, graph.const(I64(1))], [graph.output((), "int64")])
    check(graph.build(), [[np.int8(5)], [np.int8(127)]])


def test_slice_by_the_number_of_boxes(rng):
    """The boxes that NON_MAX_SUPPRESSION_V4 keeps, without what fills them up."""
    graph = Graph()
    boxes, scores = graph.input((9, 4), "float32"), graph.input((9,), "float32")
    limits = [graph.const(value) for value in (I32(6), F32(0.4), F32(0.3))]
    kept, count = graph.tensor((6,), "int32"), graph.tensor((), "int32")
    graph.op("NON_MAX_SUPPRESSION_V4", [boxes, scores, *limits], [kept, count])
    graph.op("PACK", [count], [end := graph.tensor((1,), "int32")], valuesCount=1, axis=0)
    options = {"beginMask": 1, "endMask": 0, "ellipsisMask": 0, "newAxisMask": 0, "shrinkAxisMask": 0}
    first = graph.tensor((), "int32")
    graph.op("STRIDED_SLICE", [kept, graph.const(I32([0])), end, graph.const(I32([1]))], [first], **options)
    graph.op("GATHER", [boxes, first], [graph.output((), "float32")], axis=0, batchDims=0)
    corner = rng.random((9, 2))
    values = np.concatenate([corner, corner + rng.random((9, 2)) * 0.5], 1).astype(F32)
    check(graph.build(), [[values, (rng.permutation(9) / scale).astype(F32)] for scale in (9, 20, 40)])
    assert from_tflite(suppression("NON_MAX_SUPPRESSION_V4", 5, 3, 0.1, 0.5)).outputs[0].bounded == ()


NO_MASKS = {"beginMask": 0, "endMask": 0, "ellipsisMask": 0, "newAxisMask": 0, "shrinkAxisMask": 0}
COUNT = {"inDataType": 6, "outDataType": 2}


def counted(tail):
    """What `tail` adds: (graph, number of positive elements of the input, the input (7, 3)) -> nothing."""
    graph = Graph()
    x = graph.input((7, 3), "float32")
    mask, ones, many = (graph.tensor((7, 3), "bool"), graph.tensor((7, 3), "int32"), graph.tensor((), "int32"))
    graph.op("GREATER", [x, graph.const(F32(0))], [mask])
    graph.op("CAST", [mask], [ones], **COUNT)
    graph.op("SUM", [ones, graph.const(I32([0, 1]))], [many], keepDims=False)
    tail(graph, many, x)
    return graph.build()


def pack(graph, *values):
    parts = [value if isinstance(value, int) else graph.const(value) for value in values]
    graph.op("PACK", parts, [result := graph.tensor((len(parts),), "int32")], valuesCount=len(parts), axis=0)
    return result


def filled(graph, many, x):
    shape = pack(graph, many, I32(2), many)
    graph.op("FILL", [shape, graph.const(F32(7))], [graph.output((), "float32")])
    graph.op("BROADCAST_TO", [graph.const(F32([1, 2])), pack(graph, many, I32(2))], [graph.output((), "float32")])


def cut(graph, many, x):
    """x[:n], x[:-n], x[n:], x[n − 4:, :2], x[n − 4]."""
    graph.op("NEG", [many], [minus := graph.tensor((), "int32")])
    graph.op("SUB", [many, graph.const(I32(4))], [less := graph.tensor((), "int32")])
    one = graph.const(I32([1]))
    for begin, end, masks in ((I32(0), many, 1), (I32(0), minus, 1), (many, I32(0), 2)):
        options = {**NO_MASKS, "beginMask": masks & 1, "endMask": masks >> 1}
        arguments = [x, pack(graph, begin), pack(graph, end), one]
        graph.op("STRIDED_SLICE", arguments, [graph.output((), "float32")], **options)
    twice = graph.const(I32([1, 1]))
    arguments = [x, pack(graph, less, I32(0)), pack(graph, I32(0), I32(2)), twice]
    graph.op("STRIDED_SLICE", arguments, [graph.output((), "float32")], **{**NO_MASKS, "endMask": 1})
    arguments = [x, pack(graph, less, I32(0)), pack(graph, I32(0), I32(2)), twice]
    graph.op("STRIDED_SLICE", arguments, [graph.output((), "float32")], **{**NO_MASKS, "shrinkAxisMask": 1})


def windows(graph, many, x):
    """x[n : n + 2], x[n:], x[:n], and all of x where the length is −1."""
    graph.op("SUB", [graph.const(I32(0)), graph.const(I32(1))], [every := graph.tensor((), "int32")])
    graph.op("MUL", [many, graph.const(I32(0))], [none := graph.tensor((), "int32")])
    graph.op("ADD", [every, none], [every := graph.tensor((), "int32")])
    zero, three = I32(0), I32(3)
    for begin, size in ((many, I32(2)), (many, I32(-1)), (zero, many), (zero, every)):
        arguments = [x, pack(graph, begin, zero), pack(graph, size, three)]
        graph.op("SLICE", arguments, [graph.output((), "float32")])


@pytest.mark.parametrize("tail", [filled, cut, windows], ids=lambda tail: tail.__name__)
def test_shapes_and_slices_by_a_count(tail):
    trials = []
    for many in (1, 4, 5):
        x = np.full(21, -1, F32)
        x[:many] = np.arange(1, many + 1)
        trials.append([np.ascontiguousarray(x[::-1].reshape(7, 3))])
    check(counted(tail), trials, build=True)


def test_a_slice_that_reaches_beyond():
    def far(graph, many, x):
        arguments = [x, pack(graph, many, I32(0)), graph.const(I32([2, 3]))]
        graph.op("SLICE", arguments, [graph.output((2, 3), "float32")])

    module = from_tflite(counted(far))
    assert module.outputs[0].bounded == ()
    with pytest.raises(InputError, match="SLICE #4"):
        Interpreter(module).run([np.ones((7, 3), F32)])


def test_a_size_without_a_known_limit():
    graph = Graph()
    graph.op("FILL", [graph.input((2,), "int32"), graph.const(F32(1))], [graph.output((), "float32")])
    with pytest.raises(UnsupportedOperatorError, match=r"FILL #0 .*whose largest value is not known.*tf.minimum"):
        from_tflite(graph.build())


def test_refusal():
    def reversed_rows(graph, rows, x):
        graph.op("REVERSE_V2", [rows, graph.const(I32([0]))], [graph.output((), "int64")])

    with pytest.raises(
        UnsupportedOperatorError, match=r"at most 5, which comes from WHERE.*REVERSE_V2 is not supported"
    ):
        from_tflite(network(reversed_rows))


def test_interpreter_facade(rng):
    from qnn_ext.compat.litert import Interpreter as Facade

    interpreter = Facade(model_content=network(sliced))
    interpreter.allocate_tensors()
    ((x,), *_) = trials_of(rng, 5, 3)
    (expected,) = invoke(network(sliced), [[x]], "builtin", stateful=False)
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    for detail, wanted in zip(interpreter.get_output_details(), expected, strict=True):
        assert tuple(detail["shape"]) == wanted.shape
        np.testing.assert_array_equal(interpreter.get_tensor(detail["index"]), wanted)
