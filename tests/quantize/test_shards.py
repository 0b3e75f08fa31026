"""Calibration on shards equals that of a single process bit for bit, with every calibrator, however they are mapped."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import tvm_ffi
from tvm import relax

from qnn_ext import quantize
from qnn_ext.errors import QuantizationError
from qnn_ext.op.base import constant
from qnn_ext.quantize import QConfig, Shards, annotate, calibrate
from qnn_ext.quantize.calibrators import CALIBRATORS
from qnn_ext.quantize.engines import shared_engines
from tests.quantize.digits import calibration_images, network
from tests.quantize.networks import float_module


def sent(value):
    """A copy as it arrives from another process; arrays are views of memory that must not be written, as with Ray."""
    buffers = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers])


def over_wire(function, items):
    """A map like one of other machines, with the last shard first."""
    return [sent(sent(function)(sent(item))) for item in items[::-1]]


def uneven(images):
    return [images[:1], images[1:20], images[20:31], images[31:]]


@pytest.fixture(scope="module", autouse=True)
def one_cache():
    """What this process calibrates is compiled once."""
    with shared_engines():
        yield


def small():
    """A network of a few layers for the same images."""
    rng = np.random.default_rng(2)
    first, second, third = (
        constant(rng.normal(size=shape).astype(np.float32)) for shape in ((4, 1, 3, 3), (4, 4, 1, 1), (4, 3))
    )

    def body(emit, x):
        y = emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(x, first))))
        y = emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(y, second))))
        return emit(relax.op.matmul(emit(relax.op.mean(y, [2, 3])), third))

    return replace(float_module((1, 1, 8, 8), body), inputs=network("cnn").inputs)


def exact(table):
    """All that a table has, to compare for equality."""
    return {
        name: (found.method, np.asarray(found.low).tobytes(), np.asarray(found.high).tobytes(), dict(found.extra))
        for name, found in table.items()
    }


@pytest.mark.parametrize("mode", CALIBRATORS)
def test_ranges_are_those_of_one_process(mode):
    config = QConfig(calibrate_mode=mode)
    module = annotate(small(), config)
    images = calibration_images(40)
    assert len({image.tobytes() for image in images}) > 30
    found = calibrate(module, Shards(uneven(images), over_wire), config)
    assert exact(found) == exact(calibrate(module, images, config))


def test_shards_without_a_map_are_one_data_set():
    config = QConfig(calibrate_mode="moving_average")
    module, images = annotate(small(), config), calibration_images(40)
    assert exact(calibrate(module, Shards(uneven(images)), config)) == exact(calibrate(module, images, config))


def test_an_order_that_matters_is_kept():
    """moving_average weighs the last batches most: shards in another order give other ranges."""
    config, images = QConfig(calibrate_mode="moving_average"), calibration_images(40)
    module = annotate(small(), config)
    forth, back = (
        calibrate(module, Shards(parts, over_wire), config) for parts in (uneven(images), uneven(images)[::-1])
    )
    assert exact(forth) != exact(back)


def test_several_passes_count_once():
    """Sites of one calibrator in several passes over the data."""
    config = QConfig(calibrate_mode="percentile", calibrate_chunk_by=2)
    module, images = annotate(small(), config), calibration_images(20)
    expected = exact(calibrate(module, images, config))
    assert exact(calibrate(module, Shards([images[:7], images[7:]], over_wire), config)) == expected


def test_threads_as_a_map():
    images, config = calibration_images(40), QConfig(calibrate_mode="entropy")
    module = annotate(small(), config)
    with ThreadPoolExecutor(2) as pool:
        found = calibrate(module, Shards(uneven(images), pool.map), config)
    assert exact(found) == exact(calibrate(module, images, config))


def test_a_quantized_model_is_the_same():
    """What other machines read rescales no channels and rounds no weights."""
    images = calibration_images(40)
    config = QConfig(weight_rounding="nearest", balance=False, equalize=False, smooth=None)
    one = quantize.quantize(small(), dataset=images, config=config)
    several = quantize.quantize(small(), dataset=Shards(uneven(images), over_wire))
    assert tvm_ffi.structural_equal(one.ir, several.ir)


def test_files_are_read_where_the_map_calls(tmp_path):
    """Not before, and each once."""
    images, calls = calibration_images(6), []

    def elsewhere(function, items):
        for number, (index, path) in enumerate(items):
            calls.append(path)
            np.save(path, images[3 * number : 3 * number + 3])
            yield function((index, path))

    config = QConfig(calibrate_mode="mse")
    module, paths = annotate(small(), config), [tmp_path / "a.npy", tmp_path / "b.npy"]
    found = calibrate(module, Shards(paths, elsewhere), config)
    assert calls == paths
    assert exact(found) == exact(calibrate(module, images, config))


def test_progress_counts_batches(monkeypatch):
    progress = pytest.importorskip("rich.progress", reason="needs the package rich")
    steps = []
    monkeypatch.setattr(progress.Progress, "advance", lambda bar, task: steps.append(task))
    config = QConfig(calibrate_mode="minmax")
    calibrate(annotate(small(), config), Shards(uneven(calibration_images(33)), over_wire), config, True)
    assert len(steps) == 33


@pytest.mark.parametrize("mapped", [None, over_wire], ids=["here", "mapped"])
def test_errors_name_the_shard(mapped):
    images = calibration_images(12).copy()
    images[9, 0, 3, 3] = np.nan
    config = QConfig(calibrate_mode="minmax")
    module = annotate(small(), config)
    with pytest.raises(QuantizationError, match=r"^shard 1: sample 0 of the data set, input 'image' holds 1 values"):
        calibrate(module, Shards([images[:6], images[6:]], mapped), config)
    with pytest.raises(QuantizationError, match=r"^shard 0: the data set is empty"):
        calibrate(module, Shards([images[:0], images[:6]], mapped), config)
    with pytest.raises(QuantizationError, match=r"^shard 1: .*no such data set"):
        calibrate(module, Shards([images[:6], "/no/such/file.npy"], mapped), config)


def test_values_that_are_not_finite_inside_the_model():
    """The position within the shard is named, too."""
    from tests.quantize.test_calibrate import annotated

    data = np.float32([[1, 2], [3, 4], [-1, 2], [5, 6]])
    with pytest.raises(QuantizationError, match="shard 1: site 'x' in batch 0: 1 of 2 values are NaN"):
        calibrate(annotated(relax.op.log), Shards([data[:2], data[2:]], over_wire), QConfig())


@pytest.mark.parametrize("shards", [[], "folder", None, 3])
def test_no_shards(shards):
    with pytest.raises(QuantizationError, match="shards must be a list of data sets"):
        Shards(shards)


def test_no_threads():
    with pytest.raises(QuantizationError, match="num_threads must be at least 1, found 0"):
        Shards([np.zeros(3)], num_threads=0)


def test_a_map_that_answers_nothing_leaves_the_data_set_empty():
    config = QConfig(calibrate_mode="minmax")
    with pytest.raises(QuantizationError, match="the data set is empty"):
        calibrate(annotate(small(), config), Shards([calibration_images(3)], lambda *_: ()), config)


def test_calls_do_not_share_statistics():
    """What one call collected does not appear in the next of the same process."""

    def repeated(function, items):
        for item in items:
            function(item)
            yield function(item)

    config = QConfig(calibrate_mode="percentile")
    module, images = annotate(small(), config), calibration_images(8)
    reported = calibrate(module, Shards([images[:4], images[4:]], repeated), config)
    assert exact(reported) == exact(calibrate(module, images, config))
