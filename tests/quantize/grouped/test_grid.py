"""Grids of groups against plain loops, and that each has less error than the one before it."""

import numpy as np
import pytest

from qnn_ext.errors import QuantizationError
from qnn_ext.numerics import bfloat16
from qnn_ext.op.blockwise import dequantized
from qnn_ext.quantize.grouped import grid
from qnn_ext.quantize.grouped.fitting import fitted, result_error
from qnn_ext.quantize.grouped.grid import GroupFormat, grid_of
from qnn_ext.quantize.learned import with_damping

FORMS = [(2, 8), (4, 8), (4, 5), (8, 100)]  # bits, group size: 20 columns are 3, 4 and 1 groups, two of them not full


def heavy(rng, rows=12, depth=20):
    """Weights with outliers, a row of zeros, one of equal values, and one of positive ones."""
    weight = (rng.standard_t(3, (rows, depth)) * 0.05).astype(np.float32)
    weight[0], weight[1], weight[2] = 0, -0.3, np.abs(weight[2])
    return weight


def group_by_hand(values, bits, symmetric, factor=1.0):
    """Scale, zero point and integers of one group."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if symmetric else (0, (1 << bits) - 1)
    least, greatest = min(values.min(), 0) * factor, max(values.max(), 0) * factor
    span = 2 * max(-least, greatest) if symmetric else greatest - least
    scale = np.float64(np.float32(span / (high - low))) or 1.0
    zero = 0 if symmetric else np.clip(np.rint(low - least / scale), low, high)
    return scale, zero, np.clip(np.rint(values / scale + zero), low, high)


@pytest.mark.parametrize(("bits", "size"), FORMS)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("how", ["max", "mse"])
def test_grid_by_hand(bits, size, symmetric, how, rng):
    weight = heavy(rng).astype(np.float64)
    found = fitted(weight, GroupFormat(bits, size, symmetric), how)
    factors = np.linspace(1, 0.4, 25) if how == "mse" else [1.0]
    for row, values in enumerate(weight):
        for group, start in enumerate(range(0, len(values), size)):
            part = values[start : start + size]
            tried = [group_by_hand(part, bits, symmetric, factor) for factor in factors]
            errors = [np.square(part - (q - zero) * scale).sum() for scale, zero, q in tried]
            scale, zero, q = tried[int(np.argmin(errors))]
            assert found.grid.scale[row, group] == scale and found.grid.zero_point[row, group] == zero
            np.testing.assert_array_equal(found.integers[row, start : start + size], q)


@pytest.mark.parametrize("how", ["mse", "hqq"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("real_zeros", [True, False])
@pytest.mark.parametrize(("bits", "size"), [(2, 32), (4, 64), (4, 128)])
def test_results_are_closer_than_with_the_nearest(how, symmetric, real_zeros, bits, size, rng):
    """On data that nobody has seen: 128 columns with outliers."""
    weight = (rng.standard_t(4, (48, 128)) * 0.02).astype(np.float64)
    data = rng.normal(size=(400, 128))
    form = GroupFormat(bits, size, symmetric, real_zeros=real_zeros)
    plain, better = (np.square(data @ (fitted(weight, form, one).values - weight).T).mean() for one in ("max", how))
    assert better < 0.97 * plain


def test_hqq_lowers_what_it_minimizes_and_never_raises_the_squared_error(rng):
    weight = heavy(rng, 30, 64).astype(np.float64)
    for symmetric in (True, False):
        form = GroupFormat(4, 16, symmetric, real_zeros=True)
        plain, found = (np.abs(fitted(weight, form, how).values - weight) for how in ("max", "hqq"))
        assert (found**0.7).sum() < 0.98 * (plain**0.7).sum()
        by_group = [np.square(one).reshape(30, 4, 16).sum(axis=2) for one in (found, plain)]
        assert (by_group[0] <= by_group[1] * (1 + 1e-6)).all()


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("scale_dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("how", ["max", "mse", "hqq"])
def test_stored_tensors_stand_for_the_same_values(symmetric, scale_dtype, how, rng):
    form = GroupFormat(4, 8, symmetric, scale_dtype, real_zeros=True)
    found = fitted(heavy(rng), form, how)
    weight, scale, zero_point = found.grid.stored(found.integers)
    assert str(scale.dtype) == {"bfloat16": bfloat16.BITS}.get(scale_dtype, scale_dtype)
    assert weight.dtype == np.uint8 and weight.shape == (12, 10)
    values = dequantized(weight, scale, zero_point, depth=20, weight_dtype=form.dtype, group_size=8)
    np.testing.assert_allclose(values, found.values, rtol=1e-6, atol=1e-9)


def test_a_scale_too_small_for_float16_leaves_zeros():
    form = GroupFormat(4, 8, scale_dtype="float16")
    found = fitted(np.full((1, 8), 1e-9), form)
    assert not found.values.any()


def test_a_large_weight_is_done_in_parts(monkeypatch, rng):
    weight, form = heavy(rng), GroupFormat(4, 8, False, real_zeros=True)
    whole = {how: fitted(weight, form, how) for how in ("max", "mse", "hqq")}
    monkeypatch.setattr(grid, "_MOST_AT_ONCE", 50)
    for how, expected in whole.items():
        np.testing.assert_array_equal(fitted(weight, form, how).values, expected.values)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite(value):
    with pytest.raises(QuantizationError, match="NaN or infinite"):
        grid_of(np.full((2, 8), value), GroupFormat(4, 8))


def test_a_scale_too_large_for_float16():
    with pytest.raises(QuantizationError, match=r"scale of .* does not fit float16: choose other group_scales"):
        grid_of(np.full((2, 8), 1e9), GroupFormat(4, 8, scale_dtype="float16"))


# ---- GPTQ --------------------------------------------------------------------------------------------------------


def gptq_by_hand(weight, moment, grid):
    """Frantar et al. 2023, algorithm 1 without blocks: the columns in order of decreasing H_jj, row by row."""
    order = np.argsort(-np.diagonal(moment), kind="stable")
    inverse = np.linalg.inv(moment[np.ix_(order, order)])
    upper = np.linalg.cholesky(inverse).T
    scale, zero = (grid.by_column(one) for one in (grid.scale, grid.zero_point))
    integers = np.zeros_like(weight)
    for row in range(len(weight)):
        left = weight[row, order].copy()
        for j, column in enumerate(order):
            unit, offset = scale[row, column], zero[row, column]
            q = np.clip(np.rint(left[j] / unit + offset), *grid.form.limits)
            error = (left[j] - (q - offset) * unit) / upper[j, j]
            left[j:] -= error * upper[j, j:]
            integers[row, column] = q
    return integers


def correlated(rng, count, mixing):
    return rng.normal(size=(count, len(mixing))) @ mixing + 0.2 * rng.normal(size=(count, mixing.shape[1]))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "size"), [(4, 16), (2, 30), (8, 96)])
def test_gptq(symmetric, bits, size, rng):
    """The integers of the paper's algorithm, or the nearest, row by row the better; on data of the same kind that they
    were not made with, the error is well below that of the nearest."""
    weight, mixing = rng.normal(size=(20, 96)), rng.normal(size=(12, 96))
    data = correlated(rng, 600, mixing)
    moment, form = data.T @ data, GroupFormat(bits, size, symmetric)
    nearest, found = fitted(weight, form), fitted(weight, form, "max", "gptq", moment)
    damped = with_damping(moment[None])[0]
    expected = gptq_by_hand(weight, damped, nearest.grid)
    for row in range(len(weight)):
        errors = [
            result_error(weight[row], nearest.grid.values(one)[row], damped) for one in (nearest.integers, expected)
        ]
        kept = (nearest.integers, expected)[int(np.argmin(errors))][row]
        assert np.count_nonzero(found.integers[row] != kept) <= 1, "a sum in another order decides a near tie"
    unseen = correlated(rng, 400, mixing)
    errors = [np.square(unseen @ (one.values - weight).T).sum() for one in (nearest, found)]
    assert errors[1] < 0.5 * errors[0]


def test_gptq_without_data_is_the_nearest(rng):
    weight, form = rng.normal(size=(4, 16)), GroupFormat(4, 8)
    np.testing.assert_array_equal(fitted(weight, form, "max", "gptq").integers, fitted(weight, form).integers)
