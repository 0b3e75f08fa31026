"""Products of 16-bit data, whose sums have 64 bits: computed in 32 bits as far as these hold all sums of weights."""

from itertools import product

import numpy as np
import pytest

from qnn_ext import op as qnn
from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from qnn_ext.passes import canonicalize
from qnn_ext.passes.rewrite import bindings_of, op_name

from .modules import compiled, module

LOWEST, HIGHEST = -(1 << 15), (1 << 15) - 1
FITS = 65535  # Σ |w| · 2¹⁵ < 2³¹


def sums_of(mod):
    """The dtypes of the sums that kernels compute."""
    calls = [binding.value for binding in bindings_of(canonicalize(mod)["main"])]
    return [str(call.attrs["out_dtype"]) for call in calls if op_name(call).endswith("_accumulate")]


def dense(weight, zero_point=0):
    def body(emit, x):
        return emit(qnn.dense(x, constant(weight), zero_point, 0, 1.0, 1.0, "int64"))

    return module([((3, weight.shape[1]), "int16")], body)


def conv2d(weight, zero_point=0, **geometry):
    def body(emit, x):
        args = (x, constant(weight), zero_point, 0, 1.0, 1.0)
        return emit(qnn.conv2d(*args, out_dtype="int64", **geometry))

    return module([((2, 5, 6, weight.shape[3] * geometry.get("groups", 1)), "int16")], body)


def check(mod, rng):
    """Kernels for several CPUs equal the interpreter on random data and on both ends of the range."""
    types = [([int(dim) for dim in param.ty.shape], np.iinfo(str(param.ty.dtype))) for param in mod["main"].params]
    samples = [[rng.integers(ends.min, ends.max, shape, endpoint=True) for shape, ends in types]]
    for extremes in product(*((ends.min, ends.max) for _, ends in types)):
        samples.append([np.full(shape, value) for (shape, _), value in zip(types, extremes, strict=True)])
    inputs = [[values.astype(ends.dtype) for values, (_, ends) in zip(one, types, strict=True)] for one in samples]
    for target in ("x86-64", "haswell", "cascadelake"):
        run = compiled(mod, target)
        for sample in inputs:
            np.testing.assert_array_equal(run(sample)[0], interpret(mod, sample)[0])


def weights_with_sum(rng, outputs, depth, total):
    """int8 weights of random sign whose magnitudes add up to `total` in the first output channel, and to less in the
    others."""
    magnitudes = np.full(depth, total // depth)
    magnitudes[: total % depth] += 1
    w = np.zeros((outputs, depth), np.int64)
    w[0] = rng.permutation(magnitudes) * rng.choice([-1, 1], depth)
    w[1:] = rng.integers(-20, 20, (outputs - 1, depth))
    assert np.abs(w[0]).sum() == total
    return w.astype(np.int8)


@pytest.mark.parametrize("total,expected", [(FITS, ["int32"]), (FITS + 1, ["int32"] * 2), (3 * FITS, ["int32"] * 4)])
def test_dense(rng, total, expected):
    mod = dense(weights_with_sum(rng, 5, 1700, total))
    assert sums_of(mod) == expected
    check(mod, rng)


def test_all_weights_of_one_sign(rng):
    """The most extreme sums: every product at its end."""
    for sign in (-1, 1):
        w = (sign * np.abs(weights_with_sum(rng, 1, 700, FITS).astype(np.int64))).astype(np.int8)
        mod = dense(w, zero_point=-7)
        assert sums_of(mod) == ["int32"]
        check(mod, rng)


def test_pairs_of_the_lowest_weights(rng):
    """−2¹⁵ · −2¹⁵ twice is 2³¹: an instruction that adds pairs in 32 bits would wrap, so bytes are multiplied."""
    mod = dense(np.full((4, 2), LOWEST, np.int16))
    assert sums_of(mod) == ["int32"] * 2
    check(mod, rng)


@pytest.mark.parametrize("depth,parts", [(70, 1), (511, 1), (512, 2)])
@pytest.mark.parametrize("value", [LOWEST, HIGHEST, None])
def test_weights_of_16_bits(rng, depth, parts, value):
    """Low and high bytes on their own, both at most 128: one sum of them has room for 511 products at their ends."""
    extreme = rng.choice([LOWEST, 128, 32640, HIGHEST], (5, depth))  # high bytes of −128 and 128, low ones of −128
    mod = dense((extreme if value is None else np.full((5, depth), value)).astype(np.int16), zero_point=-3)
    assert set(sums_of(mod)) == {"int32"} and len(sums_of(mod)) <= 2 * parts
    check(mod, rng)


def test_convolution_of_16_bit_weights(rng):
    for shape, groups in (((6, 3, 3, 12), 1), ((8, 3, 2, 4), 2), ((9, 3, 3, 1), 9)):
        weight = rng.integers(LOWEST, HIGHEST, shape, endpoint=True).astype(np.int16)
        mod = conv2d(weight, zero_point=5, groups=groups, padding=(1, 0, 2, 1))
        assert sums_of(mod) == ["int32"] * 2
        check(mod, rng)


def both_computed(x, y, zero_points=(0, 0)):
    def body(emit, x, y):
        return emit(qnn.batch_matmul(x, y, *zero_points, 1.0, 1.0, "int64"))

    return module([x, y], body)


@pytest.mark.parametrize(
    "x,y,zero_points,expected",
    [
        ((2, 9, 60), (2, 12, 60), (0, 0), ["int32"] * 2),
        ((2, 8, 64), (2, 8, 64), (-7, 11), ["int32"] * 2),
        ((2, 11, 512), (1, 8, 512), (HIGHEST, LOWEST), ["int32"] * 4),
        ((1, 8, 511), (1, 9, 511), (0, 0), ["int32"] * 2),
        ((2, 7, 60), (2, 12, 60), (0, 0), ["int64"]),  # few rows
        ((1, 9, 4200), (1, 9, 4200), (0, 3), ["int64"]),  # too many parts
    ],
)
def test_two_computed_operands(rng, x, y, zero_points, expected):
    mod = both_computed((x, "int16"), (y, "int16"), zero_points)
    assert sums_of(mod) == expected
    check(mod, rng)


def test_a_computed_operand_of_8_bits(rng):
    for types in (("int16", "int8"), ("int8", "int16")):
        mod = both_computed(((2, 9, 64), types[0]), ((2, 10, 64), types[1]), (5, -3))
        assert sums_of(mod) == ["int32"]
        check(mod, rng)


def test_computed_weights(rng):
    def body(emit, x, weight):
        return emit(qnn.conv2d(x, weight, 0, 0, 1.0, 1.0, out_dtype="int64", padding=(1, 1, 1, 1)))

    mod = module([((1, 5, 6, 20), "int16"), ((9, 3, 3, 20), "int16")], body)
    assert sums_of(mod) == ["int32"] * 2
    check(mod, rng)


@pytest.mark.parametrize(
    "shape,geometry,expected",
    [
        ((9, 3, 3, 24), {"padding": (1, 1, 1, 1)}, ["int32"]),
        ((9, 3, 3, 1), {"groups": 9}, ["int32"]),
        ((8, 3, 2, 4), {"groups": 2, "strides": (2, 1), "padding": (0, 1, 2, 0)}, ["int32"]),
        ((6, 3, 3, 130), {"padding": (1, 0, 1, 1), "dilation": (1, 2)}, ["int32"] * 3),
        ((4, 5, 5, 40), {"groups": 2, "padding": (2, 2, 2, 2)}, ["int32"] * 6),
    ],
)
def test_conv2d(rng, shape, geometry, expected):
    """Whole, depthwise and grouped convolutions; weights near the ends take several sums, in each
    group of its own."""
    wide = len(expected) > 1
    magnitudes = rng.integers(100, 127, shape, endpoint=True) if wide else rng.integers(0, 60, shape)
    mod = conv2d((magnitudes * rng.choice([-1, 1], shape)).astype(np.int8), zero_point=3, **geometry)
    assert sums_of(mod) == expected
    check(mod, rng)


def test_too_many_parts_stay_int64(rng):
    mod = dense(np.full((2, 5000), 127, np.int8))
    assert sums_of(mod) == ["int64"]
    check(mod, rng)
