"""The divergence of a clipped and merged distribution: the recipe, and its fast form."""

import numpy as np
import pytest
from scipy.special import kl_div, rel_entr

from qnn_ext.quantize.calibrators.divergence import divergences, merge_to_levels, reference_divergence


def test_worked_example():
    """Of the talk that introduced the recipe (Migacz, GTC 2017)."""
    assert merge_to_levels(np.array([1, 0, 2, 3, 5, 3, 1, 7]), 2).tolist() == [2, 0, 2, 2, 4, 4, 4, 4]


def test_merging_to_as_many_levels_as_bins_changes_nothing(rng):
    counts = rng.integers(0, 9, 128)
    assert np.array_equal(merge_to_levels(counts, 128), counts)


def test_levels_hold_nearly_equally_many_bins():
    assert merge_to_levels(np.arange(1, 8), 3).tolist() == [1.5, 1.5, 3.5, 3.5, 6, 6, 6]


def test_recipe():
    """Outliers go to the last bin of P and not into Q, which misses them."""
    p = np.array([1, 0, 2, 3, 5, 3, 1, 7 + 10]) / 32
    q = np.array([2, 0, 2, 2, 4, 4, 4, 4]) / 32
    counts = np.array([1, 0, 2, 3, 5, 3, 1, 7, 4, 6])
    assert reference_divergence(counts, 0, 8, 2) == pytest.approx(kl_div(p, q).sum(), rel=1e-12)


def test_little_that_is_clipped_costs_what_the_normalized_recipe_says(rng):
    counts = rng.poisson(1000 * np.exp(-np.arange(200) / 20))
    inside = merge_to_levels(counts[:150], 16)
    p = np.append(counts[:149], counts[149:].sum()) / counts.sum()
    assert 0 < counts[150:].sum() < 1e-3 * counts.sum()
    normalized = rel_entr(p, inside / inside.sum()).sum()
    assert reference_divergence(counts, 0, 150, 16) == pytest.approx(normalized, rel=1e-4)


def test_a_window_of_a_single_value_is_the_worst():
    """Normalized, both distributions would be that value."""
    counts = np.zeros(400, np.int64)
    counts[150] = 1
    counts[200:] = 50
    assert reference_divergence(counts, 0, 151, 128) > 5
    stops = np.arange(128, 401)
    assert stops[np.argmin(divergences(counts, np.zeros_like(stops), stops, 128))] > 390


def test_values_clipped_into_an_empty_bin_are_lost():
    counts = np.array([4, 4, 4, 0, 1])
    assert reference_divergence(counts, 0, 4, 2) == np.inf
    assert divergences(counts, np.array([0]), np.array([4]), 2)[0] == np.inf
    assert np.isfinite(reference_divergence(counts, 0, 3, 2))


@pytest.mark.parametrize("levels", [2, 16, 128])
def test_fast_form_equals_the_recipe(rng, levels):
    counts = rng.poisson(60 * np.exp(-np.abs(np.arange(-200, 260)) / 40))
    starts = rng.integers(0, 150, 80)
    stops = starts + levels + rng.integers(0, 100, 80)
    expected = [reference_divergence(counts, a, b, levels) for a, b in zip(starts, stops, strict=True)]
    found = divergences(counts, starts, stops, levels)
    assert np.isinf(expected).any() and np.isfinite(expected).any()
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_fast_form_in_several_pieces(rng, monkeypatch):
    counts = rng.integers(0, 50, 300)
    stops = np.arange(16, 301)
    whole = divergences(counts, np.zeros_like(stops), stops, 16)
    monkeypatch.setattr("qnn_ext.quantize.calibrators.divergence._MOST_AT_ONCE", 100)
    assert np.array_equal(divergences(counts, np.zeros_like(stops), stops, 16), whole)


def test_nothing_inside():
    counts = np.array([0, 0, 0, 0, 5])
    assert divergences(counts, np.array([0]), np.array([4]), 2)[0] == np.inf
    assert reference_divergence(counts, 0, 4, 2) == np.inf
