"""Inputs whose sizes the file leaves open, such as audio of any length: against LiteRT once they are given."""

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as LiteRT

from qnn_ext import ModelFormatError, ShapeError, build
from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter
from tests.conformance.tflite_models.builder import Graph
from tests.conformance.tflite_models.runner import invoke

from .schema_models import TYPES


def audio_model(stored=1, signature=-1):
    """Frames of 4 samples, as many as there are whole ones, through a convolution over 3 frames."""
    graph = Graph()

    def tensor(*signed, dtype="float32"):
        index = graph.tensor([max(dim, 1) for dim in signed], dtype)
        graph.packed.tensors[index].shapeSignature = list(signed)
        return index

    def number(operator, *inputs, shape=(), **options):
        result = graph.tensor(shape, "int32")
        graph.op(operator, inputs, [result], **options)
        return result

    def const(values):
        return graph.const(values, "int32")

    audio = graph.tensor((1, stored), "float32", name="audio")
    graph.packed.tensors[audio].shapeSignature = None if signature is None else [1, signature]
    shape = number("SHAPE", audio, shape=(2,), outType=TYPES.INT32)
    samples = number("STRIDED_SLICE", shape, *map(const, ([1], [2], [1])), shape=(), shrinkAxisMask=1)
    frames = number("FLOOR_DIV", samples, const(4))
    size = number("PACK", const(1), number("MUL", frames, const(4)), shape=(2,), valuesCount=2)
    target = number("PACK", const(1), frames, const(1), const(4), shape=(4,), valuesCount=4)
    whole, framed, convolved = tensor(1, -1), tensor(1, -1, 1, 4), tensor(1, -1, 1, 5)
    graph.op("SLICE", [audio, const([0, 0]), size], [whole])
    graph.op("RESHAPE", [whole, target], [framed])
    weight = graph.const(np.random.default_rng(0).integers(-9, 9, (5, 3, 1, 4)), "float32")
    options = {"strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    graph.op("CONV_2D", [framed, weight, graph.const(np.arange(5), "float32")], [convolved], padding="VALID", **options)
    graph.packed.inputs, graph.packed.outputs = [audio], [convolved]
    return graph.build()


@pytest.mark.parametrize(("stored", "signature"), [(1, -1), (0, -1), (0, None), (-1, None)])
def test_an_open_dimension_is_named(stored, signature):
    hint = r"'audio' \(1, \?\); give their sizes, for example shapes={'audio': \(1, 128\)}, or --shape audio=1,128"
    with pytest.raises(ShapeError, match=hint):
        from_tflite(audio_model(stored, signature))


@pytest.mark.parametrize("length", [32, 41])
@pytest.mark.parametrize("stored", [0, 1])
def test_a_given_length_decides_all_shapes(stored, length):
    model = audio_model(stored)
    values = np.random.default_rng(1).integers(-99, 99, (1, length)).astype(np.float32)
    reference = LiteRT(model_content=model)
    reference.resize_tensor_input(reference.get_input_details()[0]["index"], values.shape)
    reference.allocate_tensors()
    reference.set_tensor(reference.get_input_details()[0]["index"], values)
    reference.invoke()
    module = from_tflite(model, shapes={"audio": values.shape})
    (found,) = Interpreter(module).run([values]).values()
    np.testing.assert_array_equal(found, reference.get_tensor(reference.get_output_details()[0]["index"]))


def test_too_short_a_length():
    with pytest.raises(ModelFormatError, match=r"CONV_2D.* \(1, -1, 1, 5\): the inputs are too small"):
        from_tflite(audio_model(), shapes={"audio": (1, 4)})


def empty(operator, outputs, more=(), **options):
    graph = Graph()
    inputs = [graph.input((0, 4), "float32")]
    inputs += [graph.input(one, "float32") if isinstance(one, tuple) else graph.const(one) for one in more]
    graph.op(operator, inputs, [graph.output(outputs, "float32")], **options)
    return graph.build()


EMPTY = {
    "elementwise": lambda: empty("ABS", (0, 4)),
    "join": lambda: empty("CONCATENATION", (2, 4), [(2, 4)], axis=0),
    "sum": lambda: empty("SUM", (4,), [np.int32([0])], keepDims=False),
    "product": lambda: empty("FULLY_CONNECTED", (0, 3), [np.ones((3, 4), np.float32), np.ones(3, np.float32)]),
    "reshape": lambda: empty("RESHAPE", (2, 0, 3), [np.int32([2, 0, 3])], newShape=[2, 0, 3]),
}


@pytest.mark.parametrize("name", EMPTY)
def test_a_dimension_of_0_that_is_not_open(name):
    """The input is a tensor without elements, as in LiteRT; another size can be given."""
    model = EMPTY[name]()
    module = from_tflite(model)
    trial = [np.ones(spec.shape, np.float32) for spec in module.inputs]
    (expected,) = invoke(model, [trial], "builtin", stateful=False)
    for runner in (Interpreter(module), build(module, num_threads=1)):
        (found,) = runner.run(trial).values()
        assert found.shape == expected[0].shape
        np.testing.assert_array_equal(found, expected[0])
    if name == "elementwise":
        assert from_tflite(model, shapes={"input0": (3, 4)}).outputs[0].shape == (3, 4)
