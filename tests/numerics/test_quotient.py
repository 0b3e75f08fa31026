"""Quotients by a corrected reciprocal equal true divisions: where they are hardest, and in kernels with any scale."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from qnn_ext import op as qnn
from qnn_ext.compiling.build import lower_module
from qnn_ext.compiling.codegen import generate_code
from qnn_ext.interpreter import interpret
from qnn_ext.numerics.quotient import LEAST, MOST, quotient
from qnn_ext.targets.names import make_target
from tests.passes.modules import module

LARGEST_ERROR = 5  # odd numbers below 6, see numerics/quotient.py
AVX2 = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"}
SHAPE = (6, 67)


def hardest(divisors: np.ndarray, exponent: int) -> tuple[np.ndarray, np.ndarray]:
    """All (X, S) of 24 bits with |2^exponent X − N·S| = n·2^t for an odd N of 25 bits and n = 1, 3 or 5, where 2^t is
    the power of two in S."""
    found = []
    for zeros in range(4):  # beyond, 2^t is no longer below 6
        exact = divisors[(divisors & ((2 << zeros) - 1)) == 1 << zeros]
        odd, period = exact >> zeros, 1 << (exponent - zeros)
        inverse = odd.copy()
        for _ in range(5):
            inverse = (inverse * (2 - odd * inverse)) & ((1 << exponent) - 1)
        for numerator in range(-LARGEST_ERROR, LARGEST_ERROR + 1, 2):
            least = (inverse * numerator) & (period - 1)
            for middle in (least + period * k for k in range((1 << 25) // period)):
                inside = (middle >= 1 << 24) & (middle < 1 << 25)
                product = middle[inside] * exact[inside] - (numerator << zeros)
                assert not (product & ((1 << exponent) - 1)).any()
                found.append(np.stack([product >> exponent, exact[inside]]))
    dividends, divisors = np.concatenate(found, axis=1)
    normal = (dividends >= 1 << 23) & (dividends < 1 << 24)
    return dividends[normal].astype(np.float32), divisors[normal].astype(np.float32)


@pytest.mark.parametrize("exponent", [24, 25])
def test_quotients_next_to_the_middle_of_two_floats(exponent):
    """Every 61st divisor; a stride of 1, which is all of them, takes a minute and finds none that differs."""
    x, s = hardest(np.arange(1 << 23, 1 << 24, 61, dtype=np.int64), exponent)
    assert len(x) > 100_000
    np.testing.assert_array_equal(quotient(x, s), x / s)
    assert (x * (np.float32(1) / s) != x / s).any()  # they are hard


def test_quotients_of_all_dividends():
    """Divisors at both ends of a binade and between, with every dividend of one."""
    x = np.arange(1 << 23, 1 << 24, dtype=np.int64).astype(np.float32)
    for divisor in (1 << 23, (1 << 23) + 1, 11184811, (1 << 24) - 1):
        s = np.float32(divisor)
        np.testing.assert_array_equal(quotient(x, s), x / s)


def scales() -> list[float]:
    edges = [LEAST, MOST, *(float(np.nextafter(np.float32(edge), to)) for edge in (LEAST, MOST) for to in (0, np.inf))]
    return [0.013, 1 / 255, 3.7, *edges, 1e-38, 1e-45, 3e38, 0.0, -0.5, np.nan, np.inf]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16"])
@pytest.mark.parametrize("target", ["native", AVX2], ids=["native", "avx2"])
def test_kernels_quantize_by_any_scale(target, dtype):
    """Near every tie: the midpoints of a scale's steps, and the floats around them."""
    inputs = [(SHAPE, "float32"), ((), "float32"), ((), "int32")]
    mod = module(inputs, lambda emit, x, s, z: [emit(qnn.quantize(x, s, z, out_dtype=dtype))])
    resolved = make_target(target)
    machine = relax.VirtualMachine(generate_code(lower_module(mod, resolved), resolved), tvm.cpu())
    rng = np.random.default_rng(0)
    for scale in map(np.float32, scales()):
        step = scale if np.isfinite(scale) and scale else np.float32(1)
        x = ((rng.integers(-300, 300, SHAPE) + 0.5) * np.float64(step)).astype(np.float32)
        x = np.where(rng.random(SHAPE) < 0.6, np.nextafter(x, rng.choice([-np.inf, np.inf], SHAPE)), x).astype(
            np.float32
        )
        x.reshape(-1)[:8] = [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, 0.0, -0.0]
        values = [x, np.asarray(scale), np.asarray(np.int32(13))]
        found = machine["main"](*map(tvm.runtime.tensor, values))[0].numpy()
        np.testing.assert_array_equal(found, interpret(mod, values)[0], err_msg=str(scale))
