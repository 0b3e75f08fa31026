"""Ranges of weights: largest, next power of two, least squared error; per tensor and per channel."""

import numpy as np
import pytest

from qnn_ext.errors import QuantizationError
from qnn_ext.quantize.ranges import Range, integer_range, qparams_of
from qnn_ext.quantize.weights import weight_range


@pytest.fixture
def weight(rng):
    """(8, 5, 3, 3): channels of different size, one with an outlier, one of zeros."""
    value = rng.standard_normal((8, 5, 3, 3)).astype(np.float32) * np.float32([1, 2, 3, 4, 5, 6, 7, 8]).reshape(
        8, 1, 1, 1
    )
    value[2, 0, 0, 0] = 90
    value[5] = 0
    return value


def squared_errors(weight, found, bits, power_of_two=False):
    """Per output channel."""
    scale = np.asarray(qparams_of(found, "int8", bits, True, power_of_two, axis=0).scale).reshape(-1, 1)
    rows = weight.reshape(weight.shape[0], -1)
    low, high = integer_range("int8", bits, True)
    return np.square(rows - np.clip(np.rint(rows / scale), low, high) * scale).sum(1)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_max(weight, axis):
    others = None if axis is None else tuple(i for i in range(4) if i != axis % 4)
    largest = np.abs(weight).max(axis=others).astype(np.float64)
    assert weight_range(weight, axis) == Range(-largest, largest, "max")


def test_power2():
    value = np.float32([[0.3, -0.1], [-4.0, 1], [4.1, 0], [0, 0]])
    threshold = np.array([0.5, 4, 8, 0])
    assert weight_range(value, 0, "power2") == Range(-threshold, threshold, "power2")
    assert weight_range(value, None, "power2") == Range(-8, 8, "power2")


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("power_of_two", [False, True])
def test_mse_is_the_best_of_the_thresholds_tried(weight, bits, power_of_two):
    found = weight_range(weight, 0, "mse", bits, power_of_two)
    errors = squared_errors(weight, found, bits, power_of_two)
    largest = np.abs(weight).reshape(8, -1).max(1).astype(np.float64)
    for share in (1.0, 0.98, 0.8, 0.5, 0.3, 0.2):
        others = squared_errors(weight, Range(-largest * share, largest * share), bits, power_of_two)
        assert (errors <= others * (1 + 1e-6)).all()
    assert found.high[5] == 0
    if not power_of_two:
        assert (found.high[2] < largest[2]) == (bits == 4)  # with 4 bits the outlier is not worth its steps


def test_mse_in_pieces_and_per_tensor(weight, monkeypatch):
    whole = weight_range(weight, 0, "mse", 4)
    monkeypatch.setattr("qnn_ext.quantize.weights._MOST_AT_ONCE", 100)
    assert weight_range(weight, 0, "mse", 4) == whole
    assert weight_range(weight[1:2], None, "mse", 4).high == whole.high[1]


@pytest.mark.parametrize("mode", ["max", "power2", "mse"])
def test_zeros(mode):
    assert weight_range(np.zeros((2, 3), np.float32), 0, mode) == Range(np.zeros(2), np.zeros(2), mode)


def test_wrong_weights_are_named():
    with pytest.raises(QuantizationError, match=r"site 'conv1.weight': 2 of 4 weights are NaN or infinite"):
        weight_range(np.float32([1, np.nan, 2, np.inf]), site="conv1.weight")
    with pytest.raises(QuantizationError, match=r"site 'conv1.weight': the weight is empty"):
        weight_range(np.zeros((0, 3), np.float32), 0, site="conv1.weight")
    with pytest.raises(QuantizationError, match="'max', 'power2', 'mse', found 'median'"):
        weight_range(np.ones(3, np.float32), mode="median")
