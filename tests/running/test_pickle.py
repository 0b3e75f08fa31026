"""Pickled engines: what a worker started by spawn gets runs as the original, and starts with the initial states."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from qnn_ext import ArtifactError, TargetError
from qnn_ext.targets.host import can_run

DATA = Path(qnn_ext.__file__).parent / "data"


@pytest.fixture(scope="module")
def streaming() -> qnn_ext.Engine:
    return qnn_ext.build(qnn_ext.from_tflite(DATA / "digits_lstm_int8.tflite"), num_threads=2)


@pytest.fixture(scope="module")
def saved(streaming, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("pickle") / "lstm.qnn"
    streaming.save(path)
    return path


def _data(engine: qnn_ext.Engine) -> np.ndarray:
    return np.random.default_rng(0).integers(-128, 128, engine.inputs[0].shape, dtype=np.int8)


def _work(connection, engines: list[qnn_ext.Engine], data: np.ndarray) -> None:
    compiler = "tvm" in sys.modules
    connection.send([(engine(data), engine(data), engine.num_threads, compiler) for engine in engines])


def test_a_spawned_worker_runs_engines(streaming, saved):
    """Built, cloned and loaded ones; the worker imports no compiler, and leaves this process's states alone."""
    data = _data(streaming)
    first, second = streaming(data), streaming(data)
    assert not np.array_equal(first, second)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    engines = [streaming, streaming.clone(1), qnn_ext.load(saved), qnn_ext.load(saved, num_threads=1).clone()]
    worker = context.Process(target=_work, args=(there, engines, data))
    worker.start()
    there.close()
    answers = here.recv()
    worker.join()
    assert worker.exitcode == 0
    for begin, then, _, compiler in answers:
        np.testing.assert_array_equal(begin, first)
        np.testing.assert_array_equal(then, second)
        assert not compiler
    assert [threads for _, _, threads, _ in answers] == [engine.num_threads for engine in engines]
    third = streaming(data)
    streaming.reset_state()
    np.testing.assert_array_equal([streaming(data) for _ in range(3)], [first, second, third])


def test_pickled_twice(streaming):
    data = _data(streaming)
    once = pickle.loads(pickle.dumps(streaming))
    twice = pickle.loads(pickle.dumps(once.clone()))
    np.testing.assert_array_equal(once(data), twice(data))
    assert repr(twice) == repr(streaming) and twice.kernels == streaming.kernels and twice.notes == streaming.notes
    with pytest.raises(ArtifactError, match="was loaded and cannot be saved"):
        twice.save("nowhere.qnn")


def test_models_of_the_virtual_machine():
    from tests.cases.loops import as_model  # not above: workers, which must not load the compiler, import this file
    from tests.passes.modules import module, products_so_far

    def body(emit, x):
        return emit(products_so_far(x))

    engine = qnn_ext.build(as_model(module([((4, 16), "float32")], body)), num_threads=1)
    assert engine.fallback
    x = np.random.default_rng(0).random((4, 16), np.float32)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(engine))(x), np.cumprod(x, -1))


@pytest.mark.filterwarnings("ignore:the file will hold its GPU kernels as source")
def test_models_for_a_gpu():
    """They can be pickled anywhere, and unpickled where there is a GPU."""
    engine = qnn_ext.build(qnn_ext.from_tflite(DATA / "digits_cnn_int8.tflite"), "sm_80")
    content = pickle.dumps(engine)
    try:
        engine.prepare()
    except TargetError:
        with pytest.raises(TargetError, match="NVIDIA GPU"):
            pickle.loads(content)
        return
    image = np.zeros((1, 8, 8, 1), np.int8)
    np.testing.assert_array_equal(pickle.loads(content)(image), engine(image))


def test_every_target_of_a_model_is_pickled():
    module = qnn_ext.from_tflite(DATA / "digits_cnn_int8.tflite")
    engine = qnn_ext.build(module, ["x86-64", "avx2"], num_threads=1)
    if not can_run(engine.features, engine.compiled[0].architecture):
        pytest.skip("this machine cannot run code for x86 with AVX2")
    again = pickle.loads(pickle.dumps(engine))
    assert again.variants == engine.variants and again.target == engine.target
    image = np.zeros((1, 8, 8, 1), np.int8)
    np.testing.assert_array_equal(again(image), engine(image))


def test_a_file_that_is_no_longer_what_was_loaded(saved, tmp_path):
    path = tmp_path / "lstm.qnn"
    path.write_bytes(saved.read_bytes())
    engine = qnn_ext.load(path)
    assert len(pickle.dumps(engine)) > len(saved.read_bytes())
    qnn_ext.build(qnn_ext.from_tflite(DATA / "digits_cnn_int8.tflite"), num_threads=1).save(path)
    with pytest.raises(ArtifactError, match=r"lstm\.qnn: was changed since the engine was loaded: load it again"):
        pickle.dumps(engine)
    path.write_bytes(b"nothing")
    with pytest.raises(ArtifactError, match="was changed since"):
        pickle.dumps(engine)
    path.unlink()
    with pytest.raises(ArtifactError, match=r"lstm\.qnn: cannot be read again: No such file"):
        pickle.dumps(engine)
