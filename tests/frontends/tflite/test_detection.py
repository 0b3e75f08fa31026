"""TFLite_Detection_PostProcess: against LiteRT, and damaged options."""

import numpy as np
import pytest
from flatbuffers import flexbuffers

import qnn_ext
from qnn_ext.errors import ModelFormatError
from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter
from tests.conformance.cases import load_cases
from tests.conformance.tflite_models.builder import Graph
from tests.conformance.tflite_models.runner import invoke

from .oracle_cases import assert_equals_reference, run_case

NAME = "TFLite_Detection_PostProcess"
CASES = load_cases(NAME)
TWO_CLASSES = [case for case in CASES if "two_classes" in case.name]


@pytest.mark.parametrize("case", [c for c in CASES if c not in TWO_CLASSES], ids=lambda case: case.name)
def test_equals_litert(case):
    assert_equals_reference(case)


@pytest.mark.parametrize("case", TWO_CLASSES, ids=lambda case: case.name)
def test_two_classes_per_detection_equal_litert(case):
    """Against LiteRT itself: the recorded goldens hold only the first half of the rows that LiteRT defines."""
    litert = pytest.importorskip("ai_edge_litert.interpreter")
    expected = litert.Interpreter(
        model_content=case.model, experimental_op_resolver_type=litert.OpResolverType.BUILTIN_REF
    )
    expected.allocate_tensors()
    for trial, outputs in zip(case.inputs, run_case(case, "tflite"), strict=True):
        for detail, array in zip(expected.get_input_details(), trial, strict=True):
            expected.set_tensor(detail["index"], array)
        expected.invoke()
        boxes, classes, scores, count = (expected.get_tensor(d["index"]) for d in expected.get_output_details())
        assert outputs[3] == count
        rows = 2 * int(count[0])
        np.testing.assert_allclose(outputs[0][:, :rows], boxes[:, :rows], rtol=0, atol=1e-5)
        np.testing.assert_array_equal(outputs[2][:, :rows], scores[:, :rows])
        np.testing.assert_array_equal(outputs[1][:, :rows], classes[:, :rows])


@pytest.mark.parametrize(("classes", "kept"), [(7, 1), (3, 2), (12, 5), (9, 9)])
def test_classes_of_equal_scores(classes, kept):
    """In the order of std::partial_sort, as quantized scores often need it."""
    rng, count, most = np.random.default_rng(classes), 30, 8
    graph = Graph()
    inputs = [graph.input((1, count, size), "float32") for size in (4, classes + 1)]
    anchors = np.concatenate([rng.random((count, 2)), np.full((count, 2), 0.05)], 1).astype(np.float32)
    settings = dict.fromkeys(("y_scale", "x_scale", "h_scale", "w_scale"), 10.0)
    settings |= dict(max_detections=most, max_classes_per_detection=kept, num_classes=classes)
    settings |= dict(use_regular_nms=False, nms_score_threshold=0.1, nms_iou_threshold=0.5)
    outputs = [graph.output(shape, "float32") for shape in ((1, most * kept, 4), (1, most * kept), (1, most * kept))]
    custom = bytes(flexbuffers.Dumps(settings))
    graph.op(NAME, [*inputs, graph.const(anchors)], [*outputs, graph.output((1,), "float32")], custom=custom)
    trials = [
        [
            rng.standard_normal((1, count, 4)).astype(np.float32),
            (rng.integers(0, levels + 1, (1, count, classes + 1)) / levels).astype(np.float32),
        ]
        for levels in (1, 3, 8)
    ]
    module = from_tflite(graph.build())
    for runner in (Interpreter(module), qnn_ext.build(module)):
        for trial, references in zip(trials, invoke(graph.build(), trials, "builtin", stateful=False), strict=True):
            found, boxes = list(runner.run(trial).values()), int(references[3][0])
            assert found[3] == boxes
            for result, reference in zip(found[:3], references[:3], strict=True):  # LiteRT leaves the other rows open
                np.testing.assert_array_equal(result[:, : boxes * kept], reference[:, : boxes * kept])


def test_float_arithmetic_on_quantized_inputs_is_noted():
    case = next(case for case in CASES if case.name == f"{NAME}/uint8/fast")
    (note,) = from_tflite(case.model).notes
    assert note.operator == NAME


def with_options(data):
    """The plainest case with other option bytes."""
    from ai_edge_litert import schema_py_generated as schema
    from flatbuffers import Builder

    case = next(case for case in CASES if case.name == f"{NAME}/float32/fast")
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(case.model, 0))
    model.subgraphs[0].operators[0].customOptions = list(data)
    builder = Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def options(**changes):
    case = next(case for case in CASES if case.name == f"{NAME}/float32/fast")
    from qnn_ext.frontends.tflite.reader import read_model

    (operator,) = read_model(case.model).subgraphs[0].operators
    return bytes(flexbuffers.Dumps(flexbuffers.Loads(operator.custom_options) | changes))


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00", b"nonsense" * 9, bytes(flexbuffers.Dumps([1, 2])), bytes(flexbuffers.Dumps({"num_classes": 3}))],
)
def test_options_that_are_no_map_are_refused(data):
    with pytest.raises(ModelFormatError, match=NAME):
        from_tflite(with_options(data))


@pytest.mark.parametrize(
    "changes",
    [
        {"max_detections": 0},
        {"max_detections": 2**40},
        {"num_classes": 9},
        {"nms_iou_threshold": 1.5},
        {"y_scale": 0.0},
        {"h_scale": float("nan")},
        {"num_classes": "three"},
    ],
)
def test_impossible_options_are_refused(changes):
    with pytest.raises(ModelFormatError, match=NAME):
        from_tflite(with_options(options(**changes)))


def test_every_flipped_byte_of_the_options_ends_in_our_error_or_imports():
    original = bytearray(options())
    for position in range(len(original)):
        damaged = bytearray(original)
        damaged[position] ^= 0xFF
        try:
            from_tflite(with_options(bytes(damaged)))
        except ModelFormatError as error:
            assert NAME in str(error)
