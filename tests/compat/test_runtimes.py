"""The façades of ONNX Runtime and LiteRT against the packages themselves, on the bundled models."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import qnn_ext
import qnn_ext.compat.litert as litert
import qnn_ext.compat.onnxruntime as ort
from qnn_ext.compat.absent import NotHonouredError
from qnn_ext.compat.sessions import IgnoredOptionWarning, InvalidArgument, InvalidModel, NotReady

DATA = Path(qnn_ext.__file__).parent / "data"
ONNX = [f"digits_cnn_{kind}.onnx" for kind in ("qdq", "qoperator", "dynamic", "float32")]
TFLITE = [f"digits_{kind}.tflite" for kind in ("cnn_int8", "cnn_uint8", "cnn_float32", "lstm_int8")]
one_thread = ort.SessionOptions(intra_op_num_threads=1)


@pytest.fixture(scope="module")
def session():
    return ort.InferenceSession(DATA / "digits_cnn_qdq.onnx", one_thread, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("file", ONNX)
def test_session(file, rng):
    package = pytest.importorskip("onnxruntime")
    precise = package.SessionOptions()
    precise.add_session_config_entry("session.x64quantprecision", "1")  # else its sums overflow 16 bits without VNNI
    real = package.InferenceSession(DATA / file, precise)
    ours = ort.InferenceSession(DATA / file, one_thread)
    for ports in ("get_inputs", "get_outputs"):
        described = [[(p.name, p.shape, p.type) for p in getattr(which, ports)()] for which in (ours, real)]
        assert described[0] == described[1]
    for name in ort.ModelMetadata.__dataclass_fields__:
        assert getattr(ours.get_modelmeta(), name) == getattr(real.get_modelmeta(), name)
    image = rng.random((1, 1, 8, 8), np.float32)
    (found,), (expected,) = (which.run(None, {"image": image}) for which in (ours, real))
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert found.std() > 0.1
    assert np.array_equal(ours.run(["logits"], {"image": image.tolist()})[0], found)


def test_any_batch():
    whole = ort.InferenceSession((DATA / "digits_cnn_float32.onnx").read_bytes(), one_thread)
    images = np.linspace(0, 1, 3 * 64, dtype=np.float32).reshape(3, 1, 8, 8)
    (logits,) = whole.run(None, {"image": images})
    assert np.array_equal(logits[2:], whole.run(None, {"image": images[2:]})[0])


def open_shapes():
    """y = x + x where no dimension is known, and none is a batch."""
    onnx = pytest.importorskip("onnx")
    ports = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", "columns"]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "x"], ["y"])], "open", ports[:1], ports[1:])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]).SerializeToString()


def test_open_shapes_are_compiled_at_each_first_call():
    ours = ort.InferenceSession(open_shapes(), one_thread)
    assert ours.get_inputs()[0].shape == ["rows", "columns"]
    for shape in ((2, 3), (4, 5), (2, 3)):
        x = np.ones(shape, np.float32)
        assert np.array_equal(ours.run(None, {"x": x})[0], x + x)


def test_a_free_dimension_is_overridden():
    options = ort.SessionOptions(intra_op_num_threads=1)
    options.add_free_dimension_override_by_name("columns", 3)
    options.add_free_dimension_override_by_name("rows", 2)
    ours = ort.InferenceSession(open_shapes(), options)
    assert ours.get_inputs()[0].shape == [2, 3] and ours.engine.inputs[0].shape == (2, 3)


def test_run_async(session):
    image, answered, got = np.ones((1, 1, 8, 8), np.float32), threading.Event(), []

    def callback(outputs, data, error):
        got.append((outputs, data, error))
        answered.set()

    session.run_async(None, {"image": image}, callback, "mine")
    assert answered.wait(30)
    (outputs, data, error), (expected,) = got[0], session.run(None, {"image": image})
    assert (data, error) == ("mine", "") and np.array_equal(outputs[0], expected)


@pytest.mark.parametrize(
    ("names", "feed", "message"),
    [
        (["zz"], {"image": np.zeros((1, 1, 8, 8), np.float32)}, "'zz'"),
        (None, {"zz": np.zeros(1)}, "'zz'"),
        (None, {}, "takes the inputs"),
        (None, {"image": np.zeros((1, 1, 8, 8), np.int8)}, "must be float32, found int8"),
        (None, {"image": np.zeros((1, 8, 8), np.float32)}, r"\[1, 1, 8, 8\], found \[1, 8, 8\]"),
        (None, [np.zeros((1, 1, 8, 8), np.float32)], "by name"),
    ],
)
def test_what_a_session_refuses(session, names, feed, message):
    for call in (session.run, lambda *given: session.run_async(*given, print, None)):
        with pytest.raises(ValueError, match=message) as caught:
            call(names, feed)
        assert isinstance(caught.value, qnn_ext.InputError)


def test_options_of_a_session(tmp_path):
    with pytest.raises(AttributeError, match="no_such_option"):
        ort.SessionOptions().no_such_option = 1
    for option in ({"enable_profiling": True}, {"optimized_model_filepath": "x.onnx"}):
        with pytest.raises(NotHonouredError, match=f"{next(iter(option))} cannot be honoured"):
            ort.SessionOptions(**option).check()
    with pytest.warns(IgnoredOptionWarning, match="inter_op_num_threads has no effect"):
        ort.SessionOptions(inter_op_num_threads=4).check()
    with pytest.warns(IgnoredOptionWarning, match="provider 'CUDAExecutionProvider' has no effect"):
        ort.InferenceSession(open_shapes(), one_thread, ["CUDAExecutionProvider", "CPUExecutionProvider"])
    for bad in (tmp_path / "missing.onnx", b"no model"):
        with pytest.raises(InvalidModel):
            ort.InferenceSession(bad)
    with pytest.raises(AttributeError, match="OrtValue is not part"):
        ort.OrtValue  # noqa: B018


def same(found, expected):
    """Nested dictionaries and lists with the same keys, types and values."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            same(found[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert type(found) is type(expected) and len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            same(*pair)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype and np.array_equal(found, expected)
    else:
        assert type(found) is type(expected) and found == expected


def described(interpreter):
    found = [interpreter.get_input_details(), interpreter.get_output_details(), interpreter.get_signature_list()]
    if found[-1]:
        runner = interpreter.get_signature_runner()
        found += [runner.get_input_details(), runner.get_output_details()]
    return found


@pytest.mark.parametrize("file", TFLITE)
def test_interpreter(file, rng):
    real = pytest.importorskip("ai_edge_litert.interpreter").Interpreter(str(DATA / file))
    ours = litert.Interpreter(DATA / file)
    same(described(ours), described(real))
    for which in (ours, real):
        which.allocate_tensors()
    place = real.get_input_details()[0]
    images = rng.integers(0, 100, (2, *place["shape"])).astype(place["dtype"])
    outputs = []
    for which in (ours, real):
        found = []
        for image in images:  # the second result depends on the first image in a model with states
            which.set_tensor(place["index"], image)
            which.invoke()
            found.append(which.get_tensor(which.get_output_details()[0]["index"]))
        which.reset_all_variables()
        for signature in which.get_signature_list().values():
            found += which.get_signature_runner()(**{signature["inputs"][0]: images[1]}).values()
        outputs.append(found)
    same(described(ours), described(real))
    for found, expected in zip(*outputs, strict=True):
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        if found.dtype.kind == "f":
            np.testing.assert_allclose(found, expected, atol=1e-5)
        else:
            assert np.array_equal(found, expected)
    assert not np.array_equal(*outputs[0][:2])


def test_resized_interpreter():
    real = pytest.importorskip("ai_edge_litert.interpreter").Interpreter(str(DATA / "digits_cnn_int8.tflite"))
    ours = litert.Interpreter(model_content=(DATA / "digits_cnn_int8.tflite").read_bytes())
    images = np.arange(128, dtype=np.int8).reshape(2, 8, 8, 1)
    outputs = []
    for which in (ours, real):
        which.allocate_tensors()
        which.resize_tensor_input(0, (2, 8, 8, 1))
        which.allocate_tensors()
        which.tensor(0)()[...] = images
        which.invoke()
        outputs.append(which.get_tensor(which.get_output_details()[0]["index"]))
    same(described(ours), described(real))
    assert outputs[0].shape == (2, 10) and np.array_equal(*outputs)
    with pytest.raises(InvalidArgument, match="open dimensions"):
        ours.resize_tensor_input(0, (3, 8, 8, 1), strict=True)


def test_what_an_interpreter_refuses(tmp_path):
    ours = litert.Interpreter(DATA / "digits_cnn_int8.tflite", num_threads=1)
    with pytest.raises(NotReady, match="allocate_tensors"):
        ours.invoke()
    ours.allocate_tensors()
    for index, value, message in (
        (0, np.zeros((1, 8, 8, 1), np.float32), "must be int8, found float32; quantize it with"),
        (0, np.zeros((8, 8, 1), np.int8), "resize_tensor_input"),
        (99, np.zeros(1), "is no input"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            ours.set_tensor(index, value)
        assert isinstance(caught.value, qnn_ext.InputError)
    with pytest.raises(InvalidArgument, match="neither an input nor an output"):
        ours.get_tensor(5)
    with pytest.raises(InvalidArgument, match="signature_key must be one of"):
        ours.get_signature_runner("zz")
    with pytest.raises(InvalidModel):
        litert.Interpreter(tmp_path / "missing.tflite")
    file = DATA / "digits_cnn_int8.tflite"
    with pytest.raises(InvalidArgument):
        litert.Interpreter()
    with pytest.raises(NotHonouredError, match="preserve_all_tensors"):
        litert.Interpreter(file, experimental_preserve_all_tensors=True)
    with pytest.raises(TypeError, match="no_such_option"):
        litert.Interpreter(file, no_such_option=True)
    with pytest.warns(IgnoredOptionWarning, match="fusion has no effect"):
        litert.Interpreter(file, experimental_disable_delegate_node_fusion=True)
