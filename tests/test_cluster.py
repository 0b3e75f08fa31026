"""Data sets on a Ray cluster: a local one of two workers gives what one process gives. Skips where Ray is absent."""

import os
import sys

import numpy as np
import pytest

import qnn_ext
from qnn_ext import cluster
from qnn_ext.errors import QnnError, QuantizationError
from qnn_ext.evaluation import frameworks
from qnn_ext.quantize import QConfig, Shards, annotate, calibrate
from tests.quantize.digits import DATA, calibration_images, held_out, network


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'qnn-ext[cluster]'")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    yield ray
    ray.shutdown()


def test_two_workers_calibrate_as_one_process(ray, tmp_path):
    """Bit for bit; moving_average also depends on the order of the samples."""
    images = calibration_images(40)
    paths = [tmp_path / f"{start}.npy" for start in (0, 10, 20, 30)]
    for path in paths:
        np.save(path, images[int(path.stem) : int(path.stem) + 10])
    config = QConfig(overrides={"*depthwise*": {"calibrate_mode": "moving_average"}}, calibrate_mode="entropy")
    module = annotate(network("cnn"), config)
    assert dict(calibrate(module, Shards(paths, cluster.ray_map()), config)) == dict(calibrate(module, images, config))


def test_two_workers_measure_accuracy_as_one_process(ray):
    """With a framework and a metric, which are functions of this process."""
    pytest.importorskip("onnxruntime")
    images, labels = held_out()
    samples = list(zip(images[:40], labels[:40], strict=True))
    engine = qnn_ext.build(
        network("cnn"), num_threads=1, qconfig=QConfig(calibrate_mode="minmax"), dataset=calibration_images(10)
    )
    options = {
        "framework": frameworks.onnx_runtime(DATA / "digits_cnn_float32.onnx"),
        "metric": lambda scores, labels: float((scores.argmax(1) == labels) @ np.arange(len(labels))),
    }
    whole = qnn_ext.accuracy(engine, samples, **options)
    found = qnn_ext.accuracy(engine, Shards([samples[:15], samples[15:]], cluster.ray_map()), **options)
    assert found.columns == whole.columns and found.samples == 40
    assert found["int8"].agreement is not None


def test_tasks_run_in_other_processes(ray):
    found = list(cluster.ray_map()(lambda item: (item, os.getpid()), [1, 2, 3]))
    assert sorted(item for item, _ in found) == [1, 2, 3]
    assert os.getpid() not in {process for _, process in found}


def test_errors_arrive(ray):
    config = QConfig(calibrate_mode="minmax")
    module = annotate(network("cnn"), config)
    with pytest.raises(QuantizationError, match=r"^shard 1: .*no such data set"):
        calibrate(module, Shards([calibration_images(3), "/no/such/file.npy"], cluster.ray_map()), config)


def test_worker_that_dies(ray):
    with pytest.raises(QnnError, match="a Ray worker ended without an answer"):
        list(cluster.ray_map(max_retries=0)(lambda _: os._exit(7), [0]))


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(QnnError, match=r"needs Ray: pip install 'qnn-ext\[cluster\]'"):
        cluster.ray_map()
