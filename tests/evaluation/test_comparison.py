"""The columns against figures computed here from outputs of frameworks and engines; memory against the builds."""

import sys
from dataclasses import replace

import numpy as np
import pytest

import qnn_ext
from qnn_ext import InputError, evaluation
from qnn_ext.evaluation import frameworks
from qnn_ext.evaluation.memory import split_of
from qnn_ext.quantize import QConfig
from tests.cases.bundled import DATA, module_of

COUNT = 60
with np.load(DATA / "digits_test.npz") as stored:
    PIXELS, LABELS = stored["x"][:COUNT] / np.float32(16), stored["y"][:COUNT]
FIRST, LAST = PIXELS[:, None], PIXELS[..., None]  # channels


def of_first(scores: np.ndarray, labels: np.ndarray = LABELS) -> dict[str, float]:
    """Top-1 and top-5 by sorting."""
    ranks = np.argsort(-scores.astype(float), axis=1, kind="stable")
    return {f"top-{k}": float(np.mean([y in row[:k] for row, y in zip(ranks, labels, strict=True)])) for k in (1, 5)}


@pytest.fixture(scope="module")
def floating():
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    calibration = [(image[None],) for image in FIRST[:20]]
    runtime = frameworks.onnx_runtime(DATA / "digits_cnn_float32.onnx")
    model = module_of("digits_cnn_float32.onnx")
    config = QConfig(calibrate_mode="percentile")
    found = qnn_ext.accuracy(
        model, FIRST, LABELS, framework=runtime, calibrate=20, qconfig=config, target="native", num_threads=1
    )
    integers = qnn_ext.build(model, num_threads=1, qconfig=config, dataset=calibration)
    return found, integers


def test_a_float_model(floating):
    import onnxruntime

    found, integers = floating
    session = onnxruntime.InferenceSession(str(DATA / "digits_cnn_float32.onnx"), providers=["CPUExecutionProvider"])
    framework = np.concatenate([session.run(None, {"image": image[None]})[0] for image in FIRST])
    float32 = np.concatenate([found.engines["float"](image[None]) for image in FIRST])
    int8 = np.concatenate([integers(image[None]) for image in FIRST])
    assert found.samples == COUNT and found.calibrated == "the first 20 samples of the data"
    for name, scores in (("framework", framework), ("float", float32), ("int8", int8)):
        assert found[name].metrics == of_first(scores) and not found[name].missing
        if name != "framework":
            agreement = found[name].agreement
            assert agreement.same == np.mean(scores.argmax(1) == framework.argmax(1))
            assert agreement.equal == np.mean((scores == framework).all(1))
    assert [name for name, _ in found.rows()] == [
        "top-1",
        "top-5",
        "same top-1 as the framework",
        "equal to the framework bit for bit",
    ]
    assert found["int8"].metrics["top-1"] > 0.9


def test_memory_of_a_float_model(floating):
    found, _ = floating
    model = module_of("digits_cnn_float32.onnx")
    engines = found.engines
    split = split_of(model, engines["int8"], engines["float"])
    assert not split.computed
    for footprint, engine in ((split.float32, engines["float"]), (split.int8, engines["int8"])):
        assert footprint.weights == engine.memory.weights
        assert footprint.feature_maps == engine.memory.feature_maps
        read_or_written = 4 * 64 + sum(kernel.data_bytes for kernel in engine.kernels)
        assert 4 * (64 + 10) < footprint.all_feature_maps < read_or_written
    assert split.float32.all_feature_maps > 3 * split.int8.all_feature_maps


def test_a_quantized_model_and_its_float_version():
    """Batches of eight, the last one half empty, in the integers' framework; the float version takes single images."""
    pytest.importorskip("ai_edge_litert")
    from ai_edge_litert.interpreter import Interpreter

    path = DATA / "digits_cnn_int8.tflite"
    model = qnn_ext.from_tflite(path, shapes={"serving_default_image:0": (8, 8, 8, 1)})
    float_model = module_of("digits_cnn_float32.tflite")
    found = qnn_ext.accuracy(
        model, LAST, LABELS, framework=frameworks.litert(path), float_model=float_model, num_threads=1
    )
    interpreter = Interpreter(str(path), num_threads=1)
    interpreter.allocate_tensors()
    (source,), (result,) = interpreter.get_input_details(), interpreter.get_output_details()
    expected = []
    for image in LAST:
        interpreter.set_tensor(source["index"], model.inputs[0].qparams.quantize(image[None]))
        interpreter.invoke()
        expected.append(interpreter.get_tensor(result["index"]))
    float32 = np.concatenate([found.engines["float"](image[None]) for image in LAST])
    assert found["framework"].metrics == found["int8"].metrics == of_first(np.concatenate(expected))
    assert found["float"].metrics == of_first(float32)
    assert (found["int8"].agreement.same, found["int8"].agreement.equal) == (1.0, 1.0)
    assert found["float"].agreement.equal == 0.0 and found["float"].agreement.same > 0.9
    assert found.calibrated == ""


def test_what_is_missing(monkeypatch, tmp_path):
    """Columns say why they are empty; a compiled file has no framework, and its metric gets its outputs."""
    model = module_of("digits_cnn_uint8.tflite")
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    found = qnn_ext.accuracy(
        model, LAST[:3], LABELS[:3], framework=frameworks.litert(DATA / "digits_cnn_uint8.tflite"), num_threads=1
    )
    assert found["framework"].missing == "LiteRT is not installed: pip install ai-edge-litert"
    assert "its float version was not given" in found["float"].missing
    assert found["int8"].agreement is None and found["framework"].metrics == {}

    def mean(outputs, labels):
        return float(outputs[:, 3].mean()) + len(labels)

    engine = found.engines["int8"]
    images = [engine.inputs[0].qparams.quantize(image[None]) for image in LAST[:3]]
    expected = np.mean([engine.outputs[0].qparams.dequantize(engine(image))[0, 3] for image in images])
    compiled = qnn_ext.accuracy(engine, LAST[:3], LABELS[:3], metric=mean)
    assert compiled["int8"].metrics == {"mean": pytest.approx(expected + 3)}
    broken = frameworks.litert(tmp_path / "nothing.tflite")
    monkeypatch.undo()
    pytest.importorskip("ai_edge_litert")
    reason = qnn_ext.accuracy(engine, LAST[:3], LABELS[:3], framework=broken)["framework"].missing
    assert reason.startswith("LiteRT fails: ") and "nothing.tflite" in reason


@pytest.mark.one_in(2)
@pytest.mark.parametrize("file", ["digits_cnn_eager.pt", "digits_cnn_pt2e_x86.pt2"])
def test_pytorch(file):
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads(), torch.backends.quantized.engine
    framework = frameworks.pytorch(DATA / file, "x86", exported=file.endswith(".pt2"))
    found = qnn_ext.accuracy(module_of(file), FIRST[:20], LABELS[:20], framework=framework, num_threads=1)
    assert found["framework"].metrics["top-1"] >= 0.9
    assert found["int8"].agreement.same >= 0.95
    assert (torch.get_num_threads(), torch.backends.quantized.engine) == before


def test_memory_of_a_quantized_model_is_computed():
    model = module_of("digits_cnn_int8.tflite")
    given = evaluation.memory_split(model, "rpi4", 1, float_model=module_of("digits_cnn_float32.tflite"))
    split = split_of(model, qnn_ext.build(model, "rpi4", 1), None)
    assert split.computed and not given.computed and split.target == "cortex-a72"
    assert split.int8 == given.int8
    assert split.float32.all_feature_maps == 4 * split.int8.all_feature_maps  # all of its tensors have 8 bits
    assert split.float32.weights == pytest.approx(given.float32.weights, rel=0.2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": 3}, "a model is a QnnModule or an Engine, found int"),
        ({"data": iter(LAST)}, "can be read only once"),
        ({"labels": None}, "sample 0 of the data has no label"),
        ({"labels": LABELS + 10}, r"sample 0 of the data has label 1\d, but the model's classes are 0 … 9"),
        ({"data": FIRST}, r"must have shape \(N, 8, 8, 1\), found \(60, 1, 8, 8\)"),
    ],
)
def test_mistakes(arguments, message):
    model = module_of("digits_cnn_int8.tflite")
    with pytest.raises(InputError, match=message):
        qnn_ext.accuracy(**{"model": model, "data": LAST, "labels": LABELS, "num_threads": 1, **arguments})


def test_a_float_model_has_no_other_float_version():
    model = module_of("digits_cnn_float32.tflite")
    with pytest.raises(InputError, match="is a float model itself"):
        qnn_ext.accuracy(model, LAST, LABELS, float_model=model)


def test_a_float_version_has_the_same_outputs():
    model = module_of("digits_cnn_int8.tflite")
    float_model = module_of("digits_cnn_float32.tflite")
    other = replace(float_model, outputs=(replace(float_model.outputs[0], shape=(1, 11)),))
    with pytest.raises(InputError, match=r"cnn_float32\.tflite is no float version of .*cnn_int8\.tflite: its outputs"):
        qnn_ext.accuracy(model, LAST, LABELS, float_model=other, num_threads=1)
