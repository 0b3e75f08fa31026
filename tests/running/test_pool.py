"""Clones, requests on other threads, and pools: the same results as one engine gives, and clear errors."""

import asyncio
import gc
import os
import threading
from concurrent.futures import wait
from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from qnn_ext import InputError, Pool, QnnError

DATA = Path(qnn_ext.__file__).parent / "data"


@pytest.fixture(scope="module")
def engine() -> qnn_ext.Engine:
    return qnn_ext.build(qnn_ext.from_tflite(DATA / "digits_cnn_int8.tflite"), num_threads=1)


@pytest.fixture(scope="module", params=["built", "loaded"])
def either(request, engine, tmp_path_factory) -> qnn_ext.Engine:
    if request.param == "built":
        return engine
    path = tmp_path_factory.mktemp("saved") / "digits.qnn"
    engine.save(path)
    return qnn_ext.load(path)


@pytest.fixture(scope="module")
def images() -> list[list[np.ndarray]]:
    with np.load(DATA / "digits_test.npz") as stored:
        return [[np.rint(x[None, :, :, None] / 16 * 255 - 128).astype(np.int8)] for x in stored["x"][:100]]


def same(found: dict, expected: dict) -> bool:
    return found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in expected)


def test_clones_run_at_once_and_share_the_weights(either, images):
    expected = [either.run(image) for image in images]
    clones = [either.clone() for _ in range(3)]
    found: list = [None] * 3

    def run(index: int) -> None:
        found[index] = [clones[index].run(image) for image in images]

    threads = [threading.Thread(target=run, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for results in found:
        assert all(map(same, results, expected))
    weights = {clone._executor._regions[1].ctypes.data for clone in (either, *clones)}
    assert len(weights) == 1
    assert len({clone._executor._regions[0].ctypes.data for clone in (either, *clones)}) == 4


def test_clone_outlives_its_origin_and_can_be_saved(engine, images, tmp_path):
    expected = engine.run(images[0])
    clone = engine.clone().clone(num_threads=2)
    assert clone.num_threads == 2 and clone.source("tir") == engine.source("tir")
    clone.save(tmp_path / "clone.qnn")
    loaded = qnn_ext.load(tmp_path / "clone.qnn")
    second = loaded.clone()
    del loaded
    gc.collect()
    assert same(second.run(images[0]), expected)


def test_states_of_clones_are_their_own(rng):
    engine = qnn_ext.build(qnn_ext.from_tflite(DATA / "digits_lstm_int8.tflite"), num_threads=1)
    data = rng.integers(-128, 128, engine.inputs[0].shape, dtype=np.int8)
    expected = [engine(data) for _ in range(3)]
    clone = engine.clone()
    np.testing.assert_array_equal([clone(data) for _ in range(3)], expected)
    engine.reset_state()
    clone(data)
    np.testing.assert_array_equal([engine(data) for _ in range(3)], expected)
    with pytest.raises(QnnError, match=r"model with states.*engine\.clone\(\)"):
        Pool(engine)


def test_submit(engine, images):
    expected = [engine.run(image) for image in images]
    futures = [engine.submit(image) for image in images]
    assert all(map(same, [future.result() for future in futures], expected))
    with pytest.raises(InputError, match="unknown input 'nope'"):
        engine.submit({"nope": images[0][0]}).result()


def test_pool(either, images):
    expected = [either.run(image) for image in images]
    with Pool(either, streams=3) as pool:
        futures = [pool.submit(image) for image in images]
        assert not wait(futures).not_done
        assert all(map(same, [future.result() for future in futures], expected))
        assert all(map(same, pool.map(iter(images)), expected))
        with pytest.raises(InputError, match="is missing"):
            pool.submit({}).result()
        assert same(pool.submit(images[0]).result(), expected[0])  # the stream that failed goes on
    with pytest.raises(QnnError, match="closed"):
        pool.submit(images[0])


def test_await(engine, images):
    expected = [engine.run(image) for image in images[:10]]

    async def main() -> list:
        with Pool(engine, streams=2) as pool:
            first = await pool.submit(images[0])
            return [first, await engine.submit(images[0]), *await asyncio.gather(*map(pool.submit, images[:10]))]

    found = asyncio.run(main())
    assert all(map(same, found, [expected[0], expected[0], *expected]))


def test_throughput(engine):
    with Pool(engine, streams=2) as pool:
        measured = pool.throughput(seconds=0.05)
    assert measured.streams == 2
    assert measured.requests_per_second == len(measured.latencies) / measured.seconds > 0
    assert 0 < measured.percentile(50) <= measured.percentile(99)
    assert "requests/s, latency median" in str(measured)


def test_threads_end_with_their_owner(engine, images):
    clone = engine.clone()
    clone.submit(images[0]).result()
    pool = Pool(engine, streams=2)
    wait([pool.submit(image) for image in images[:8]])
    threads = [*clone._worker._threads._threads, *pool._workers._threads._threads]
    del clone, pool
    gc.collect()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_fork_names_the_remedy(engine, images):
    with Pool(engine, streams=1) as pool:
        pool.submit(images[0]).result()
        if (child := os.fork()) == 0:
            try:
                pool.submit(images[0])
            except QnnError as error:
                os._exit(0 if "make a new engine or pool after it" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0


def test_errors(engine):
    with pytest.raises(QnnError, match="streams and num_threads must be at least 1, found 0 and 1"):
        Pool(engine, streams=0)
