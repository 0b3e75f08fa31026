"""smmla kernels for ARM CPUs with i8mm against int64 NumPy, run under emulation; their loops over k hold no spills."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from tvm import te
from tvm.s_tir import Schedule
from tvm.target import Target

import qnn_ext
from qnn_ext.compiling.codegen import generate_code
from qnn_ext.module import QnnModule, TensorSpec
from qnn_ext.op.evaluate import interpret
from qnn_ext.topi_int8 import BatchMatmulWorkload, Conv2dWorkload, DenseWorkload, Implementation, candidates, select
from tests.arm.engines import emulated
from tests.cases.convolutions import SHAPES, conv, describe
from tests.cases.workloads import BATCH_MATMUL, DENSE
from tests.passes.modules import conv_module, random_input

from .kernels import ARM_CPUS, check, cpu_target, operand_shapes

INT8 = {"data_dtype": "int8", "weight_dtype": "int8"}


def smmla(workload, target: Target) -> Implementation:
    """The kernel under test, which must be the one that is chosen."""
    implementation = candidates(workload, target)[0]
    assert "smmla" in implementation.name
    return implementation


def dense(m: int, k: int, n: int) -> DenseWorkload:
    return DenseWorkload(m, k, n, "int8", "int8")


def batch_matmul(b: int, m: int, k: int, n: int) -> BatchMatmulWorkload:
    return BatchMatmulWorkload(b, m, k, n, "int8", "int8")


def named(workload) -> str:
    if isinstance(workload, Conv2dWorkload):
        return describe(workload)
    batch = f"{workload.batch}x" if isinstance(workload, BatchMatmulWorkload) else ""
    return f"{batch}{workload.m}x{workload.k}x{workload.n}"


def fills(pixels: int, channels: int) -> bool:
    """Whether there are pairs of pixels, and channels for more than half a block."""
    return pixels > 1 and channels > 4


CONVOLUTIONS = [
    replace(shape, **INT8) for shape in SHAPES if fills(shape.out_height * shape.out_width, shape.out_channels)
]
CONVOLUTIONS += [
    conv((1, 10, 21, 40), 48, (1, 1), strides=(3, 2), **INT8),  # 1×1 of every third row and second column
    conv((1, 9, 20, 12), 24, (3, 3), strides=(2, 3), padding=(1, 1, 1, 1), dilation=(2, 2), **INT8),
    conv((2, 6, 1, 24), 16, (3, 1), padding=(1, 0, 1, 0), **INT8),  # one column: the second pixel of a pair is padding
    conv((1, 40, 33, 3), 24, (3, 3), strides=(2, 2), padding=(0, 0, 1, 1), **INT8),
    conv((2, 23, 10, 1), 40, (10, 4), strides=(2, 2), padding=(4, 1, 5, 1), **INT8),  # whole windows: halves of steps,
    conv((1, 11, 13, 3), 96, (4, 6), padding=(3, 3, 2, 1), **INT8),  # two steps and two values of each row,
    conv((1, 15, 14, 3), 96, (3, 4), dilation=(3, 1), padding=(1, 1, 2, 0), **INT8),  # and lines far apart
]
PRODUCTS = [dense(m, k, n) for m, k, n in DENSE if fills(m, n)]
PRODUCTS += [batch_matmul(b, m, k, n) for b, m, k, n in BATCH_MATMUL if fills(m, n)]


@pytest.mark.parametrize("workload", CONVOLUTIONS, ids=named)
def test_convolutions(workload):
    target = cpu_target("i8mm")
    check(workload, target, smmla(workload, target))


@pytest.mark.parametrize("workload", PRODUCTS, ids=named)
def test_products(workload):
    target = cpu_target("i8mm")
    check(workload, target, smmla(workload, target))


@pytest.mark.parametrize("fill", [("min", "min"), ("min", "max"), ("max", "max")], ids="-".join)
@pytest.mark.parametrize(
    "workload",
    [
        conv((1, 6, 9, 64), 32, (3, 3), padding=(1, 1, 1, 1), **INT8),
        conv((1, 6, 9, 512), 24, (1, 1), **INT8),
        dense(5, 2048, 40),
        batch_matmul(2, 5, 1024, 24),
    ],
    ids=named,
)
def test_extremes_do_not_saturate(workload, fill):
    target = cpu_target("i8mm")
    check(workload, target, smmla(workload, target), epilogue="none", fill=fill, pad_value=-128)


@pytest.mark.sampled("epilogue")
@pytest.mark.parametrize("channels", [10, 17, 32, 100])
@pytest.mark.parametrize("epilogue", ["none", "residual", "fixed_point"])
def test_epilogues(channels, epilogue):
    target = cpu_target("i8mm")
    for workload in (
        conv((1, 9, 11, 16), channels, (3, 3), padding=(1, 1, 1, 1), **INT8),
        conv((1, 19, 19, 16), channels, (1, 1), **INT8),
        dense(9, 40, channels),
        batch_matmul(3, 9, 40, channels),
    ):
        check(workload, target, smmla(workload, target), epilogue=epilogue)


@pytest.mark.sampled("epilogue")
@pytest.mark.parametrize("channels", [50, 53, 57])
@pytest.mark.parametrize("epilogue", ["none", "requantize", "residual", "fixed_point"])
def test_channels_that_end_within_a_block(channels, epilogue):
    """The last of several panels has its own code, the others store whole vectors."""
    target = cpu_target("i8mm")
    for workload in (
        conv((1, 66, 12, 16), channels, (3, 3), padding=(1, 1, 1, 1), **INT8),
        conv((1, 33, 17, 24), channels, (1, 1), **INT8),
        dense(200, 24, channels),
        batch_matmul(16, 37, 24, channels),
    ):
        check(workload, target, smmla(workload, target), epilogue=epilogue)


# fmt: off
TILED = [
    conv((2, 6, 6, 32), 40, (1, 1), **INT8),
    conv((1, 7, 9, 16), 48, (3, 3), padding=(1, 1, 1, 1), **INT8),
    conv((1, 15, 13, 3), 24, (3, 3), strides=(2, 2), padding=(0, 0, 1, 1), **INT8),
    conv((1, 6, 10, 32), 96, (3, 3), padding=(1, 1, 1, 1), groups=2, **INT8),
    dense(19, 50, 70),
    batch_matmul(3, 13, 20, 40),
]
# fmt: on


@pytest.mark.one_in(3)
@pytest.mark.parametrize("workload", TILED, ids=named)
def test_forced_tiles(workload):
    target = cpu_target("i8mm", num_threads=1)
    implementation = smmla(workload, target)
    tiles = list(implementation.tiles(workload))
    assert len(tiles) > 6
    for tile in tiles[:: len(tiles) // 6]:
        check(workload, target, implementation.with_tile(tile))
        strips = implementation.variants(workload, tile)
        check(workload, target, implementation.with_tile(strips[len(strips) // 2]))


@pytest.mark.sampled("num_threads")
@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize(
    "workload",
    [
        conv((1, 64, 30, 24), 32, (3, 3), padding=(1, 1, 1, 1), **INT8),  # several strips, each pads its own rows
        conv((2, 48, 40, 3), 16, (7, 7), strides=(2, 2), padding=(2, 2, 3, 3), **INT8),
        conv((1, 41, 63, 32), 16, (1, 1), **INT8),
        conv((1, 64, 32, 32), 96, (1, 1), strides=(2, 2), **INT8),
    ],
    ids=named,
)
def test_strips(workload, num_threads):
    target = cpu_target("i8mm", num_threads)
    check(workload, target, smmla(workload, target))


def test_selection():
    target = cpu_target("i8mm")
    for single in (conv((1, 1, 1, 64), 100, (1, 1), **INT8), dense(1, 64, 100), batch_matmul(4, 1, 64, 16)):
        assert "smmla" not in select(single, target).name  # half of each instruction would be wasted
    for few in (conv((1, 8, 8, 64), 4, (3, 3), **INT8), dense(16, 64, 3), batch_matmul(4, 16, 64, 4)):
        assert "smmla" not in select(few, target).name
    for workload in (conv((1, 8, 8, 16), 16, (3, 3), **INT8), dense(2, 64, 100), batch_matmul(4, 2, 64, 16)):
        assert "smmla" in select(workload, target).name
        for other in ("asimd", "dotprod", "armv7"):
            names = [item.name for item in candidates(workload, Target(ARM_CPUS[other]))]
            assert names and not any("smmla" in name for name in names)
        assert "smmla" not in select(replace(workload, data_dtype="int16"), target).name


@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 1, 1, 1)])
@pytest.mark.parametrize("channels", [12, 64])
@pytest.mark.parametrize("zero_point", [0, -9])
def test_models_of_one_layer(rng, padding, channels, zero_point):
    """The bias as the accumulators' initial values, sums of weight zero points beside the product, saturation."""
    kernel = 3 if any(padding) else 1
    data, weight = ((1, 7, 10, 24), "int8"), ((channels, kernel, kernel, 24), "int8")
    ir = conv_module(
        rng, data=data, weight=weight, zero_points=(-3, zero_point), out=("int8", -20), residual=True, padding=padding
    )
    specs = (TensorSpec("x0", data[0], "int8"), TensorSpec("x1", (*data[0][:3], channels), "int8"))
    target = dict(cpu_target("i8mm", 2).export())
    engine = qnn_ext.build(QnnModule(ir, specs, (TensorSpec("y", specs[1].shape, "int8"),)), target)
    inputs = [random_input(rng, spec.shape, "int8") for spec in specs]
    assert any("smmla" in kernel.implementation for kernel in engine.kernels)
    np.testing.assert_array_equal(emulated(engine)(*inputs), interpret(ir, inputs)[0])


# ---- machine code ------------------------------------------------------------------------------------------------


def assembly(workload, target: Target) -> str:
    """The machine code of the kernel without an epilogue."""
    implementation = smmla(workload, target)
    x, w = (te.placeholder(shape, "int8") for shape in operand_shapes(workload))
    if implementation.pack_weight:
        packed = implementation.pack_weight(workload, np.zeros(operand_shapes(workload)[1], np.int8))
        w = te.placeholder(packed.shape, "int8")
    sch = Schedule(te.create_prim_func([x, w, implementation.compute(workload, x, w, 0)]))
    implementation.schedule(sch, workload, target)
    return str(generate_code(sch.mod, target).mod.inspect_source("asm"))


def product_loops(code: str) -> list[list[str]]:
    """The innermost loops that multiply: lines from a label to the branch back to it, without another label."""
    loops: list[list[str]] = []
    block: list[str] = []
    label = ""
    for line in code.splitlines():
        if found := re.match(r"(\.LBB\w+):", line):
            label, block = found[1], []
        elif line.startswith("\t") and not line.startswith("\t."):
            block.append(line.strip())
            if label and line.endswith(label) and any(item.startswith("smmla") for item in block):
                loops.append(block)
                label, block = "", []
    return loops


# fmt: off
REAL = [
    conv((1, 224, 224, 3), 64, (7, 7), strides=(2, 2), padding=(3, 3, 3, 3), **INT8),
    conv((1, 56, 56, 64), 64, (3, 3), padding=(1, 1, 1, 1), **INT8),
    conv((1, 56, 56, 64), 256, (1, 1), **INT8),
    conv((1, 56, 56, 256), 512, (1, 1), strides=(2, 2), **INT8),
    conv((1, 28, 28, 128), 128, (3, 3), strides=(2, 2), padding=(1, 1, 1, 1), **INT8),
    conv((1, 14, 14, 256), 256, (3, 3), padding=(1, 1, 1, 1), **INT8),
    conv((1, 14, 14, 1024), 256, (1, 1), **INT8),
    conv((1, 7, 7, 512), 512, (3, 3), padding=(1, 1, 1, 1), **INT8),
    conv((1, 56, 56, 144), 24, (1, 1), **INT8),
    conv((1, 7, 7, 960), 160, (1, 1), **INT8),
    conv((1, 14, 14, 256), 256, (3, 3), padding=(1, 1, 1, 1), groups=32, **INT8),
    dense(197, 768, 768),
    dense(8, 1024, 1000),
    batch_matmul(12, 128, 64, 128),
]
# fmt: on


@pytest.mark.one_in(2)
@pytest.mark.parametrize("workload", REAL, ids=named)
def test_loops_over_k_hold_products_and_no_spills(workload):
    loops = product_loops(assembly(workload, cpu_target("i8mm", num_threads=1)))
    assert loops
    for loop in loops:
        products = [line for line in loop if line.startswith("smmla")]
        stored = [line for line in loop if line.startswith(("st", "prfm"))]
        on_stack = [line for line in loop if "[sp" in line]
        assert len(products) >= 16 and 5 * len(products) >= 3 * len(loop) and not stored and not on_stack
