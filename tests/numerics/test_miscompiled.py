"""Loads at remainders of loop variables, which LLVM's vectorizer miscompiles if they are masks."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.sym import Analyzer

from qnn_ext.compiling.codegen import PIPELINE
from qnn_ext.numerics.miscompiled import _quotient
from tests.cpus import cpu_target

ROWS = 18


def repeated(length: int, divisor: int, width: int, factor: int, cpu: str) -> tuple[np.ndarray, np.ndarray]:
    """y[a, b, k] = x[a mod 3, factor·b mod divisor, k], compiled, and what it should be."""

    def wide(value: int) -> tirx.IntImm:
        return tirx.IntImm("int64", value)

    x = te.placeholder((wide(3), wide(divisor), wide(width)), "float32", name="x")
    y = te.compute(
        (wide(ROWS), wide(length), wide(width)), lambda a, b, k: x[a % wide(3), b * wide(factor) % wide(divisor), k]
    )
    mod = tvm.IRModule({"main": te.create_prim_func([x, y]).with_attr("global_symbol", "main")})
    compiled = tvm.compile(mod, target=cpu_target(cpu, 1), tir_pipeline=PIPELINE)
    data = np.arange(3 * divisor * width, dtype=np.float32).reshape(3, divisor, width)
    result = tvm.runtime.tensor(np.zeros((ROWS, length, width), np.float32))
    compiled["main"](tvm.runtime.tensor(data), result)
    return result.numpy(), data[np.arange(ROWS) % 3][:, np.arange(length) * factor % divisor]


@pytest.mark.parametrize("cpu", ["x86-64", "avx2", "avx512"])
@pytest.mark.parametrize(("length", "divisor", "width", "factor"), [(64, 4, 1, 1), (40, 8, 2, 3), (16, 4, 5, 1)])
def test_remainders(length, divisor, width, factor, cpu):
    found, wanted = repeated(length, divisor, width, factor, cpu)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("largest", [1, 7, 1000, 9_000, 100_000, (1 << 29) - 1])
@pytest.mark.parametrize("divisor", [2, 4, 64, 1 << 20])
def test_quotients(largest, divisor):
    """Exact up to the largest value, around the last multiples of the divisor."""
    near = [divisor * count + d for count in range(largest // divisor + 1)[-3:] for d in (-1, 0, 1)]
    for value in {value for value in (0, 1, largest, *near) if 0 <= value <= largest}:
        quotient = _quotient(tirx.IntImm("int64", value), largest, divisor)
        assert int(Analyzer().simplify(quotient)) == value // divisor
