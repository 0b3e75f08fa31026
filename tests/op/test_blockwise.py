"""Block-wise quantized weights: known values, and what the type rules refuse."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext import ShapeError
from qnn_ext import op as qnn
from qnn_ext.numerics import mlas_blocks
from qnn_ext.numerics.packed import pack
from qnn_ext.op import OPS
from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from tests.compiling.program.small import small_module

from .helpers import var

WEIGHT = pack(np.array([[1, -2, 7, -8, 3], [0, 1, 2, 3, 4]]), "int4")
SCALE = np.float32([[0.5, 0.25, 2], [1, 2, 4]])
ZEROS = pack(np.array([[1, 0, -1], [2, 2, 2]]), "int4")
REAL = np.float32([[0, -1.5, 1.75, -2, 8], [-2, -1, 0, 2, 8]])
GROUPS = {"weight_dtype": "int4", "group_size": 2}


def test_dequantize():
    reference = OPS["blockwise_dequantize"].reference
    np.testing.assert_array_equal(reference(WEIGHT, SCALE, ZEROS, depth=5, **GROUPS), REAL)
    floats = np.float16([[1, 0, -1], [2, 2, 2]])
    np.testing.assert_array_equal(reference(WEIGHT, SCALE.astype(np.float16), floats, depth=5, **GROUPS), REAL)
    bits = (SCALE.view(np.uint32) >> 16).astype(np.uint16)
    np.testing.assert_array_equal(reference(WEIGHT, bits, ZEROS, depth=5, **GROUPS), REAL)


def test_dense(rng):
    data = rng.integers(-4, 5, (3, 5)).astype(np.float32)
    result = OPS["blockwise_dense"].reference(data, WEIGHT, SCALE, ZEROS, **GROUPS)
    np.testing.assert_array_equal(result, data @ REAL.T)


def test_dense_int8(rng):
    data = rng.integers(-128, 128, (3, 5)).astype(np.int8)
    reference = OPS["blockwise_dense_int8"].reference
    by_row, by_group = np.float32([[0.5], [0.25], [2]]), np.float32([[0.5, 1, 2]] * 3)
    result = reference(data, by_row, WEIGHT, SCALE, ZEROS, **GROUPS)
    np.testing.assert_array_equal(result, (data * by_row) @ REAL.T)
    result = reference(data, by_group, WEIGHT, SCALE, ZEROS, **GROUPS)
    np.testing.assert_array_equal(result, (data * np.repeat(by_group, 2, 1)[:, :5]) @ REAL.T)


def test_sums_are_rounded_group_by_group():
    """2²⁴ + 1 + 1: each addition of 1 is lost, as float32 in order has it."""
    weight, scale = pack(np.ones((1, 3), int), "int8"), np.float32([[1 << 24, 1, 1]])
    data, unit = np.ones((1, 3), np.int8), np.ones((1, 3), np.float32)
    groups = {"weight_dtype": "int8", "group_size": 1}
    result = OPS["blockwise_dense_int8"].reference(data, unit, weight, scale, np.int32(0), **groups)
    assert result == 1 << 24


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", mlas_blocks.BLOCKS)
def test_lanes(block, bits, rng):
    """Every column is in one place of one lane, whose sums are those of `blockwise_dense_int8` but for rounding."""
    depth, dtype = 2 * block + 400, f"uint{bits}"
    blocks = -(-depth // block)
    places = np.concatenate([part.places.ravel() for part in mlas_blocks.lanes_of(depth, block)])
    np.testing.assert_array_equal(np.sort(places), np.arange(blocks * block))
    packed, zeros = (pack(rng.integers(0, 1 << bits, (6, size)), dtype) for size in (depth, blocks))
    scale, units = rng.random((6, blocks)).astype(np.float32), rng.random((3, blocks)).astype(np.float32)
    data, bias = rng.integers(-127, 128, (3, depth)).astype(np.int8), rng.random(6).astype(np.float32)
    groups = {"weight_dtype": dtype, "group_size": block}
    result = OPS["blockwise_dense_lanes"].reference(data, units, packed, scale, zeros, bias, **groups)
    expected = OPS["blockwise_dense_int8"].reference(data, units, packed, scale, zeros, **groups) + bias
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("rows", [3, 64, 65])
def test_lanes_compiled(rows, rng):
    """From 64 rows on, the schedule has other kernels share loops over rows; what is in front of this one may not."""
    depth, block = 256, 32
    packed, zeros = (pack(rng.integers(0, 16, (24, size)), "uint4") for size in (depth, depth // block))
    data, units = rng.integers(-127, 128, (rows, depth)).astype(np.int8), rng.random((rows, 8)).astype(np.float32)
    known = [constant(one) for one in (packed, rng.random((24, 8)).astype(np.float32), zeros, np.zeros(24, np.float32))]
    groups = {"weight_dtype": "uint4", "group_size": block}
    module = small_module(
        lambda builder, params: [qnn.blockwise_dense_lanes(*params, *known, **groups)],
        [(data.shape, "int8"), (units.shape, "float32")],
    )
    expected = interpret(module.ir, [data, units])[0]
    np.testing.assert_array_equal(qnn_ext.build(module, num_threads=1)(data, units), expected)


def test_lanes_of_other_groups():
    operands = {"data": ((4, 48), "int8"), "data_scale": ((4, 2), "float32"), "weight": ((2, 24), "uint8")}
    operands |= {"scale": ((2, 2), "float32"), "zero_point": ((), "int32"), "bias": ((2,), "float32")}

    def product(dtype="uint4", group=32, **changes):
        return qnn.blockwise_dense_lanes(
            *(var(key, *value) for key, value in (operands | changes).items()), dtype, group
        )

    product()
    with pytest.raises(ShapeError, match="must be uint4 or uint8 in groups of 16, 32, 64, 128, 256, found int4"):
        product("int4")
    with pytest.raises(ShapeError, match="found uint4 in groups of 24"):
        product(group=24)
    for name, shape, wanted in (("data_scale", (4, 1), r"\(4, 2\)"), ("bias", (3,), r"\(2,\)")):
        with pytest.raises(ShapeError, match=f"{name} must have shape {wanted}"):
            product(**{name: (shape, "float32")})


BAD = {
    "truncated": ({"weight": ((2, 2), "uint8")}, "weight must have 3 bytes a row for 5 values of int4"),
    "not packed": ({"weight": ((2, 3), "int8")}, "weight must be uint8"),
    "scales": ({"scale": ((2, 2), "float32")}, r"scale must have shape \(2, 3\) for 2 rows of 5 values in groups of 2"),
    "zero points": ({"zero_point": ((2, 3), "uint8")}, r"zero_point of uint8 must have shape \(2, 2\)"),
    "dtype": ({"weight_dtype": "int3"}, "weight_dtype must be one of"),
    "no group": ({"group_size": 0}, "group_size must be between 1 and 65536"),
    "long group": ({"group_size": 1 << 17}, "group_size must be between 1 and 65536"),
}


@pytest.mark.parametrize("name", BAD)
def test_refused(name):
    changes, message = BAD[name]
    operands = {"weight": ((2, 3), "uint8"), "scale": ((2, 3), "float32"), "zero_point": ((2, 2), "uint8"), **changes}
    attributes = {key: operands.pop(key, default) for key, default in GROUPS.items()}
    with pytest.raises(ShapeError, match=message):
        qnn.blockwise_dense(
            var("x", (4, 5), "float32"), *(var(key, *value) for key, value in operands.items()), **attributes
        )


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_values_that_are_not_finite(value):
    scale = SCALE.copy()
    scale[1, 2] = value
    with pytest.raises(ShapeError, match="scale must be finite"):
        qnn.blockwise_dequantize(WEIGHT, scale, ZEROS, 5, "int4", 2)
    with pytest.raises(ShapeError, match="zero_point must be finite"):
        qnn.blockwise_dequantize(WEIGHT, SCALE, scale, 5, "int4", 2)


def test_scales_of_activations():
    parts = (var("w", (2, 3), "uint8"), var("s", (2, 3), "float32"), 0)
    with pytest.raises(ShapeError, match=r"data_scale must have shape \(4, 1\) or, with one for each group, \(4, 3\)"):
        qnn.blockwise_dense_int8(var("x", (4, 5), "int8"), var("a", (4, 2), "float32"), *parts, "int4", 2)
