"""Calibrate: an annotated module and data become a table, in one pass or chunks, one process or several."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from tvm import relax

from qnn_ext import from_onnx
from qnn_ext.errors import InputError, QuantizationError, QuantizationWarning
from qnn_ext.op.base import constant
from qnn_ext.op.observe import observe
from qnn_ext.quantize import annotate, quantize, stages
from qnn_ext.quantize.analysis import analyze
from qnn_ext.quantize.calibrate import calibrate
from qnn_ext.quantize.compare import compare
from qnn_ext.quantize.config import QConfig, qconfig
from qnn_ext.quantize.ranges import Range
from tests.quantize.digits import DATA, calibration_images, network
from tests.quantize.networks import float_module

WEIGHT = np.float32([[2, -3], [0.5, 4]])


def annotated(function=None, **attributes):
    """y = function(x) · WEIGHT on x (1, 2), with sites "x", "w" and "y"; `attributes` are those of site "y"."""

    def seen(emit, expr, site, role="input", **more):
        return emit(observe(expr, site, layer="dense", operator="nn.dense", role=role, **more))

    def body(emit, x):
        inner = emit(function(x)) if function else x
        weight = seen(emit, constant(WEIGHT), "w", "weight", calibrate_mode="max", axis=1)
        product = emit(relax.op.matmul(seen(emit, inner, "x", calibrate_mode="minmax"), weight))
        return seen(emit, product, "y", **{"calibrate_mode": "minmax", **attributes})

    return float_module((1, 2), body)


@pytest.fixture
def data(rng):
    return rng.standard_normal((23, 2)).astype(np.float32)


def test_ranges_of_weights_and_activations(data):
    table = calibrate(annotated(), data)
    assert sorted(table) == ["w", "x", "y"]
    assert table["x"] == Range.of(data)
    assert table["w"] == Range([-2, -4], [2, 4], "max")
    products = np.stack([sample @ WEIGHT for sample in data])
    assert (table["y"].low, table["y"].high) == pytest.approx((products.min(), products.max()), rel=1e-6)


def test_fixed_range(data):
    table = calibrate(annotated(low=-1.0, high=3.0), data)
    assert table["y"] == Range(-1, 3, "fixed")


def test_settings_come_from_config_and_site(data):
    config = QConfig(momentum=0.0)
    assert calibrate(annotated(calibrate_mode="moving_average"), data, config)["y"].method == "moving_average"
    last = data[-1] @ WEIGHT
    found = calibrate(annotated(calibrate_mode="moving_average"), data, config)["y"]
    assert (found.low, found.high) == pytest.approx((last.min(), last.max()), rel=1e-6)
    with qconfig(global_scale=3.0):
        assert calibrate(annotated(calibrate_mode="global_scale"), data)["y"] == Range(-3, 3, "global_scale")
    narrow, wide = (calibrate(annotated(calibrate_mode="percentile", percentile=p), data)["y"] for p in (60.0, 100.0))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_chunks_give_the_same_table(data):
    module = annotated(calibrate_mode="mse")
    assert dict(calibrate(module, data, QConfig(calibrate_chunk_by=1))) == dict(calibrate(module, data))


def test_several_threads_give_the_same_table(data, monkeypatch):
    module = annotated(calibrate_mode="mse")
    one = calibrate(module, data)
    monkeypatch.setattr("qnn_ext.quantize.collect._WORTH_THREADS", 0)
    assert dict(calibrate(module, data)) == dict(one)


def test_several_processes_give_the_same_table():
    """Bit for bit, in two passes over the data; moving_average also depends on the order of the samples."""
    images = calibration_images(40)
    overrides = {"*depthwise*": {"calibrate_mode": "moving_average"}, "logits": {"calibrate_mode": "entropy"}}
    module = annotate(network("cnn"), QConfig(overrides=overrides))
    one = calibrate(module, images, QConfig(overrides=overrides))
    assert len({found.method for found in one.values()} & {"moving_average", "entropy", "max"}) == 3
    several = QConfig(overrides=overrides, num_workers=2, calibrate_chunk_by=(len(one) + 1) // 2)
    assert dict(calibrate(module, images, several)) == dict(one)


def test_order_of_the_data_does_not_matter(data):
    for mode in ("minmax", "percentile", "kl_divergence", "entropy", "mse"):
        module = annotated(calibrate_mode=mode)
        assert dict(calibrate(module, data[::-1])) == dict(calibrate(module, list(data)))


def test_progress_bar_counts_the_samples_of_all_passes(data, monkeypatch):
    progress = pytest.importorskip("rich.progress", reason="needs the package rich")
    steps = []
    monkeypatch.setattr(progress.Progress, "advance", lambda bar, task: steps.append(bar.tasks[0].total))
    calibrate(annotated(), data, QConfig(calibrate_chunk_by=1), progress=True)
    assert steps == [46] * 46
    calibrate(annotated(), (row for row in data[:5]), progress=True)  # of unknown length
    assert steps[46:] == [None] * 5


# ---- agreement with ONNX Runtime ---------------------------------------------------------------------------------


def test_minmax_is_that_of_onnxruntime(tmp_path):
    """On the digits network, tensor by tensor; both compute in float32, with sums in different orders."""
    calibration = pytest.importorskip("onnxruntime.quantization.calibrate", reason="needs the extra 'onnxruntime'")
    images = calibration_images(30)
    config = QConfig(calibrate_mode="minmax")
    table = calibrate(annotate(network("cnn"), config), images, config)

    class Reader(calibration.CalibrationDataReader):
        def __init__(self):
            self.rest = iter(images)

        def get_next(self):
            image = next(self.rest, None)
            return None if image is None else {"image": image[None]}

    calibrator = calibration.create_calibrator(DATA / "digits_cnn_float32.onnx", None, tmp_path / "augmented.onnx")
    calibrator.collect_data(Reader())
    ranges = {name.lstrip("/"): value.range_value for name, value in calibrator.compute_data().items()}
    expected = {name.replace("/", "_").replace(".", "_"): value for name, value in ranges.items()}
    compared = [name for name in table if name in expected]
    assert len(compared) >= 8
    for name in compared:
        low, high = (float(np.squeeze(value)) for value in expected[name])
        assert (table[name].low, table[name].high) == pytest.approx((low, high), rel=1e-5, abs=1e-6)


# ---- bad input ---------------------------------------------------------------------------------------------------


def test_no_data():
    with pytest.raises(QuantizationError, match=r"site 'x': calibrate_mode='minmax' needs data: .* 'global_scale'"):
        calibrate(annotated())
    with pytest.raises(QuantizationError, match="empty"):
        calibrate(annotated(), np.zeros((0, 2), np.float32))


def test_auto_without_data_is_global_scale_with_a_warning():
    config = QConfig(global_scale=5.0)
    with pytest.warns(QuantizationWarning, match="without data every activation gets the range ±5"):
        table = calibrate(annotate(network("cnn"), config), None, config)
    assert {str(found) for found in table.values() if not found.per_channel} == {"-5 … 5"}


@pytest.mark.parametrize("num_workers", [1, 2])
def test_activations_that_are_not_finite(num_workers):
    data = np.float32([[1, 2], [3, 4], [-1, 2], [5, 6]])
    with pytest.raises(QuantizationError, match="site 'x' in batch 2: 1 of 2 values are NaN or infinite"):
        calibrate(annotated(relax.op.log), data, QConfig(num_workers=num_workers))


def test_weight_that_is_computed():
    def body(emit, x):
        return emit(observe(x, "w", layer="dense", operator="nn.dense", role="weight"))

    with pytest.raises(QuantizationError, match="site 'w' is a weight, but is computed"):
        calibrate(float_module((1, 2), body), np.ones((1, 2), np.float32))


class Interrupted:
    """A data set that ends in the exception after two samples."""

    def __init__(self, error):
        self.error = error

    def __iter__(self):
        yield from np.ones((2, 1, 2), np.float32)
        raise self.error


def left_behind():
    """Child processes, and folders of calibrations."""
    tasks = Path(f"/proc/{os.getpid()}/task")
    children = (
        [name for task in tasks.glob("*/children") for name in task.read_text().split()] if tasks.exists() else []
    )
    return children, list(Path(tempfile.gettempdir()).glob("qnn_ext_calibrate_*"))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("disk gone")], ids=["interrupt", "disk"])
def test_interrupts_leave_nothing_behind(error, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = left_behind()
    with pytest.raises(type(error)):
        calibrate(annotated(), Interrupted(error), QConfig(num_workers=2))
    assert left_behind() == before


@pytest.mark.parametrize(
    ("end", "said"), [("os._exit(7)", "exit code 7"), ("os.kill(os.getpid(), 9)", "SIGKILL")], ids=["exit", "kill"]
)
def test_worker_that_dies(end, said, monkeypatch):
    monkeypatch.setattr("qnn_ext.processes.children._child_program", lambda *_: f"import os; {end}")
    with pytest.raises(QuantizationError, match=f"a calibration process ended early with {said}: if memory ran out"):
        calibrate(annotated(), np.ones((9, 2), np.float32), QConfig(num_workers=2))


def lookup(rng):
    """Rows of a table, scaled, times a weight: ids below 10."""
    onnx = pytest.importorskip("onnx")
    node, weights = onnx.helper.make_node, onnx.numpy_helper.from_array
    shapes = {"table": (10, 8), "scale": (8,), "weight": (8, 4)}
    graph = onnx.helper.make_graph(
        [
            node("Gather", ["table", "ids"], ["rows"]),
            node("Mul", ["rows", "scale"], ["scaled"]),
            node("MatMul", ["scaled", "weight"], ["out"]),
        ],
        "lookup",
        [onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [1, 6])],
        [onnx.helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, [1, 6, 4])],
        [weights(rng.normal(size=shape).astype(np.float32), name) for name, shape in shapes.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    return from_onnx(model.SerializeToString())


def ids_with_a_wrong_one(rng):
    ids = rng.integers(0, 10, (6, 6))
    ids[4, 3] = 57
    return ids


@pytest.mark.parametrize("mode", ["auto", "minmax"])
@pytest.mark.parametrize("goal", [None, 20.0])
def test_values_that_the_model_does_not_take_name_their_batch(mode, goal, rng):
    with pytest.raises(InputError, match=r"batch 4 of the data set: .*index 57 is out of range"):
        quantize(lookup(rng), None, ids_with_a_wrong_one(rng), QConfig(calibrate_mode=mode), min_sqnr=goal)


@pytest.mark.parametrize(
    "settings",
    [
        {"smooth": 0.5},
        {"weight_rounding": "gptq"},
        {"bias_correction": True},
        {"weight_only": True, "weight_rounding": "gptq"},
    ],
    ids=lambda settings: next(reversed(settings)),
)
def test_so_does_what_improves_8_bits(settings, rng):
    """With a table, ranges are not calibrated before."""
    module, ids = lookup(rng), ids_with_a_wrong_one(rng)
    grouped = "weight_only" in settings
    table = None if grouped or "smooth" in settings else stages(module, dataset=ids % 10).table
    with pytest.raises(InputError, match=r"batch 4 of the data set: .*index 57 is out of range"):
        quantize(module, None, ids, QConfig(**settings), table)


def test_so_do_analysis_and_comparison(rng):
    module, ids = lookup(rng), ids_with_a_wrong_one(rng)
    done = stages(module, dataset=ids % 10)
    for measure in (lambda: analyze(done["annotate"], done.table, ids), lambda: compare(module, module, ids)):
        with pytest.raises(InputError, match=r"batch 4 of the data set: .*index 57 is out of range"):
            measure()
