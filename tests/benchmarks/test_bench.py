"""The benchmark's command on a bundled model: every table, file and plot; a failure only makes a row."""

import json

import numpy as np
import pytest

from benchmarks import __main__ as bench
from benchmarks.goals import GOALS, OTHERS, Goal, goal_of
from benchmarks.layers import by_class, layer_class, layers_of, shape_text
from benchmarks.models import BUNDLED, Model, default_models, find_models
from benchmarks.runners import PEERS
from benchmarks.turns import Times, take_turns
from benchmarks.worker import Task, Worker, WorkerError

MODEL = BUNDLED / "digits_cnn_uint8.tflite"


@pytest.mark.exhaustive("the tests of its parts below")
def test_a_run_writes_tables_figures_and_plots(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    broken = tmp_path / "broken.tflite"
    broken.write_bytes(b"\x1c\x00\x00\x00TFL3" + bytes(64))
    files = [f"--{kind}={tmp_path / kind}" for kind in ("json", "markdown", "plots")]
    code = bench.main(["--models", str(MODEL), str(broken), "--threads", "1", "--quick", "--peers", "litert", *files])
    printed = capsys.readouterr().out
    assert code == 1
    assert printed.strip() == (tmp_path / "markdown").read_text().strip()
    for title in ("Latency, 1 thread", "Share of the peak by class", "Build, size, memory", "What failed"):
        assert f"## {title}" in printed
    assert "| broken.tflite | qnn_ext |  | ModelFormatError" in printed

    data = json.loads((tmp_path / "json").read_text())
    digits, failed = data["models"]
    assert failed["error"].startswith("ModelFormatError")
    assert digits["builds"]["1"]["bytes"] > 0 and digits["macs"] > 0
    (found,) = digits["comparisons"]
    assert len(found["times"]["qnn_ext"]["seconds"]) == 3
    assert found["layers"] and 0 < found["of_peak"] < 1
    if not next(peer for peer in PEERS if peer.key == "litert").missing:
        assert found["ratio"] > 0 and found["best_rival"] == "LiteRT"
        assert found["agreement"] == {"with": "LiteRT", "equal": 1.0, "largest": 0.0}
    assert (tmp_path / "plots" / "ratios.png").stat().st_size > 0 or "ratio" not in found
    assert (tmp_path / "plots" / "layers" / f"{MODEL.name}.png").stat().st_size > 0


def test_a_peer_that_cannot_read_the_model_says_why():
    worker = Worker(Task("torchscript", str(MODEL), 1))
    try:
        with pytest.raises(WorkerError):
            worker.wait(120)
    finally:
        worker.close()


def test_a_worker_that_is_slow_and_one_that_died():
    worker = Worker(Task("peak", "int8", 1))
    try:
        worker.wait(120)
        with pytest.raises(WorkerError, match="no answer within 0 s"):
            worker.ask("turn", 10_000, limit=0.0)
    finally:
        worker.close()
    times, failures = take_turns({"dead": worker}, 1, 0.001)
    assert not times and "the process ended" in failures["dead"]


def test_times():
    times = Times((4.0, 1.0, 2.0, 3.0, 5.0), least=0.5)
    assert (times.median, times.least, times.quartiles) == (3.0, 0.5, (2.0, 4.0))


def test_goals():
    assert Goal(1.0, 1.2).verdict(0.99) == "missed"
    assert Goal(1.0, 1.2).verdict(1.0) == "met"
    assert Goal(1.0, 1.2).verdict(1.2) == "aim met"
    assert goal_of("ad01_int8") == GOALS["ad01_int8"] and goal_of("unheard of") == OTHERS


CONV = {
    "type": "Conv2dWorkload",
    "height": 56,
    "width": 28,
    "in_channels": 64,
    "out_channels": 128,
    "kernel": [3, 3],
    "strides": [2, 2],
    "groups": 1,
}


@pytest.mark.parametrize(
    ("changes", "kind", "shape"),
    [
        ({}, "k×k conv", "3×3/2 56×28×64→128"),
        ({"kernel": [1, 1], "strides": [1, 1]}, "1×1 conv", "1×1 56×28×64→128"),
        ({"in_channels": 3}, "first layer", "3×3/2 56×28×3→128"),
        ({"groups": 64}, "depthwise", "3×3/2 56×28×64→128"),
        ({"groups": 4}, "k×k conv", "3×3/2 56×28×64→128"),
    ],
)
def test_classes_of_convolutions(changes, kind, shape):
    workload = {**CONV, **changes}
    assert (layer_class(1, workload), shape_text(workload)) == (kind, shape)


def test_classes_of_the_rest():
    assert layer_class(1, {"type": "DenseWorkload"}) == "dense"
    assert layer_class(1, {"type": "BatchMatmulWorkload"}) == "batch_matmul"
    assert (layer_class(1, {}), layer_class(0, {})) == ("other product", "no product")
    assert shape_text({"type": "DenseWorkload", "m": 1, "k": 2, "n": 3}) == "1×2→3"
    assert shape_text({"type": "BatchMatmulWorkload", "batch": 4, "m": 1, "k": 2, "n": 3}) == "4×1×2→3"


def test_share_of_peak_by_class():
    kernel = {"layer": "a", "operators": "conv2d", "workload": CONV, "macs": 100, "seconds": 1.0}
    rest = {"layer": "b", "operators": "add", "workload": {}, "macs": 0, "seconds": 3.0}
    shares = by_class(layers_of([kernel, kernel, rest]), {"int8": 400.0})
    assert list(shares) == ["k×k conv", "no product"]
    assert (shares["k×k conv"].of_time, shares["k×k conv"].of_peak) == (0.4, 0.5)
    assert (shares["no product"].of_time, shares["no product"].of_peak) == (0.6, 0.0)


def test_arithmetic_of_products():
    kernel = {"layer": "a", "operators": "matmul", "macs": 100, "seconds": 1.0}
    peaks, bits = {"int8": 800.0, "float32": 200.0, "bfloat16": 400.0}, "uint16"
    dtypes = [("uint8", "int8", "int32"), ("float32", "float32", "float32"), (bits, bits, "float32")]
    dtypes += [("float32", bits, "float32")]
    names = ("data_dtype", "weight_dtype", "out_dtype")
    workloads = [{**CONV, **dict(zip(names, values, strict=True))} for values in dtypes]
    layers = layers_of([{**kernel, "workload": workload} for workload in workloads])
    assert [layer.of_peak(peaks) for layer in layers] == [0.25, 1.0, 0.5, 1.0]
    assert layers[0].of_peak({}) == 0.0


def test_models_are_found_with_inputs_and_twins(tmp_path):
    names = [model.name for model in default_models()]
    assert {"digits_cnn_int8", "digits_cnn_qdq", "digits_cnn_eager", "digits_mxnet"} <= set(names)
    assert Model(BUNDLED / "digits_cnn_int8.tflite").float_twin == Model(BUNDLED / "digits_cnn_float32.tflite")
    assert Model(MODEL).stored_inputs() is None
    assert Model(BUNDLED / "digits_cnn_qdq.onnx").stored_inputs()[0].shape == (1, 1, 8, 8)
    for name in ("net.onnx-static.onnx", "net.float32.onnx", "notes.txt", "cnn_fbgemm.pt"):
        (tmp_path / name).touch()
    np.savez(tmp_path / "net.onnx-static.npz", input_0=np.ones(3), ort_0=np.ones(2))
    found = {model.path.name: model for model in find_models([tmp_path, tmp_path / "missing"])}
    assert sorted(found) == ["cnn_fbgemm.pt", "net.onnx-static.onnx"]
    (twin,) = find_models([tmp_path / "net.float32.onnx"])
    assert found["net.onnx-static.onnx"].float_twin == Model(tmp_path / "net.float32.onnx")
    assert twin.float_twin is None
    assert found["net.onnx-static.onnx"].stored_inputs()[0].tolist() == [1, 1, 1]
    assert (found["cnn_fbgemm.pt"].engine, found["cnn_fbgemm.pt"].format) == ("fbgemm", "torchscript")
