"""Histogram: exact counts in one pass, the same whatever the order of the data and however they were shared out."""

import numpy as np
import pytest

from qnn_ext.errors import QuantizationError
from qnn_ext.quantize.histogram import Histogram


def histogram_of(*arrays, bins=128):
    found = Histogram(bins)
    for array in arrays:
        found.add(array)
    return found


def same(one, two):
    figures = ("half", "exponent", "zeros", "total", "low", "high")
    return np.array_equal(one.counts, two.counts) and all(getattr(one, f) == getattr(two, f) for f in figures)


@pytest.fixture
def values(rng):
    """Heavy tails, so that the range grows many times; zeros; values on the edges of bins; some arrays are large."""
    parts = [
        rng.standard_t(1.5, size).astype(np.float32) * scale for size, scale in ((7, 1e-3), (90_000, 1), (33, 500))
    ]
    parts += [np.zeros(11, np.float32), np.float32([1, -1, 2, -2, 0.5, -0.5, 1024, -1024])]
    return np.concatenate(parts)


def test_counts_are_those_of_numpy_on_the_same_edges(values):
    found = histogram_of(*np.array_split(values, 9), bins=300)
    edges = np.arange(-found.half, found.half + 1) * found.width
    counts, _ = np.histogram(values.astype(np.float64), edges)
    assert np.array_equal(found.counts, counts)
    assert (found.total, found.zeros) == (values.size, 11)
    assert (found.low, found.high) == (values.min(), values.max())


def test_grid_is_as_fine_as_asked_for_and_holds_all_values(values):
    found = histogram_of(values, bins=300)
    largest = np.abs(values).max()
    assert found.width * 300 <= largest < found.width * found.half
    assert np.frexp(found.width)[0] == 0.5  # a power of two
    assert found.half == 1024


@pytest.mark.parametrize("parts", [2, 5, 64])
def test_order_and_sharing_out_do_not_matter(values, rng, parts):
    whole = histogram_of(values)
    assert same(histogram_of(*np.array_split(rng.permutation(values), parts)), whole)
    merged = Histogram(128)
    for part in np.array_split(values, parts):
        merged.merge(histogram_of(part))
    assert same(merged, whole)
    merged.merge(Histogram(128))
    assert same(merged, whole)


def test_compiled_code_counts_as_numpy_does(values, monkeypatch):
    values = np.concatenate([values, np.zeros(5, np.float32)])  # no multiple of what is counted at a time
    values.flags.writeable = False
    compiled = histogram_of(values[1:])  # nor aligned
    monkeypatch.setattr("qnn_ext.quantize.histogram._WORTH_COMPILING", np.inf)
    assert same(compiled, histogram_of(values[1:]))


def test_more_bins_than_a_block_has_elements(values):
    found = histogram_of(*np.array_split(values, 3), bins=50_000)
    edges = np.arange(-found.half, found.half + 1) * found.width
    assert np.array_equal(found.counts, np.histogram(values.astype(np.float64), edges)[0])


def test_histograms_of_different_bins_do_not_merge():
    with pytest.raises(ValueError, match="256 and 512 bins"):
        Histogram(256).merge(Histogram(128))


def test_zeros_only():
    found = histogram_of(np.zeros((3, 4), np.float32))
    assert (found.exponent, found.width, found.total, found.zeros) == (None, 0.0, 12, 12)
    assert found.quantile(0.9) == found.magnitude_quantile(0.9) == 0
    found.add(np.float32([0.75]))
    assert same(found, histogram_of(np.float32([0.75]), np.zeros(12, np.float32)))
    assert found.counts[found.half] == 12


@pytest.mark.parametrize("value", [1e-42, 1e-38, 3e38])
def test_extreme_magnitudes(value):
    found = histogram_of(np.float32([value, 0]))
    assert found.counts.sum() == 2
    assert found.high == np.float32(value)


def test_empty_arrays_change_nothing():
    assert histogram_of(np.zeros((0, 3), np.float32)).total == 0


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_not_finite(wrong):
    with pytest.raises(QuantizationError, match="2 of 4 values are NaN or infinite"):
        histogram_of(np.float32([1, wrong, 2, wrong]))


def test_magnitudes_fold_the_negative_side(values):
    found = histogram_of(values)
    edges = np.arange(found.half + 1) * found.width
    inner = values[~np.isin(np.abs(values), edges)]  # edges belong to the bin above them on both sides
    apart = histogram_of(inner, np.float32([found.low, found.high]))
    expected, _ = np.histogram(np.abs(np.append(inner, [found.low, found.high])).astype(np.float64), edges)
    assert np.array_equal(apart.magnitudes(), expected)
    assert found.magnitudes(zeros=False)[0] == found.magnitudes()[0] - 11
    assert found.signed(zeros=False)[found.half] == found.counts[found.half] - 11


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.5, 0.9999, 1.0])
def test_quantiles_are_exact_to_a_bin(values, share):
    found = histogram_of(values, bins=4096)
    assert abs(found.quantile(share) - np.quantile(values, share, method="inverted_cdf")) <= found.width
    expected = np.quantile(np.abs(values), share, method="inverted_cdf")
    assert abs(found.magnitude_quantile(share) - expected) <= found.width
