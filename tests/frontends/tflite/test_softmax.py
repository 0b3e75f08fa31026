"""SOFTMAX and LOG_SOFTMAX: against LiteRT."""

import numpy as np
import pytest
from oracle_cases import assert_equals_reference, cases_of, run_case

CASES = cases_of("SOFTMAX LOG_SOFTMAX")


@pytest.mark.parametrize("case", CASES)
def test_equals_litert(case):
    assert_equals_reference(case)


@pytest.mark.parametrize("case", [p for p in CASES if p.id.split("/")[1] != "float32"])
def test_float32_numerics_is_within_one_of_the_default(case):
    for (output,), (default,) in zip(run_case(case, "float32"), case.default, strict=True):
        assert np.abs(output.astype(int) - default).max() <= 1
