"""Counting executed instructions: known counts of known code, and the same counts again in a second run."""

import numpy as np
import pytest
from tvm import te, tirx
from tvm.s_tir import Schedule

from qnn_ext.compiling.codegen import generate_code
from tests.arm import emulator
from tests.arm.count import counted, disassembled
from tests.cases.workloads import WORKLOADS
from tests.topi_int8.kernels import ARM_CPUS, check, cpu_target

STEPS = 37


def loop_of_sdot(steps: int):
    """A kernel that adds `steps` dot products of 16 bytes, one instruction each."""
    target = cpu_target("dotprod", 1)

    def body(inputs, outputs):
        step = tirx.Var("step", "int32")
        lanes, rows = tirx.Ramp(0, 1, 4), inputs[0][tirx.Ramp(step * 16, 1, 16)]
        product = tirx.call_llvm_pure_intrin(
            "int32x4", "llvm.aarch64.neon.sdot.v4i32.v16i8", outputs[0][lanes], rows, rows
        )
        store = tirx.BufferStore(outputs[0], product, [lanes])
        zero = tirx.BufferStore(outputs[0], tirx.Broadcast(tirx.const(0, "int32"), 4), [lanes])
        return tirx.SeqStmt([zero, tirx.For(step, 0, steps, tirx.ForKind.SERIAL, store)])

    x = te.placeholder((16 * steps,), "int8", "x")
    out = te.extern((4,), [x], body, dtype="int32")
    return generate_code(Schedule(te.create_prim_func([x, out])).mod, target), target


def test_every_execution_of_an_instruction_counts():
    x = np.random.default_rng(0).integers(-128, 128, 16 * STEPS, np.int8)
    executable, target = loop_of_sdot(STEPS)
    with counted() as counts:
        got = emulator.run_kernel(executable, target, [x], [4], "int32")
    np.testing.assert_array_equal(got, (x.astype(np.int32) ** 2).reshape(STEPS, 4, 4).sum((0, 2)))
    (found,) = counts
    kernel = found.mnemonics_of(lambda name: name not in ("main", "entry"))
    assert kernel["sdot"] == STEPS
    assert found.mnemonics["sdot"] == STEPS
    assert sum(found.functions.values()) == found.total == found.mnemonics.total()


@pytest.mark.parametrize("cpu", ARM_CPUS)
def test_counts_are_the_same_again(cpu):
    with counted() as counts:
        for _ in range(2):
            check(WORKLOADS["dense"], cpu_target(cpu, 1))
    assert counts[0].total == counts[1].total > 1000
    assert counts[0].functions == counts[1].functions
    assert counts[0].mnemonics == counts[1].mnemonics


def test_nothing_is_counted_outside():
    with counted() as counts:
        pass
    check(WORKLOADS["dense"], cpu_target("asimd", 1))
    assert counts == []


def test_new_instructions_have_names():
    """sdot v0.4s, v1.16b, v2.16b and smmla of the same, which QEMU's own disassembler may not know."""
    cpu_target("i8mm")
    code = b"".join(word.to_bytes(4, "little") for word in (0x4E829420, 0x4E82A420))
    assert disassembled(code, emulator.AARCH64) == ["sdot", "smmla"]
