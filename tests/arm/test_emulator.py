"""The emulation itself: kernels of every ARM CPU against NumPy, and what is reported about code that goes wrong."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from qnn_ext.compiling.codegen import generate_code
from tests.arm import emulator
from tests.cases.workloads import WORKLOADS
from tests.topi_int8.kernels import ARM_CPUS, check, cpu_target


@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("cpu", ARM_CPUS)
@pytest.mark.parametrize("name", WORKLOADS)
def test_kernels(name, cpu, threads):
    check(WORKLOADS[name], cpu_target(cpu, threads))


def compiled(cpu: str, index, size: int = 16):
    """A kernel that writes x[i] + 1 to out[index(i)], in parallel; and its target."""
    target = cpu_target(cpu)
    x = te.placeholder((size,), "int32", "x")
    out = te.compute((size,), lambda i: x[index(i)] + 1, name="out")
    sch = tvm.s_tir.Schedule(te.create_prim_func([x, out]))
    sch.parallel(sch.get_loops(sch.get_sblock("out"))[0])
    return generate_code(sch.mod, target), target


@pytest.mark.parametrize("cpu", ARM_CPUS)
def test_parallel_loops(cpu):
    executable, target = compiled(cpu, lambda i: 15 - i)
    x = np.arange(16, dtype=np.int32)
    np.testing.assert_array_equal(emulator.run_kernel(executable, target, [x], [16], "int32"), x[::-1] + 1)


@pytest.mark.parametrize("cpu", ["asimd", "armv7"])
def test_writing_beyond_an_array_is_seen(cpu):
    """The kernel fills 16 elements; it is given a buffer that has 16 as its shape says, but 15 in memory."""
    executable, target = compiled(cpu, lambda i: i)
    short = emulator.Argument(emulator.FRESH, np.empty(15, np.int32), shape=(16,))
    with pytest.raises(emulator.EmulationError, match="wrote beyond argument 1"):
        emulator.run_function(executable, target, [emulator.Argument(emulator.READ, np.zeros(16, np.int32)), short])


@pytest.mark.parametrize("cpu", ["asimd", "armv7"])
def test_what_a_kernel_refuses_is_told(cpu):
    executable, target = compiled(cpu, lambda i: i)
    with pytest.raises(emulator.EmulationError, match="expected 16"):
        emulator.run_kernel(executable, target, [np.zeros(15, np.int32)], [16], "int32")


def instruction(cpu: str):
    """A kernel that is one instruction, sdot or smmla: 16 bytes times themselves to 4 sums."""
    target = cpu_target(cpu)
    name = {"dotprod": "llvm.aarch64.neon.sdot.v4i32.v16i8", "i8mm": "llvm.aarch64.neon.smmla.v4i32.v16i8"}[cpu]

    def body(inputs, outputs):
        values, sums = inputs[0][tirx.Ramp(0, 1, 16)], tirx.Broadcast(tirx.const(0, "int32"), 4)
        product = tirx.call_llvm_pure_intrin("int32x4", name, sums, values, values)
        return tirx.BufferStore(outputs[0], product, [tirx.Ramp(0, 1, 4)])

    x = te.placeholder((16,), "int8", "x")
    out = te.extern((4,), [x], body, dtype="int32")
    return tvm.s_tir.Schedule(te.create_prim_func([x, out])).mod, target


@pytest.mark.parametrize("cpu, lacks", [("dotprod", "cortex-a53"), ("dotprod", "cortex-a72"), ("i8mm", "cortex-a76")])
def test_a_cpu_without_the_instruction_is_seen(cpu, lacks):
    """The same code runs on the plainest CPU that has it."""
    mod, target = instruction(cpu)
    executable, x = generate_code(mod, target), np.arange(-8, 8, dtype=np.int8)
    pairs = x.reshape((4, 4) if cpu == "dotprod" else (2, 8)).astype(np.int32)
    expected = (pairs * pairs).sum(1) if cpu == "dotprod" else (pairs @ pairs.T).ravel()
    np.testing.assert_array_equal(emulator.run_kernel(executable, target, [x], [4], "int32"), expected)
    with pytest.raises(emulator.IllegalInstruction, match=lacks):
        emulator.run_kernel(executable, target, [x], [4], "int32", lacks)
