"""qnn.fma: rounded once, wherever two roundings would differ."""

from fractions import Fraction

import numpy as np
import pytest
import tvm
from tvm import relax

from qnn_ext import op
from qnn_ext.compiling.build import lower_module
from qnn_ext.compiling.codegen import generate_code
from qnn_ext.errors import ShapeError
from qnn_ext.targets.names import make_target, required_features

from .helpers import evaluate, var


def nearest_float32(exact: Fraction) -> np.float32:
    """The nearest float32, ties to even, found among the neighbours of an approximation."""
    guess = np.float32(float(exact))
    around = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    distance = [abs(Fraction(float(value)) - exact) for value in around]
    closest = [value for value, d in zip(around, distance, strict=True) if d == min(distance)]
    return next((value for value in closest if int(value.view(np.int32)) % 2 == 0), closest[0])


def difficult(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Operands whose sum needs more than float64's bits, near midpoints of float32."""
    a = (1 + rng.integers(0, 1 << 23, count) * 2.0**-23).astype(np.float32)
    b = (1 + rng.integers(0, 1 << 23, count) * 2.0**-23).astype(np.float32)
    exponent = rng.integers(-80, 80, count)
    c = (rng.choice([-1, 1], count) * rng.integers(1, 1 << 24, count) * 2.0 ** (exponent - 23)).astype(np.float32)
    return a, b, c


def test_rounded_once(rng):
    a, b, c = difficult(rng, 3000)
    expected = [
        nearest_float32(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))
        for x, y, z in zip(a, b, c, strict=True)
    ]
    np.testing.assert_array_equal(evaluate(op.fma(a, b, c)), expected)


def test_float64_would_round_twice():
    """The product lies 2⁻⁷⁰ below the distance to a midpoint of float32, which a float64 sum cannot tell."""
    a, b = np.float32(2.0**-12 * (1 + 2.0**-23)), np.float32(2.0**-12 * (1 - 2.0**-23))
    c = np.float32(1 + 2.0**-23)
    assert np.float32(np.float64(a) * np.float64(b) + np.float64(c)) == np.float32(1 + 2.0**-22)
    assert evaluate(op.fma(a, b, c)) == c


def test_special_values():
    values = np.float32([0, -0.0, 1, -1, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan, 1e-45])
    a, b, c = (grid.reshape(-1) for grid in np.meshgrid(values, values, values))
    with np.errstate(all="ignore"):
        exact = (a.astype(np.float64) * b + c).astype(np.float32)
    fused = evaluate(op.fma(a, b, c))
    np.testing.assert_array_equal(np.isnan(fused), np.isnan(exact))
    unaffected = np.isnan(exact) | np.isinf(exact) | (exact == 0)
    np.testing.assert_array_equal(fused[unaffected], exact[unaffected])


def test_broadcasts():
    a, b, c = np.ones((4, 1), np.float32), np.arange(6, dtype=np.float32), np.float32(2)
    np.testing.assert_array_equal(evaluate(op.fma(a, b, c)), np.broadcast_to(b + 2, (4, 6)))


@pytest.mark.parametrize("cpu", ["native", "x86-64"])
def test_kernel(cpu, rng):
    """Exact in vectors and in their remainder, with and without the instruction."""
    a, b, c = (array.reshape(3, 331) for array in difficult(rng, 993))
    params = [var(name, (3, 331), "float32") for name in "abc"]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(op.fma(*params)))
        builder.emit_func_output(result)
    target = make_target(cpu, 1)
    executable = generate_code(lower_module(builder.get(), target), target)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    actual = machine["main"](*map(tvm.runtime.tensor, (a, b, c))).numpy()
    np.testing.assert_array_equal(actual, evaluate(op.fma(a, b, c)))
    modules = [executable.mod, *executable.mod.imports]
    assembly = "".join(module.inspect_source("asm") for module in modules if module.kind == "llvm")
    if "fma" in required_features(target):
        assert "vfmadd" in assembly and "fmaf" not in assembly


def test_errors():
    with pytest.raises(ShapeError, match="a must be float32"):
        op.fma(var("x", (2,), "int8"), np.float32(1), np.float32(1))
    with pytest.raises(ShapeError, match="do not broadcast"):
        op.fma(np.ones(2, np.float32), np.float32(1), np.ones(3, np.float32))
