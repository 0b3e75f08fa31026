"""Whole models on emulated ARM CPUs, as one function and in TVM's virtual machine."""

from pathlib import Path

import numpy as np
import pytest
from tvm.relax import op

import qnn_ext
from qnn_ext.module import State
from qnn_ext.running.executors import MachineExecutor, ProgramExecutor
from tests.arm.engines import emulated
from tests.compiling.program.small import small_module
from tests.passes.modules import products_so_far
from tests.topi_int8.kernels import ARM_CPUS, cpu_target

DATA = Path(qnn_ext.__file__).parent / "data"
AARCH64 = [cpu for cpu in ARM_CPUS if cpu != "armv7"]


@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("cpu", ARM_CPUS)
def test_program_on_threads(cpu, threads, everything_shared, rng):
    """Kernels share their loops, and wait for each other at barriers."""
    module = qnn_ext.from_tflite(DATA / "digits_cnn_int8.tflite")
    engine, oracle = emulated(qnn_ext.build(module, cpu_target(cpu, threads))), qnn_ext.Interpreter(module)
    assert isinstance(engine._executor, ProgramExecutor)
    assert engine._variant.program.tasks == threads
    for _ in range(3):
        x = rng.integers(-128, 128, module.inputs[0].shape).astype(np.int8)
        np.testing.assert_array_equal(engine(x), oracle(x))


@pytest.mark.parametrize("cpu", ARM_CPUS)
def test_program_keeps_states(cpu):
    def build(builder, params):
        return [builder.emit(op.add(*params)), builder.emit(op.add(*params))]

    states = [State("a", np.zeros(4, np.int32))]
    engine = emulated(qnn_ext.build(small_module(build, [((4,), "int32")] * 2, states), cpu_target(cpu, 1)))
    assert [engine(np.ones(4, np.int32))[0] for _ in range(3)] == [1, 2, 3]
    engine.reset_state()
    assert engine(np.ones(4, np.int32))[0] == 1


@pytest.mark.parametrize("cpu", AARCH64)
def test_virtual_machine(cpu):
    """The state is the sum of all previous inputs."""

    def build(builder, params):
        x, total = params
        return [builder.emit(products_so_far(x)), builder.emit(op.reshape(x, (5, 1))), builder.emit(op.add(x, total))]

    states = [State("total", np.zeros(5, np.float32))]
    module = small_module(build, [((5,), "float32")] * 2, states)
    engine = emulated(qnn_ext.build(module, cpu_target(cpu, 1)))
    assert isinstance(engine._executor, MachineExecutor)
    x = np.array([3, 1, 2, 5, 4], np.float32)
    for _ in range(2):
        products, column = engine(x)
        np.testing.assert_array_equal(products, [3, 3, 6, 30, 120])
        np.testing.assert_array_equal(column, x[:, None])
    np.testing.assert_array_equal(np.from_dlpack(engine._executor._values[0]), 2 * x)
