"""The divergence of a clipped and merged distribution: the recipe, and its fast form."""

import numpy as np
import pytest
from scipy.special import rel_entr

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
    """Outliers go to the last bin of P and not into Q; both are normalized."""
    p = np.array([1, 0, 2, 3, 5, 3, 1, 7 + 10]) / 32
    q = np.array([2, 0, 2, 2, 4, 4, 4, 4]) / 22
    counts = np.array([1, 0, 2, 3, 5, 3, 1, 7, 4, 6])
    assert reference_divergence(counts, 0, 8, 2) == pytest.approx(rel_entr(p, q).sum(), rel=1e-12)


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
