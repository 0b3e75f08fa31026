"""Products with block-wise quantized weights on an emulated GPU against the interpreter: equal where integers are
summed, within the stated bound where floats are."""

from __future__ import annotations

import numpy as np
import pytest

from qnn_ext.compiling.build import lower_module
from qnn_ext.interpreter import interpret
from qnn_ext.numerics.packed import WIDTHS
from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8 import BlockwiseWorkload, candidates
from tests.cases.blockwise import ZEROS, bound_of, float_product, int8_product, weight_of

from .grouped import computed_by
from .models import run_lowered

TARGET = make_target("sm_80")
# rows, depth, units, group: pieces of 32, 16 and 24 columns, several a group, more rows than a block, one group
SHAPES = [(1, 128, 40, 32), (3, 256, 17, 64), (9, 96, 33, 16), (2, 96, 8, 24), (1, 160, 5, 160)]


def name_of(m: int, k: int, n: int, group: int, dtype: str = "int4") -> str:
    return candidates(BlockwiseWorkload(m, k, n, group, "int8", dtype), TARGET)[0].name


@pytest.mark.sampled("shape")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("dtype", WIDTHS)
def test_pieces(dtype, zeros, shape):
    rows, depth, units, group = shape
    rng = np.random.default_rng(0)
    with computed_by("blockwise_pieces.cuda"):
        compare(rng, rows, weight_of(rng, units, depth, group, dtype, zeros))


@pytest.mark.parametrize("dtype", ["int4", "uint2"])
def test_a_shorter_last_group(dtype):
    """By the kernel that takes everything."""
    rng = np.random.default_rng(0)
    with computed_by("blockwise.cuda"):
        compare(rng, 3, weight_of(rng, 17, 50, 16, dtype, "integers"))


def compare(rng, rows, weight):
    for by_row in (False, True) if weight.zero_point.dtype != np.float32 else ():
        mod, inputs = int8_product(rng, rows, weight, by_row)
        found = run_lowered(lower_module(mod, TARGET), "sm_80", inputs)[0]
        np.testing.assert_array_equal(found, interpret(mod, inputs)[0])
    mod, inputs = float_product(rng, rows, weight)
    found = run_lowered(lower_module(mod, TARGET), "sm_80", inputs)[0].astype(np.float64)
    assert (np.abs(found - interpret(mod, inputs)[0]) <= bound_of(inputs[0], weight)).all()


def test_long_rows_share_less():
    """What a block sums fits its shared memory, or another kernel takes the product."""
    assert name_of(2, 14336, 4096, 32) == "blockwise_pieces.cuda"
    assert name_of(1, 1 << 20, 64, 32) != "blockwise_pieces.cuda"
