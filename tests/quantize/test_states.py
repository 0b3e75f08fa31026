"""Models with states, whose samples are a sequence, are quantized by every setting."""

import warnings

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import QuantizationWarning
from qnn_ext.quantize import QConfig, control_accuracy, quantize
from qnn_ext.quantize.analysis import fidelity

from .networks import recurrent_module, run_sequence

DATA = np.random.default_rng(3).normal(size=(24, 6)).astype(np.float32)

SETTINGS = {
    "auto": {},
    "percentile": {"calibrate_mode": "percentile"},
    "power of two": {"calibrate_mode": "entropy", "weight_scale": "power2"},
    "bias correction": {"bias_correction": True},
    "equalized": {"equalize": True},
    "smoothed": {"smooth": 0.5},
    "gptq": {"weight_rounding": "gptq"},
    "adaround": {"weight_rounding": "adaround"},
    "in chunks": {"calibrate_chunk_by": 1},
    "two workers": {"num_workers": 2},
    "divided": {"partition_conversions": "enabled"},
    "dynamic": {"dynamic": True},
    "groups": {"weight_only": True, "group_size": 3, "smooth": "awq"},
    "simulated": {"do_simulation": True},
}


@pytest.fixture(scope="module")
def module():
    return recurrent_module(np.random.default_rng(4))


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting(setting, module):
    found = quantize(module, dataset=DATA, config=QConfig(**SETTINGS[setting]))
    assert [state.name for state in found.states] == ["s"]
    assert fidelity(run_sequence(module, DATA), run_sequence(found, DATA)).sqnr > 25


def test_biases_are_corrected_by_the_mean_over_the_sequence(module):
    """With weights of 4 bits, whose errors have a mean on these data."""
    data = DATA + np.float32(1)

    def error(**fields) -> float:
        config = QConfig(nbit_weight=4, calibrate_mode="minmax", **fields)
        found = quantize(module, dataset=data, config=config)
        exact, integers = (qnn_ext.build(one, num_threads=1) for one in (module, found))
        return float(np.abs(np.mean([exact(row[None]) - integers(row[None]) for row in data], axis=0)).mean())

    assert error(bias_correction=True) < 0.5 * error()


def test_settings_are_searched(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QuantizationWarning)
        found = control_accuracy(module, dataset=DATA, min_sqnr=45)
    assert fidelity(run_sequence(module, DATA), run_sequence(found.stages.result, DATA)).sqnr >= 45
