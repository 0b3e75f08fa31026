"""A model as one function: equal to the interpreter on any number of threads, and safe where threads are short."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext import op
from qnn_ext.compiling.program import support
from qnn_ext.module import QnnModule, State
from qnn_ext.processes.cores import default_threads
from qnn_ext.running.executors import MachineExecutor, ProgramExecutor
from qnn_ext.targets.backend import Backend
from tests.compiling.program.small import small_module
from tests.passes.modules import products_so_far
from tests.threads import at_once

DATA = Path(qnn_ext.__file__).parent / "data"


@pytest.fixture(scope="module")
def digits() -> QnnModule:
    return qnn_ext.from_tflite(DATA / "digits_cnn_int8.tflite")


def _images(module: QnnModule, count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(-128, 128, module.inputs[0].shape).astype(np.int8) for _ in range(count)]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("target", ["native", "x86-64"])
def test_threads_change_nothing(digits, everything_shared, threads, target):
    engine = qnn_ext.build(digits, target, num_threads=threads)
    oracle = qnn_ext.Interpreter(digits)
    for image in _images(digits, 5):
        np.testing.assert_array_equal(engine(image), oracle(image))
    assert isinstance(engine._executor, ProgramExecutor)
    assert engine._executor._tasks == min(threads, default_threads())


def test_tasks_that_sleep_at_barriers(digits, everything_shared, monkeypatch):
    monkeypatch.setattr(support, "SPINS", 0)
    monkeypatch.setattr(Backend, "pauses", property(lambda _: 0))
    engine = qnn_ext.build(digits, num_threads=2)
    (image,) = _images(digits, 1)
    expected = qnn_ext.Interpreter(digits)(image)
    engine.time(number=500, repeat=1)
    for _ in range(100):
        np.testing.assert_array_equal(engine(image), expected)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_program_of_several_functions(digits, everything_shared, monkeypatch, threads):
    monkeypatch.setattr(sys.modules["qnn_ext.compiling.program.emit"], "TOGETHER", 4)
    engine = qnn_ext.build(digits, num_threads=threads)
    assert "share_part" in engine.source("ll")
    oracle = qnn_ext.Interpreter(digits)
    for image in _images(digits, 5):
        np.testing.assert_array_equal(engine(image), oracle(image))
    seconds = [layer.seconds for layer in engine.profile(repeat=3)]
    assert len(seconds) == len(engine.kernels) and min(seconds) >= 0 and max(seconds) > 0


def test_fewer_threads_than_built_for(digits, everything_shared, tmp_path):
    qnn_ext.build(digits, num_threads=4).save(tmp_path / "model.qnn")
    (image,) = _images(digits, 1)
    expected = qnn_ext.Interpreter(digits)(image)
    for threads in (1, 2, 3, 4, 8):
        np.testing.assert_array_equal(qnn_ext.load(tmp_path / "model.qnn", num_threads=threads)(image), expected)


def test_a_pool_of_another_size(digits, everything_shared):
    """Whoever else sizes the pool: a program runs on the threads there are."""
    engine = qnn_ext.build(digits, num_threads=2)
    (image,) = _images(digits, 1)
    expected = qnn_ext.Interpreter(digits)(image)
    np.testing.assert_array_equal(engine(image), expected)
    for threads in (1, 3):
        qnn_ext.tvm_runtime.get_function("runtime.config_threadpool")(1, threads)
        np.testing.assert_array_equal(engine(image), expected)
    qnn_ext.tvm_runtime.get_function("runtime.config_threadpool")(1, 2)


def test_one_thread_for_the_process(digits, everything_shared, tmp_path):
    """OMP_NUM_THREADS limits TVM's pool below what the program was built for."""
    qnn_ext.build(digits, num_threads=2).save(tmp_path / "model.qnn")
    (image,) = _images(digits, 1)
    np.save(tmp_path / "image.npy", image)
    script = (
        "import numpy as np, qnn_ext; "
        f"np.save({str(tmp_path / 'out.npy')!r}, qnn_ext.load({str(tmp_path / 'model.qnn')!r}, num_threads=2)"
        f"(np.load({str(tmp_path / 'image.npy')!r})))"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, timeout=60)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), qnn_ext.Interpreter(digits)(image))


def test_one_engine_in_many_python_threads(digits, everything_shared):
    engine = qnn_ext.build(digits, num_threads=2)
    images = _images(digits, 20)
    expected = [qnn_ext.Interpreter(digits)(image) for image in images]
    for found in at_once(lambda _: [engine(image) for image in images], range(3)):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_after_a_fork(digits, everything_shared):
    """The threads of the pool stay in the parent; the child starts its own instead of waiting for them."""
    engine = qnn_ext.build(digits, num_threads=2)
    (image,) = _images(digits, 1)
    expected = engine(image)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=lambda: queue.put(engine(image)))
    child.start()
    np.testing.assert_array_equal(queue.get(timeout=60), expected)
    child.join()
    np.testing.assert_array_equal(engine(image), expected)


def test_small_models_stay_on_one_thread(digits):
    engine = qnn_ext.build(digits, num_threads=2)
    engine(*_images(digits, 1))
    assert engine._executor._tasks == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_profile_and_time(digits, everything_shared, threads):
    engine = qnn_ext.build(digits, num_threads=threads)
    layers = engine.profile(repeat=5)
    assert [layer.kernel for layer in layers] == engine.kernels
    assert all(layer.seconds >= 0 for layer in layers)
    assert 0 < sum(layer.seconds for layer in layers) < 1
    assert len(engine.time(number=2, repeat=3).seconds) == 3


def test_outputs_may_be_inputs_reshapes_and_constants():
    constant = np.arange(6, dtype=np.int8).reshape(2, 3)

    def build(builder, params):
        (x,) = params
        y = builder.emit(relax.op.add(x, x))
        return [x, relax.op.reshape(y, (3, 2)), op.base.constant(constant), y, relax.op.reshape(x, (6,))]

    engine = qnn_ext.build(small_module(build, [((2, 3), "int8")]), num_threads=1)
    x = np.array([[1, -2, 3], [4, 5, -6]], np.int8)
    same, turned, fixed, double, flat = engine(x)
    assert isinstance(engine._executor, ProgramExecutor)
    for got, expected in ((same, x), (double, x + x), (turned, (x + x).reshape(3, 2)), (fixed, constant)):
        np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(flat, x.reshape(6))


def test_states_step_together():
    """Two states that change places: each must get the other's old value."""

    def build(builder, params):
        x, a, b = params
        return [builder.emit(relax.op.add(x, a)), b, builder.emit(relax.op.add(a, x))]

    zeros = np.zeros((4,), np.int32)
    states = [State("a", zeros), State("b", zeros + 10)]
    engine = qnn_ext.build(small_module(build, [((4,), "int32")] * 3, states), num_threads=1)
    x = np.ones(4, np.int32)
    a, b = 0, 10
    for _ in range(5):
        np.testing.assert_array_equal(engine(x), x + a)
        a, b = b, a + 1
    engine.reset_state()
    np.testing.assert_array_equal(engine(x), x)


def test_what_is_no_list_of_kernels_runs_in_the_virtual_machine():
    def build(builder, params):
        return [builder.emit(products_so_far(params[0]))]

    engine = qnn_ext.build(small_module(build, [((5,), "float32")]), num_threads=2)
    np.testing.assert_array_equal(engine(np.array([3, 1, 2, 5, 4], np.float32)), [3, 3, 6, 30, 120])
    assert isinstance(engine._executor, MachineExecutor)
    assert len(engine.time(number=1, repeat=2).seconds) == 2


def test_loop_nests_are_kernels_like_others():
    """What TE cannot say, here argmax of bytes in 16-bit keys, is a loop nest with its own buffers."""

    def build(builder, params):
        return [builder.emit(relax.op.argmax(params[0], axis=-1))]

    engine = qnn_ext.build(small_module(build, [((3, 64), "int8")]), num_threads=1)
    x = np.random.default_rng(0).integers(-128, 128, (3, 64)).astype(np.int8)
    np.testing.assert_array_equal(engine(x), x.argmax(axis=-1))
    assert isinstance(engine._executor, ProgramExecutor)


def test_loop_nests_fuse_with_what_follows():
    """TFLite's argmax to int32: the cast behind a nest becomes one kernel with it."""

    def build(builder, params):
        square = builder.emit(relax.op.multiply(params[1], params[1]))
        return [builder.emit(relax.op.astype(builder.emit(relax.op.argmax(params[0], axis=-1)), "int32")), square]

    engine = qnn_ext.build(small_module(build, [((3, 64), "int8"), ((2, 2), "float32")]), num_threads=1)
    x = np.random.default_rng(0).integers(-128, 128, (3, 64)).astype(np.int8)
    found, _ = engine.run([x, np.ones((2, 2), np.float32)]).values()
    np.testing.assert_array_equal(found, x.argmax(axis=-1))


def test_a_transformer_is_a_program():
    module = qnn_ext.from_onnx(DATA / "digits_transformer_qdq.onnx")
    engine = qnn_ext.build(module, num_threads=1)
    inputs = [np.zeros(spec.shape, spec.dtype) for spec in module.inputs]
    for got, expected in zip(
        engine.run(inputs).values(), qnn_ext.Interpreter(module).run(inputs).values(), strict=True
    ):
        np.testing.assert_array_equal(got, expected)
    assert isinstance(engine._executor, ProgramExecutor)
