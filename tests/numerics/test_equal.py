"""Every rule as NumPy and as TIR, equal bit for bit on edge and random data; Relay's golden values."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from qnn_ext import numerics
from qnn_ext.numerics import reference, tir

EDGES = np.array(
    [0, 1, -1, 2, -2, 3, -3, 127, -128, 255, 256, 2**24 - 1, 2**24, 2**24 + 1, -(2**24) - 1, 2**30, -(2**30)]
    + [2**31 - 1, 2**31 - 2, -(2**31), -(2**31) + 1],
    np.int64,
)
SCALES = [1.0, 0.5, 0.25, 2.0**-9, 1 / 3, 2 / 3, 3.0, 0.0023, 0.99999997, 1.5, 1e-6, 2.0**-31, 1e-12, 0.7071067]


def data(rng: np.random.Generator) -> np.ndarray:
    """Edges, every small integer, every midpoint of the power-of-two scales, and random values of all magnitudes."""
    small = np.arange(-3000, 3000)
    wide = rng.integers(-(2**31), 2**31, 4000)
    magnitudes = (rng.standard_normal(4000) * 2.0 ** rng.uniform(1, 30, 4000)).astype(np.int64)
    return np.clip(np.concatenate([EDGES, small, wide, magnitudes]), -(2**31), 2**31 - 1).astype(np.int32)


def evaluate(expression, x: np.ndarray, out_dtype: str) -> np.ndarray:
    """Run `expression(element)` over x on this CPU, vectorized by LLVM as a kernel would be."""
    source = te.placeholder(x.shape, str(x.dtype), "x")
    result = te.compute(x.shape, lambda i: expression(source[i]), "y")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([source, result]))
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    schedule.vectorize(schedule.split(loop, [None, 16])[1])
    built = tvm.compile(schedule.mod, target=NATIVE)
    out = tvm.runtime.tensor(np.zeros(x.shape, out_dtype))
    built["main"](tvm.runtime.tensor(x), out)
    return out.numpy()


NATIVE = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()})


def const(value, dtype):
    return tirx.const(value.item() if hasattr(value, "item") else value, dtype)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype,zero_point", [("int8", 0), ("int8", -128), ("uint8", 255), ("int16", 5), ("int32", 0)])
@pytest.mark.parametrize("rounding", ["TFLITE", "TFLITE_UPWARD", "UPWARD", "TONEAREST"])
def test_fixed_point(rng, rounding, dtype, zero_point):
    x = data(rng)
    for scale in SCALES:
        fp = numerics.fixed_point(scale)
        expected = reference.requantize_fixed(x, fp, np.int32(zero_point), dtype, rounding)
        actual = evaluate(
            lambda v, fp=fp: tir.requantize_fixed(
                v, const(fp.multiplier, "int32"), const(fp.shift, "int32"), const(zero_point, "int32"), dtype, rounding
            ),
            x,
            dtype,
        )
        np.testing.assert_array_equal(actual, expected, err_msg=f"{rounding} scale {scale}")


def test_tflite_int64_accumulator(rng):
    x = np.concatenate([data(rng).astype(np.int64), rng.integers(-(2**47), 2**47, 4000)])
    for scale in SCALES:
        fp = numerics.fixed_point(scale)
        expected = reference.requantize_fixed(x, fp, np.int32(0), "int16", "TFLITE")
        actual = evaluate(
            lambda v, fp=fp: tir.requantize_fixed(
                v, const(fp.multiplier, "int32"), const(fp.shift, "int32"), const(0, "int32"), "int16", "TFLITE"
            ),
            x,
            "int16",
        )
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("dtype,zero_point", [("int8", 0), ("int8", -128), ("uint8", 255), ("int16", 5), ("int32", 0)])
def test_float32_to_nearest_even(rng, dtype, zero_point):
    x = data(rng)
    for scale in SCALES:
        m = np.float32(scale)
        expected = reference.requantize_float(x, m, np.int32(zero_point), dtype)
        actual = evaluate(
            lambda v, m=m: tir.requantize_float(v, const(m, "float32"), const(zero_point, "int32"), dtype), x, dtype
        )
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("compute_dtype", ["float32", "float64"])
@pytest.mark.parametrize("rounding", ["TFLITE", "UPWARD", "TONEAREST"])
@pytest.mark.parametrize("dtype,zero_point", [("int8", 3), ("uint8", 255), ("int32", 0)])
def test_float_routes(rng, compute_dtype, rounding, dtype, zero_point):
    x = data(rng)
    for scale in SCALES:
        m = np.asarray(scale, compute_dtype)
        expected = reference.requantize_float_relay(x, m, np.int32(zero_point), dtype, rounding)
        actual = evaluate(
            lambda v, m=m: tir.requantize_float_relay(
                v, const(m, compute_dtype), const(zero_point, "int32"), dtype, rounding
            ),
            x,
            dtype,
        )
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule", ["round_half_even", "round_half_away", "round_half_up"])
def test_rounding_of_reals(rng, rule, dtype):
    ties = np.arange(-600, 600) / 2
    near = np.concatenate([np.nextafter(ties, np.inf, dtype=dtype), np.nextafter(ties, -np.inf, dtype=dtype)])
    big = np.array([2.0**23 - 0.5, 2.0**23, 2.0**24 + 1, -(2.0**23) + 0.5, 1e30, -1e30, 0.0, -0.0])
    x = np.concatenate([ties, near, big, rng.standard_normal(1000) * 100]).astype(dtype)
    expected = getattr(reference, rule)(x)
    np.testing.assert_array_equal(evaluate(getattr(tir, rule), x, dtype), expected)


def test_half_away_is_c_round():
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, -0.49999997, 8388607.5], np.float32)
    np.testing.assert_array_equal(
        reference.round_half_away(x), np.array([1, 2, 3, -1, -2, -3, 0, 0, 8388608], np.float32)
    )


def test_fence_stops_contraction(rng):
    a = rng.standard_normal(4096).astype(np.float32)
    scale, offset = np.float32(0.1234567), np.float32(0.7654321)
    actual = evaluate(lambda v: tir.fence(v * const(scale, "float32")) + const(offset, "float32"), a, "float32")
    np.testing.assert_array_equal(actual, a * scale + offset)


def test_fence_keeps_a_sum_of_products_from_contracting(rng):
    """As in qnn.add: LLVM would fuse one of the two products into the sum if it saw through the fence."""
    x = rng.integers(-255, 256, 4096).astype(np.int32)
    m, n = np.float32(0.8333333), np.float32(0.4166667)

    def both(v):
        real = v.astype("float32")
        return tir.fence(real * const(m, "float32")) + tir.fence((real + const(1, "float32")) * const(n, "float32"))

    expected = x.astype(np.float32) * m + (x.astype(np.float32) + np.float32(1)) * n
    source = te.placeholder(x.shape, "int32", "x")
    result = te.compute(x.shape, lambda i: both(source[i]), "y")
    built = tvm.compile(te.create_prim_func([source, result]), target=NATIVE)
    out = tvm.runtime.tensor(np.zeros(x.shape, "float32"))
    built["main"](tvm.runtime.tensor(x), out)
    np.testing.assert_array_equal(out.numpy(), expected)


@pytest.mark.parametrize(
    "rounding,expected",
    [
        ("UPWARD", [0] * 9 + [-1] * 16 + [-2] * 7),
        ("TONEAREST", [0] * 8 + [-1] * 16 + [-2] * 8),
    ],
)
def test_relay_goldens_downscale_16(rounding, expected):
    x = -np.arange(32, dtype=np.int32)
    fixed = reference.requantize_fixed(x, numerics.fixed_point(1 / 16), np.int32(0), "int8", rounding)
    np.testing.assert_array_equal(fixed, expected)
    for dtype in ("float32", "float64"):
        real = reference.requantize_float_relay(x, np.asarray(1 / 16, dtype), np.int32(0), "int8", rounding)
        np.testing.assert_array_equal(real, expected)


def test_fixed_point_of_edges():
    fp = numerics.fixed_point(np.array([0.0, 1.0, 0.5, 0.75, 1 - 2.0**-33, 2.0**-40]))
    assert fp.multiplier.tolist() == [0, 1 << 30, 1 << 30, 3 << 29, 1 << 30, 0]
    assert fp.shift.tolist() == [0, 1, 0, 0, 1, 0]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_multipliers_beyond_the_width_saturate(dtype):
    """No shift may reach the width of its operand."""
    x = np.array([-(2**20), -128, -1, 0, 1, 255] * 8, dtype)
    for real in (2.0**31, 9e20, 1e300):
        fp = numerics.fixed_point(real, dtype)
        assert int(fp.multiplier) == 2**31 - 1
        expected = reference.requantize_fixed(x, fp, np.int32(3), "int8", "TFLITE")
        arguments = [const(value, "int32") for value in (fp.multiplier, fp.shift, 3)]
        found = evaluate(lambda v, a=arguments: tir.requantize_fixed(v, *a, "int8", "TFLITE"), x, "int8")
        np.testing.assert_array_equal(found, expected)


def test_tflite_shifts_by_the_lower_five_bits():
    """A detector of traffic signs has a MUL with an output scale of 1e-35, and a shift of 102."""
    x = np.array([-(2**31), -(2**20), -128, -1, 0, 1, 255, 2**31 - 1] * 8, "int32")
    for shift in (32, 33, 40, 63, 102):
        fp = numerics.fixed_point(0.75 * 2.0**shift, rounding="TFLITE")
        assert (int(fp.multiplier), int(fp.shift)) == (3 << 29, shift % 32)
        expected = reference.requantize_fixed(x, fp, np.int32(3), "int8", "TFLITE")
        arguments = [const(value, "int32") for value in (fp.multiplier, fp.shift, 3)]
        found = evaluate(lambda v, a=arguments: tir.requantize_fixed(v, *a, "int8", "TFLITE"), x, "int8")
        np.testing.assert_array_equal(found, expected)
