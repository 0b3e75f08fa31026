"""Products of many rows with block-wise quantized weights on tensor cores, on an emulated GPU against the interpreter:
equal where integers are summed, within the stated bound where floats are."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tvm import te

import qnn_ext
from qnn_ext.compiling.build import lower_module
from qnn_ext.compiling.describe import kernels_of
from qnn_ext.interpreter import interpret
from qnn_ext.numerics.bfloat16 import BITS
from qnn_ext.numerics.packed import WIDTHS, packed_bytes
from qnn_ext.passes.low_precision import at_precision
from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8 import BlockwiseWorkload, candidates
from qnn_ext.topi_int8.cuda import blockwise_mma
from qnn_ext.topi_int8.schedule_util import Unchecked
from tests.cases.blockwise import ZEROS, bound_of, float_product, int8_product, weight_of

from .grouped import computed_by, source_of
from .instructions import count, instructions, ptx, spills
from .models import run_lowered, run_model

# rows, depth, units, group: groups of an instruction, of half of one, several steps a group, several groups a step, a
# shorter last group, one group with a padded end, rows and columns that fill no tile
SHAPES = [
    (70, 128, 72, 32),
    (33, 96, 17, 16),
    (130, 256, 65, 64),
    (1, 128, 16, 128),
    (5, 50, 8, 50),
    (40, 100, 24, 32),
    (17, 72, 33, 24),
    (64, 512, 40, 256),
    (16, 100, 10, 24),
]
ARCHITECTURES = {"sm_75": "blockwise_mma_turing.cuda", "sm_80": "blockwise_mma.cuda"}
FLOATS = {"float16": "blockwise_mma_float16.cuda", BITS: "blockwise_mma_bfloat16.cuda"}


@pytest.mark.sampled("shape")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("zeros", ["shared", "integers"])
@pytest.mark.parametrize("dtype", WIDTHS)
def test_integers(dtype, zeros, shape):
    check_integers("sm_80", dtype, zeros, shape)


@pytest.mark.sampled("dtype")
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
@pytest.mark.parametrize("dtype", WIDTHS)
def test_integers_on_turing(dtype, shape):
    check_integers("sm_75", dtype, "integers", shape)


def check_integers(architecture, dtype, zeros, shape, fill=None, scales="float32"):
    rows, depth, units, group = shape
    rng = np.random.default_rng(0)
    weight = weight_of(rng, units, depth, group, dtype, zeros, scales)
    for by_row in (False, True):
        mod, inputs = int8_product(rng, rows, weight, by_row, fill)
        with computed_by(ARCHITECTURES[architecture]):
            lowered = lower_module(mod, make_target(architecture))
        found = run_lowered(lowered, architecture, inputs)[0]
        np.testing.assert_array_equal(found, interpret(mod, inputs)[0])


@pytest.mark.parametrize("dtype", ["int2", "uint4", "uint8"])
def test_extremes(dtype):
    """Long sums of one sign, of one group."""
    check_integers("sm_80", dtype, "integers", (16, 1024, 16, 1024), fill=-128)


@pytest.mark.parametrize("scales", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_scales_of_16_bits(shape, scales):
    check_integers("sm_80", "int4", "shared", shape, scales=scales)


@pytest.mark.sampled("shape")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("weights", ["int2", "uint4", "int8"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_floats(dtype, weights, zeros, shape):
    rows, depth, units, group = shape
    rng = np.random.default_rng(0)
    weight = weight_of(rng, units, depth, group, weights, zeros)
    mod, inputs = float_product(rng, rows, weight, dtype)
    with computed_by(FLOATS[dtype]):
        lowered = lower_module(mod, make_target("sm_80"))
    found = run_lowered(lowered, "sm_80", inputs)[0].astype(np.float64)
    assert (np.abs(found - interpret(mod, inputs)[0]) <= bound_of(inputs[0], weight)).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("weights", WIDTHS)
def test_every_integer_is_exact_in_16_bits(dtype, weights):
    """Rows of an identity matrix leave single weights, which no rounding changes."""
    rng = np.random.default_rng(0)
    weight = weight_of(rng, 40, 64, 64, weights)
    ones = replace(weight, scale=np.ones_like(weight.scale), zero_point=np.asarray(0, np.int32))
    mod, inputs = float_product(rng, 64, ones, dtype)
    inputs = [
        np.eye(64, dtype=np.float32).astype("float16") if dtype == "float16" else np.eye(64).astype(BITS) * 0x3F80
    ]
    with computed_by(FLOATS[dtype]):
        lowered = lower_module(mod, make_target("sm_80"))
    np.testing.assert_array_equal(run_lowered(lowered, "sm_80", inputs)[0], interpret(mod, inputs)[0])


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_precision(precision):
    """Activations are rounded for every kernel; tensor cores multiply them where there are many rows."""
    rng = np.random.default_rng(0)
    weight = weight_of(rng, 512, 512, 32, "int4")
    for rows, architecture, kernel in (
        (160, "sm_80", f"blockwise_mma_{precision}.cuda"),
        (2, "sm_80", "blockwise_pieces.cuda"),
    ):
        mod, inputs = float_product(rng, rows, weight)
        module = qnn_ext.QnnModule(at_precision(mod, precision), (), ())
        (kernel_of,) = [
            item.implementation for item in kernels_of(lower_module(module.ir, make_target(architecture))) if item.macs
        ]
        assert kernel_of == kernel
        found = run_model(module, architecture, inputs)[0].astype(np.float64)
        expected = interpret(module.ir, inputs)[0]
        assert (np.abs(found - expected) <= bound_of(inputs[0], weight)).all()
        assert not np.array_equal(expected, interpret(mod, inputs)[0]), "something was rounded"


# ---- choice ----------------------------------------------------------------------------------------------------------


@cache
def chosen(rows, dtype, architecture, weights="int4", group=32):
    workload = BlockwiseWorkload(rows, 4096, 4096, group, dtype, weights)
    return candidates(workload, make_target(architecture))[0].name


def test_who_computes_what():
    for architecture, name in (*ARCHITECTURES.items(), ("sm_90", "blockwise_mma.cuda")):
        for weights in ("uint2", "int4", "int8"):
            assert chosen(1, "int8", architecture, weights) == "blockwise_pieces.cuda"
            assert chosen(128, "int8", architecture, weights) == chosen(512, "int8", architecture, weights) == name
    for dtype, name in FLOATS.items():
        assert chosen(1, dtype, "sm_80") == "blockwise_pieces.cuda"
        assert chosen(128, dtype, "sm_80") == name
        assert "mma" not in chosen(128, dtype, "sm_75"), "its tensor cores have other shapes"
    for architecture in ("sm_61", "sm_70"):
        assert "mma" not in chosen(128, "int8", architecture)
    assert "mma" not in chosen(128, "float32", "sm_90")


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_more_rows_are_never_fewer(dtype):
    """The kernel of few rows is chosen up to some number of them."""
    names = [chosen(rows, dtype, "sm_80") for rows in (1, 2, 4, 8, 12, 16, 24, 32, 64)]
    few = [name == "blockwise_pieces.cuda" for name in names]
    assert few == sorted(few, reverse=True)


# ---- tiles -----------------------------------------------------------------------------------------------------------


def shapes_of(tile):
    return tile.of_warp, tile.warp_rows, tile.warp_columns


LARGE = BlockwiseWorkload(512, 4096, 4096, 32, "int8", "int4", 0, False, True)


def test_every_shape_of_tiles_can_be_scheduled():
    target, operands = make_target("sm_80"), operands_of(LARGE)
    for tile in {shapes_of(tile): tile for tile in blockwise_mma.INT8.tiles(LARGE)}.values():
        result = blockwise_mma.INT8.compute(LARGE, *operands, 0, tile=tile)
        sch = Unchecked(te.create_prim_func([operands[0], *operands[1], result]))
        blockwise_mma.INT8.schedule(sch, LARGE, target, tile=tile)


def operands_of(workload):
    x = te.placeholder((workload.m, workload.k), workload.data_dtype)
    shapes = [
        ((workload.m, 1), "float32"),
        ((workload.n, packed_bytes(workload.k, workload.weight_dtype)), "uint8"),
        ((workload.n, workload.groups), "float32"),
        ((), "int32"),
    ]
    return x, [te.placeholder(*shape) for shape in shapes]


def test_tiles_fit_every_gpu():
    turing = blockwise_mma.INT8_OF_TURING.tiles(LARGE)
    assert turing
    for tile in [*blockwise_mma.INT8.tiles(LARGE), *turing]:
        rows, columns = tile.of_warp
        assert rows * columns <= 2048, "two sets of sums"
        assert tile.threads * 255 <= 65536


# ---- code ------------------------------------------------------------------------------------------------------------

COMPILED = {
    "int8": ("IMMA", 2),
    "float16": ("HMMA.16816", 4),
    BITS: ("HMMA.16816", 4),
}


@pytest.mark.sampled("weights")
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("weights", ["int2", "uint4", "int8"])
@pytest.mark.parametrize("dtype", COMPILED)
def test_machine_code(dtype, weights, architecture):
    if dtype != "int8" and architecture == "sm_75":
        pytest.skip("no such instruction")
    rng = np.random.default_rng(0)
    weight = weight_of(rng, 1024, 1024, 128, weights, "integers")
    mod, _ = int8_product(rng, 256, weight, True) if dtype == "int8" else float_product(rng, 256, weight, dtype)
    source = source_of(lower_module(mod, make_target(architecture)), architecture)
    assert f"qnn_unpack_{weights}_" in source
    found = instructions(source, architecture)
    instruction, least = COMPILED[dtype]
    assert count(found, instruction) >= least
    assert spills(found) == 0
    assert count(found, "LDSM") > 0
    assert count(found, "F2F", "F2I") == 0, "integers become floats of 16 bits without conversions"
    if architecture != "sm_75":
        assert count(found, "LDGSTS.E.BYPASS.128") > 0


def test_ptx():
    rng = np.random.default_rng(0)
    mod, _ = int8_product(rng, 256, weight_of(rng, 1024, 1024, 32, "int4"), True)
    code = ptx(source_of(lower_module(mod, make_target("sm_80")), "sm_80"), "sm_80")
    assert "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32" in code
    assert "cp.async.cg.shared.global" in code
