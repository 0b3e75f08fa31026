"""Products on ARM against int64 NumPy, under emulation: every instruction, odd shapes, extreme data, epilogues."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad

import qnn_ext
from qnn_ext import op as qnn
from qnn_ext.op.base import constant
from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8 import BatchMatmulWorkload, DenseWorkload, candidates, select
from qnn_ext.topi_int8.arm_cpu.intrin import AARCH64, ARM32
from qnn_ext.topi_int8.cpu import batch_matmul, conv2d, dense
from qnn_ext.topi_int8.cpu.chains import by_step
from qnn_ext.topi_int8.cpu.dot import DotInstruction
from qnn_ext.topi_int8.cpu.words import on_words
from tests.arm import emulator
from tests.cases.convolutions import SHAPES, conv, describe
from tests.cases.workloads import BATCH_MATMUL, DENSE
from tests.compiling.program.small import small_module

from .kernels import ARM_CPUS, check, cpu_target

SIGNED = {"data_dtype": "int8"}
SAME = (1, 1, 1, 1)
ARMV8_32 = {
    "kind": "llvm",
    "mtriple": "armv8l-unknown-linux-gnueabihf",
    "mattr": ["+v8.2a", "+neon", "+dotprod"],
    "mfloat-abi": "hard",
}
# CPU, and whether the weights let two products be added in 16 bits
CASES = {
    "dotprod": ("dotprod", False),
    "asimd": ("asimd", True),
    "armv7": ("armv7", True),
}
SINGLES = {"asimd": ("asimd", False), "armv7": ("armv7", False)}


@pytest.mark.sampled("case")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("workload", SHAPES, ids=describe)
def test_conv2d(workload, case):
    cpu, pairable = CASES[case]
    check(replace(workload, **SIGNED, pairable_weights=pairable), cpu_target(cpu))


@pytest.mark.sampled("case")
@pytest.mark.parametrize("case", SINGLES)
@pytest.mark.parametrize("workload", SHAPES[::4], ids=describe)
def test_conv2d_with_any_weights(workload, case):
    workload = replace(workload, **SIGNED)
    assert "singles" in select(workload, cpu_target(case)).name
    check(workload, cpu_target(case))


@pytest.mark.sampled("case")
@pytest.mark.parametrize("case", {**CASES, **{f"{name}-singles": item for name, item in SINGLES.items()}})
@pytest.mark.parametrize("m, k, n", DENSE)
def test_dense_layers(m, k, n, case):
    cpu, pairable = CASES[case] if case in CASES else SINGLES[case.removesuffix("-singles")]
    check(DenseWorkload(m, k, n, "int8", "int8", pairable_weights=pairable), cpu_target(cpu))


@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("cpu", ["dotprod", "asimd", "armv7"])
@pytest.mark.parametrize("b, m, k, n", BATCH_MATMUL)
def test_batch_matmul_of_run_time(b, m, k, n, cpu):
    workload = BatchMatmulWorkload(b, m, k, n, "int8", "int8")
    assert select(workload, cpu_target(cpu)).name.endswith(".arm_cpu")
    check(workload, cpu_target(cpu))


def target_of(instruction: DotInstruction):
    """A target that has the instruction."""
    if instruction in AARCH64:
        return cpu_target("dotprod")
    if instruction.available(make_target(ARM_CPUS["armv7"], 2)):
        return cpu_target("armv7")
    target = make_target(ARMV8_32, 2)
    emulator.require(target)
    return target


@pytest.mark.one_in(4)
@pytest.mark.parametrize("instruction", [*AARCH64, *ARM32], ids=lambda item: item.name)
def test_every_instruction(instruction):
    """Forced, with reductions of less and more than one chain, and with extreme operands as far as it takes them."""
    target, pairable = target_of(instruction), not getattr(instruction, "safe", True)
    short = instruction.data_dtype == "int16"
    data = {"data_dtype": "int16" if short else "int8", "pairable_weights": pairable}
    kernel = conv2d.implementation(instruction, "arm_cpu", 0)
    for workload in (
        conv((2, 5, 7, 3 * instruction.span), 20, (3, 3), padding=SAME, **data),
        conv((1, 6, 5, instruction.span + 1), 9, (1, 1), **data),
        conv((1, 4, 9, 3), 16, (3, 2), strides=(2, 1), padding=SAME, **data),
    ):
        check(workload, target, kernel, fill=("random", "random"))
    bytewise = {**data, "data_dtype": "int8"}
    for fill in (("min", "min"), ("max", "min"), ("min", "max")):
        workload = conv((1, 4, 5, 4 * instruction.span), 12, (3, 3), padding=SAME, **bytewise)
        check(workload, target, kernel, epilogue="none", fill=fill, pad_value=-128)
    rows = DenseWorkload(7, 5 * instruction.span - 1, 13, "int8", "int8", pairable_weights=pairable)
    check(rows, target, dense.implementation(instruction, "arm_cpu", 0))
    if not pairable:
        matrices = BatchMatmulWorkload(2, 5, 3 * instruction.span, 9, "int8", "int8")
        words = batch_matmul.implementation(on_words(instruction), "arm_cpu", 0)
        check(matrices, target, words, epilogue="none", fill=("min", "min"))
        check(matrices, target, words)


@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("cpu", ["dotprod", "asimd", "armv7"])
@pytest.mark.parametrize("weight_dtype", ["int8", "uint8"])
@pytest.mark.parametrize("data_dtype", ["uint8", "int16"])
def test_other_dtypes_are_widened(cpu, weight_dtype, data_dtype):
    workload = conv((1, 9, 9, 8), 24, (3, 3), padding=SAME, data_dtype=data_dtype, weight_dtype=weight_dtype)
    assert "wide" in select(workload, cpu_target(cpu)).name
    check(workload, cpu_target(cpu), epilogue="none", pad_value=3)
    check(DenseWorkload(5, 40, 9, data_dtype, weight_dtype), cpu_target(cpu), epilogue="none")


@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("cpu", ["dotprod", "asimd", "armv7"])
@pytest.mark.parametrize("channels", [10, 32, 100])
@pytest.mark.parametrize("epilogue", ["residual", "fixed_point"])
def test_epilogues(cpu, channels, epilogue):
    workload = conv((1, 9, 11, 16), channels, (3, 3), padding=SAME, pairable_weights=True, **SIGNED)
    check(workload, cpu_target(cpu), epilogue=epilogue)


@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("cpu", ["dotprod", "asimd", "armv7"])
@pytest.mark.parametrize(
    "workload",
    [conv((1, 6, 10, 32), 48, (3, 3), padding=SAME, groups=2, **SIGNED), DenseWorkload(19, 50, 70, "int8", "int8")],
    ids=["conv2d", "dense"],
)
def test_forced_tiles(workload, cpu):
    target, workload = cpu_target(cpu), replace(workload, pairable_weights=True)
    implementation = candidates(workload, target)[0]
    tiles = list(implementation.tiles(workload))
    assert len(tiles) > 3
    for tile in tiles[:: max(1, len(tiles) // 4)]:
        check(workload, target, implementation.with_tile(tile))


def test_selection():
    def names(channels: int, **known) -> dict[str, str]:
        workload = conv((1, 8, 8, channels), 16, (3, 3), **SIGNED, **known)
        return {cpu: select(workload, make_target(ARM_CPUS[cpu], 1)).name for cpu in ("dotprod", "asimd", "armv7")}

    prefix, suffix = "conv2d_nhwc_", ".arm_cpu"
    expected = {"dotprod": "sdot_16.aarch64", "asimd": "pairs_8.aarch64", "armv7": "pairs_4.arm"}
    assert names(48, pairable_weights=True) == {cpu: prefix + name + suffix for cpu, name in expected.items()}
    expected = {"dotprod": "sdot_8.aarch64", "asimd": "singles_8.aarch64", "armv7": "singles_4.arm"}
    assert names(24) == {cpu: prefix + name + suffix for cpu, name in expected.items()}
    assert names(4)["dotprod"] == "conv2d_nhwc_sdot_12.aarch64.arm_cpu"  # rows of the window: 3 · 4 values
    assert names(1)["dotprod"] == "conv2d_nhwc_sdot_4.aarch64.arm_cpu"
    x86 = conv((1, 8, 8, 16), 16, (3, 3), data_dtype="uint8")
    assert not any(".arm_cpu" in item.name for item in candidates(x86, make_target("avx2", 1)))


@pytest.mark.parametrize("lowest, expected", [(1, "pairs"), (2, "singles")])
def test_weights_say_whether_they_are_pairable(lowest, expected):
    """One weight of -128 in a channel keeps the sum of two products in 16 bits, two do not."""
    weight = np.full((8, 32), -127, np.int8)
    weight[3, 4 : 4 + lowest] = -128

    def build(builder, params):
        return [builder.emit(qnn.dense(params[0], constant(weight), 3, 0, 0.05, 0.01))]

    kernels = qnn_ext.build(small_module(build, [((4, 32), "int8")]), make_target(ARM_CPUS["asimd"], 1)).kernels
    assert [expected in kernel.implementation for kernel in kernels] == [True]


def test_order_by_step():
    """Updates of one accumulator move apart, others stay where they are, bound numbers come first."""
    c = tirx.decl_buffer((4,), "int32x4", "c")
    other = tirx.decl_buffer((4,), "int32x4", "other")
    x = tirx.decl_buffer((8,), "int32x4", "x")

    def update(place: int, source: int) -> tirx.BufferStore:
        return tirx.BufferStore(c, c[place] + x[source], [place])

    number = tirx.Var("number", "int32")
    bound = tirx.Bind(number, tirx.const(3, "int32"))
    reads_another = tirx.BufferStore(c, c[0] + c[1], [2])
    statements = [update(0, 0), update(0, 1), bound, update(1, 2), update(1, 3), reads_another, update(2, 4)]
    ordered = by_step(tirx.SeqStmt([*statements, tirx.BufferStore(other, other[0], [0])])).seq
    assert [_source(stmt, x) for stmt in ordered] == [None, 0, 2, 1, 3, None, 4, None]
    assert ordered[0].same_as(bound) and ordered[5].same_as(reads_another)


def _source(stmt: tirx.Stmt, buffer: tirx.Buffer) -> int | None:
    """The place in a buffer that a statement reads."""
    found: list[TensorLoad] = []
    tvm_ffi.structural_walk(stmt.value, (TensorLoad, found.append))
    places = [int(load.indices[0]) for load in found if load.source.same_as(buffer)]
    return places[0] if places else None


@pytest.mark.parametrize("instruction", [*AARCH64, *ARM32], ids=lambda item: item.name)
def test_instructions_are_values(instruction):
    """One that equals another finds what was planned for that in the caches, and no two of them are equal."""
    workload = conv((1, 6, 5, 16), 9, (1, 1), data_dtype=instruction.data_dtype, pairable_weights=True)
    assert conv2d.tiles(workload, replace(instruction)) is conv2d.tiles(workload, instruction)
    assert [item for item in (*AARCH64, *ARM32) if item == instruction] == [instruction]
