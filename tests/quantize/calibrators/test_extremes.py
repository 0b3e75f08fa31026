"""Ranges extrapolated from the extremes of few samples to those of many."""

import numpy as np
import pytest

from qnn_ext.quantize.calibrators import Auto, Settings, make_calibrator
from qnn_ext.quantize.calibrators.extremes import COVERED, extrapolated
from qnn_ext.quantize.ranges import Range


def ends(*batches):
    return np.array(batches, np.float64)


def test_by_hand():
    """Of 5, 6, 7, 8: λ₂ = (−3·5 − 6 + 7 + 3·8) / 12 = 10/12; from 4 samples to 64 the logarithm to base 2 is 4."""
    batches = ends((-8, 6), (-5, 8), (-7, 5), (-6, 7))
    for batch_size, room in ((1, 10 / 12 * 4), (4, 10 / 12 * 2)):
        found = extrapolated(batches, batch_size)
        assert (found.low, found.high) == (pytest.approx(-8 - room), pytest.approx(8 + room))


def test_no_range_more_than_doubles():
    found = extrapolated(ends((-1, 1), (-1, 4), (-9, 1)))
    assert (found.low, found.high) == (-18, 8)


@pytest.mark.parametrize(
    "batches, batch_size",
    [
        ([(0, 6), (0, 6), (0, 6)], 1),
        ([(-3, 5)], 1),
        ([(-1 - i % 7, i % 5) for i in range(COVERED)], 1),
        ([(-3, 5), (-1, 2)], COVERED // 2),
    ],
    ids=["equal ends", "one batch", "many samples", "large batches"],
)
def test_no_room_where_none_is_known_to_be_needed(batches, batch_size):
    found = extrapolated(ends(*batches), batch_size)
    assert (found.low, found.high) == (min(low for low, _ in batches), max(high for _, high in batches))


def test_an_end_on_the_other_side_of_zero_stays():
    assert extrapolated(ends((2, 5), (1, 3))).low == 1
    assert extrapolated(ends((-5, -2), (-3, -1))).high == -1


@pytest.mark.parametrize("draw", ["normal", "exponential", "laplace"])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_half_of_all_data_sets_fit(rng, draw, batch_size):
    """The largest of COVERED samples has about the distribution of the extrapolated end, and is larger in one of two
    cases; less often for normal values, whose tails fall faster. The range of 32 samples holds it in one of three."""
    fits = {"extrapolated": 0, "minmax": 0}
    for _ in range(400):
        samples = getattr(rng, draw)(size=(32 + COVERED, 100))
        largest = samples.max(axis=1)
        seen = largest[:32].reshape(-1, batch_size).max(axis=1)
        new = largest[32:].max()
        fits["extrapolated"] += extrapolated(np.stack([-seen, seen], axis=1), batch_size).high >= new
        fits["minmax"] += seen.max() >= new
    assert 0.4 < fits["extrapolated"] / 400 < 0.75
    assert fits["minmax"] / 400 < 0.42


@pytest.mark.parametrize("count", [5, COVERED - 1, COVERED, COVERED + 100])
def test_parts_in_any_order_make_the_whole(rng, count):
    arrays = rng.laplace(size=(count, 20)).astype(np.float32)
    whole = make_calibrator("extrapolated")
    for index, array in enumerate(arrays):
        whole.collect("site", array, index)
    expected = whole.threshold("site")
    parts = [Auto(Settings()) for _ in range(3)]
    for index in rng.permutation(count):
        parts[int(index) % 3].collect("site", arrays[index], int(index))
    for other in (parts[2], parts[1]):
        parts[0].merge(other)
    assert parts[0].by("extrapolated", None, "site") == expected
    assert parts[0].by("minmax", None, "site") == Range(arrays.min(), arrays.max(), "minmax")
    assert (expected.high > arrays.max()) == (count < COVERED)
    assert not parts[0].statistics["site"].extremes.batches or count < COVERED
