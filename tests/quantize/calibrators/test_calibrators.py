"""Calibrators: each finds the range its definition says, in one pass, in pieces, merged, and on awkward data."""

import contextlib
import io

import numpy as np
import pytest

from qnn_ext.errors import QuantizationError
from qnn_ext.quantize.calibrators import CALIBRATORS, Settings, make_calibrator
from qnn_ext.quantize.calibrators.divergence import reference_divergence
from qnn_ext.quantize.fields import CALIBRATE_MODES
from qnn_ext.quantize.histogram import Histogram
from qnn_ext.quantize.ranges import Range, integer_range, qparams_of

FROM_HISTOGRAMS = ("percentile", "kl_divergence", "entropy", "mse")


def found_range(mode, *arrays, **settings):
    calibrator = make_calibrator(mode, Settings(**settings))
    for array in arrays:
        calibrator.collect("site", np.asarray(array, np.float32))
    return calibrator.threshold("site")


def squared_error(values, found, dtype="int8", bits=8, symmetric=True, power_of_two=False):
    """Mean squared error of the values themselves, not of a histogram, quantized with a range."""
    qparams = qparams_of(found, dtype, bits, symmetric, power_of_two)
    low, high = integer_range(dtype, bits, symmetric)
    scale, zero_point = float(qparams.scale), int(qparams.zero_point)
    steps = np.clip(np.rint(values / scale) + zero_point, low, high) - zero_point
    return float(np.mean(np.square(values - steps * scale)))


@pytest.fixture
def data(rng):
    """Distributions as networks have them."""
    normal = rng.standard_normal(19_996)
    return {
        "normal": normal,
        "relu": np.maximum(normal, 0),
        "laplace": rng.laplace(size=19_996),
        "heavy": rng.standard_t(2, 19_996),
        "gelu": normal * 3 / (1 + np.exp(-5 * normal)),
        "shifted": normal + 6,
        "negative": -np.abs(normal),
    }


def test_every_mode_of_the_configuration_has_a_calibrator():
    assert set(CALIBRATORS) == set(CALIBRATE_MODES)


def test_mse_has_the_smallest_squared_error_of_all_modes(data):
    for name in ("normal", "heavy", "laplace", "relu", "gelu"):
        values = data[name]
        errors = {mode: squared_error(values, found_range(mode, values)) for mode in ("minmax", *FROM_HISTOGRAMS)}
        assert errors["mse"] <= 1.02 * min(errors.values())


def test_auto_extrapolates_where_models_are_not_compared(data):
    for values in data.values():
        parts = np.array_split(values, 8)
        found, expected = (found_range(mode, *parts) for mode in ("auto", "extrapolated"))
        assert (found.low, found.high, found.method) == (expected.low, expected.high, "extrapolated")


def test_unknown_mode():
    with pytest.raises(QuantizationError, match=r"'kl_divergence', .* found 'best'"):
        make_calibrator("best")


def test_global_scale_needs_no_data():
    calibrator = make_calibrator("global_scale", Settings(global_scale=4))
    calibrator.collect("site", np.float32([100]))
    assert calibrator.threshold("anywhere") == Range(-4, 4, "global_scale")


def test_minmax():
    assert found_range("minmax", [1, -2], [[5], [0.5]], [3]) == Range(-2, 5, "minmax")


def test_moving_average():
    """With 0.75: ¾·(¾·r₀ + ¼·r₁) + ¼·r₂."""
    found = found_range("moving_average", [-4, 8], [0, 16], [-16, 32], momentum=0.75)
    assert found == Range(-0.5625 * 4 - 0.25 * 16, 0.5625 * 8 + 0.1875 * 16 + 0.25 * 32, "moving_average")


def test_moving_average_goes_by_the_position_of_a_batch():
    parts = [make_calibrator("moving_average") for _ in range(2)]
    batches = np.float32([[-1, 1], [-2, 5], [-3, 2], [-7, 4]])
    for index in (0, 3):
        parts[0].collect("site", batches[index], index)
    for index in (2, 1):
        parts[1].collect("site", batches[index], index)
    parts[1].merge(parts[0])
    assert parts[1].threshold("site") == found_range("moving_average", *batches)


@pytest.mark.parametrize("percentile", [90.0, 99.0, 99.9])
def test_percentile(data, percentile):
    for values in data.values():
        width = Histogram(2048).half ** -1 * 2 * np.abs(values).max()
        threshold = np.percentile(np.abs(values), percentile, method="inverted_cdf")
        found = found_range("percentile", values, percentile=percentile)
        assert np.maximum(-found.low, found.high) == pytest.approx(threshold, abs=width)
        cut = (100 - percentile) / 2
        found = found_range("percentile", values, percentile=percentile, symmetric=False)
        expected = np.percentile(values, [cut, 100 - cut], method="inverted_cdf")
        np.testing.assert_allclose([found.low, found.high], expected, atol=width)


def test_percentile_of_100_is_minmax(data):
    for values in data.values():
        for symmetric in (True, False):
            found = found_range("percentile", values, percentile=100, symmetric=symmetric)
            assert (found.low, found.high) == (np.float32(values.min()), np.float32(values.max()))


@pytest.mark.parametrize("bits", [8, 5])
def test_kl_divergence_is_the_best_threshold_of_the_recipe(data, bits):
    values = np.abs(data["heavy" if bits == 5 else "laplace"]).astype(np.float32)
    statistic = Histogram(256)
    statistic.add(values)
    counts = statistic.magnitudes()
    counts = counts[: np.flatnonzero(counts)[-1] + 1]
    levels = 2 ** (bits - 1)
    candidates = range(levels, counts.size + 1)
    best = min(candidates, key=lambda stop: reference_divergence(counts, 0, stop, levels))
    assert best < counts.size
    found = found_range("kl_divergence", values, bins=256, bits=bits)
    assert found.high == (best + 0.5) * statistic.width
    assert found.extra["clipped"] == pytest.approx(np.mean(values > found.high), abs=counts[best] / values.size)


def test_kl_divergence_ignores_exact_zeros(data):
    values = np.append(data["laplace"], np.zeros(500_000))
    assert found_range("kl_divergence", values) == found_range("kl_divergence", data["laplace"])


def test_entropy_finds_a_window_that_no_move_of_an_end_improves(data):
    for name in ("relu", "gelu", "heavy"):
        values = data[name].astype(np.float32)
        found = found_range("entropy", values, bins=128, bits=4, symmetric=False)
        statistic = Histogram(128)
        statistic.add(values)
        counts, zero, width = statistic.signed(zeros=False), statistic.half, statistic.width
        used = np.flatnonzero(counts)
        start, stop = zero + round(np.floor(found.low / width)), zero + round(np.ceil(found.high / width))
        least = reference_divergence(counts, start, stop, 16)
        others = [(start, end) for end in range(max(zero, start + 16), used[-1] + 2)]
        others += [(end, stop) for end in range(used[0], min(zero, stop - 16) + 1)]
        assert least < reference_divergence(counts, used[0], used[-1] + 1, 16)
        assert least <= min(reference_divergence(counts, *other, 16) for other in others) * (1 + 1e-9)


@pytest.mark.parametrize(
    "integers",
    [
        {},
        {"bits": 4},
        {"dtype": "uint8", "symmetric": False},
        {"dtype": "uint8", "symmetric": False, "bits": 3},
        {"power_of_two": True},
    ],
    ids=str,
)
def test_mse_is_nearly_the_best_of_all_ranges(data, integers):
    """Within 2 % of the best of a fine search on the values themselves, and never worse than minmax."""
    for name in ("normal", "relu", "heavy", "gelu"):
        values = data[name].astype(np.float32)[:20_000]
        found = squared_error(values, found_range("mse", values, **integers), **integers)
        whole = Range.of(values)
        shares = np.linspace(0.02, 1, 60)
        best = min(squared_error(values, Range(whole.low * share, whole.high * share), **integers) for share in shares)
        assert found <= 1.02 * best
        assert found <= 1.001 * squared_error(values, whole, **integers)


@pytest.mark.parametrize("mode", CALIBRATORS)
def test_pieces_and_merged_parts_give_the_same_range(data, mode):
    batches = np.array_split(data["gelu"].astype(np.float32), 6)
    whole = make_calibrator(mode, Settings(bins=512))
    parts = [make_calibrator(mode, Settings(bins=512)) for _ in range(3)]
    for index, batch in enumerate(batches):
        whole.collect("site", batch, index)
        parts[index % 3].collect("site", batch, index)
    for part in parts[1:]:
        parts[0].merge(part)
    assert parts[0].threshold("site") == whole.threshold("site")


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("mode", ["minmax", "moving_average", *FROM_HISTOGRAMS])
def test_ranges_stay_within_the_data(data, mode, symmetric):
    for values in data.values():
        found = found_range(mode, values, symmetric=symmetric)
        assert np.float32(values.min()) <= found.low <= found.high <= np.float32(values.max())


@pytest.mark.parametrize("mode", ["minmax", "moving_average", *FROM_HISTOGRAMS])
@pytest.mark.parametrize("value", [0.0, 2.5, -1e-3])
def test_constant_tensors(mode, value):
    found = found_range(mode, np.full((4, 5), value), [value])
    assert (found.low, found.high) == (np.float32(value), np.float32(value))


@pytest.mark.parametrize("mode", FROM_HISTOGRAMS)
def test_few_values(mode):
    for symmetric in (True, False):
        found = found_range(mode, [-1, 0, 3], symmetric=symmetric, percentile=100)
        assert -1 <= found.low <= 0 < found.high <= 3


@pytest.mark.parametrize("mode", ["minmax", "moving_average", *FROM_HISTOGRAMS])
def test_what_is_not_finite_names_the_site_and_the_batch(mode):
    calibrator = make_calibrator(mode)
    with pytest.raises(QuantizationError, match="site 'conv1' in batch 3: 1 of 2 values are NaN or infinite"):
        calibrator.collect("conv1", np.float32([1, np.nan]), 3)


@pytest.mark.parametrize("mode", ["minmax", "moving_average", *FROM_HISTOGRAMS])
def test_nothing_collected(mode):
    calibrator = make_calibrator(mode)
    calibrator.collect("conv1", np.zeros((0, 4), np.float32))
    with pytest.raises(QuantizationError, match=f"site 'conv1': the data set is empty, so calibrate_mode='{mode}'"):
        calibrator.threshold("conv1")


# ---- ONNX Runtime's calibrators on the same data -----------------------------------------------------------------


def onnxruntime_range(values, method, symmetric, percentile=99.9):
    calibrate = pytest.importorskip("onnxruntime.quantization.calibrate", reason="needs the extra 'onnxruntime'")
    collector = calibrate.HistogramCollector(method, symmetric, 2048, 128, percentile, "same")
    with contextlib.redirect_stdout(io.StringIO()):
        collector.collect({"site": np.array_split(values.astype(np.float32), 4)})
        found = collector.compute_collection_result()["site"]
    return [float(value) for value in found[:2]]


@pytest.mark.parametrize("symmetric", [True, False])
def test_percentile_agrees_with_onnxruntime(data, symmetric):
    """To the width of its bins and ours: its thresholds are edges of bins."""
    for name in ("normal", "laplace", "heavy", "gelu"):
        values = data[name]
        found = found_range("percentile", *np.array_split(values, 4), symmetric=symmetric, percentile=99.9)
        expected = onnxruntime_range(values, "percentile", symmetric)
        np.testing.assert_allclose([found.low, found.high], expected, atol=3 * np.abs(values).max() / 2048)
