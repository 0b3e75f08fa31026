"""TRANSPOSE_CONV: against LiteRT, and the regrouping of its weights against the definition."""

import numpy as np
import pytest

from qnn_ext.numerics.phases import phase_weight, tap_counts
from tests.conformance.cases import load_cases

from .oracle_cases import assert_equals_reference, cases_of, run_case


@pytest.mark.parametrize("case", cases_of("TRANSPOSE_CONV"))
def test_equals_litert(case):
    assert_equals_reference(case)


@pytest.mark.parametrize(
    "case", load_cases("TRANSPOSE_CONV", "int8") + load_cases("TRANSPOSE_CONV", "uint8"), ids=lambda case: case.name
)
def test_float32_numerics_equal_xnnpack(case):
    for outputs, expected in zip(run_case(case, "float32"), case.default, strict=True):
        np.testing.assert_array_equal(outputs[0], expected[0])


def test_phase_weight_holds_every_tap_once_reversed(rng):
    weight = rng.integers(-127, 127, (4, 5, 3, 2)).astype(np.int8)
    phases = (2, 3)
    assert tap_counts((5, 3), phases) == (3, 1)
    regrouped = phase_weight(weight, phases, zero_point=9)
    assert regrouped.shape == (24, 3, 1, 2)
    for row in range(6):
        for column in range(3):
            channel = ((row % 2) * 3 + column % 3) * 4 + 1
            expected = weight[1, row, column] if row < 5 else 9
            np.testing.assert_array_equal(regrouped[channel, 2 - row // 2, 0], expected)
