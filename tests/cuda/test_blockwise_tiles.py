"""Products of many rows with block-wise quantized weights by tiles of threads, on an emulated GPU against the
interpreter: equal where integers are summed, within the stated bound where floats are."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from qnn_ext.compiling.build import lower_module
from qnn_ext.interpreter import interpret
from qnn_ext.numerics.bfloat16 import BITS
from qnn_ext.numerics.packed import WIDTHS
from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8 import BlockwiseWorkload, candidates
from tests.cases.blockwise import ZEROS, bound_of, float_product, int8_product, weight_of

from .grouped import computed_by, source_of
from .instructions import count, instructions, ptx, spills
from .models import run_lowered
from .test_blockwise_mma import SHAPES


@pytest.mark.sampled("shape")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("zeros", ["shared", "integers"])
@pytest.mark.parametrize("dtype", WIDTHS)
def test_integers(dtype, zeros, shape):
    rows, depth, units, group = shape
    rng = np.random.default_rng(0)
    weight = weight_of(rng, units, depth, group, dtype, zeros)
    for by_row in (False, True):
        mod, inputs = int8_product(rng, rows, weight, by_row)
        with computed_by("blockwise_dp4a.cuda"):
            lowered = lower_module(mod, make_target("sm_61"))
        np.testing.assert_array_equal(run_lowered(lowered, "sm_61", inputs)[0], interpret(mod, inputs)[0])


@pytest.mark.sampled("shape", "weights")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("weights", WIDTHS)
@pytest.mark.parametrize("dtype", ["float32", "float16", BITS])
def test_floats(dtype, weights, zeros, shape):
    """Of 16 bits too, where no tensor core takes them."""
    rows, depth, units, group = shape
    rng = np.random.default_rng(0)
    weight = weight_of(rng, units, depth, group, weights, zeros)
    mod, inputs = float_product(rng, rows, weight, dtype)
    with computed_by("blockwise_ffma.cuda"):
        lowered = lower_module(mod, make_target("sm_75"))
    found = run_lowered(lowered, "sm_75", inputs)[0].astype(np.float64)
    assert (np.abs(found - interpret(mod, inputs)[0]) <= bound_of(inputs[0], weight)).all()


@cache
def chosen(rows, dtype, architecture, weights="int4"):
    workload = BlockwiseWorkload(rows, 4096, 4096, 32, dtype, weights)
    return candidates(workload, make_target(architecture))[0].name


def test_who_computes_what():
    """One row is never worth a tile, a hundred always; what lies between is predicted."""
    cases = [
        ("int8", "sm_61", "dp4a"),
        ("int8", "sm_70", "dp4a"),
        ("float16", "sm_75", "ffma"),
        (BITS, "sm_75", "ffma"),
    ]
    cases += [("float32", architecture, "ffma") for architecture in ("sm_61", "sm_80", "sm_90")]
    for dtype, architecture, name in cases:
        for weights in ("uint2", "int4", "int8"):
            assert chosen(1, dtype, architecture, weights) == "blockwise_pieces.cuda"
            assert chosen(128, dtype, architecture, weights) == f"blockwise_{name}.cuda"
        few = [chosen(rows, dtype, architecture) == "blockwise_pieces.cuda" for rows in (1, 2, 4, 8, 16, 32, 64)]
        assert few == sorted(few, reverse=True)


@pytest.mark.parametrize("weights", ["int2", "uint4", "int8"])
@pytest.mark.parametrize(("dtype", "instruction"), [("int8", "IDP.4A"), ("float32", "FFMA")])
def test_machine_code(dtype, instruction, weights):
    rng = np.random.default_rng(0)
    weight = weight_of(rng, 1024, 1024, 128, weights, "integers")
    mod, _ = int8_product(rng, 256, weight, True) if dtype == "int8" else float_product(rng, 256, weight, dtype)
    with computed_by(f"blockwise_{'dp4a' if dtype == 'int8' else 'ffma'}.cuda"):
        source = source_of(lower_module(mod, make_target("sm_80")), "sm_80")
    assert f"qnn_unpack_{weights}_" in source
    found = instructions(source, "sm_80")
    assert count(found, instruction) >= 4 * count(found, "LDS.128") > 0
    assert spills(found) == 0


def test_pascal_has_the_instructions():
    rng = np.random.default_rng(0)
    mod, _ = int8_product(rng, 256, weight_of(rng, 256, 1024, 32, "int4"), True)
    with computed_by("blockwise_dp4a.cuda"):
        source = source_of(lower_module(mod, make_target("sm_61")), "sm_61")
    assert "__dp4a" in source and "qnn_unpack_int4_int8" in source
    assert "dp4a.s32.s32" in ptx(source, "sm_61")
