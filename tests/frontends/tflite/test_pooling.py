"""Pooling: against LiteRT's reference kernels, which its default resolver uses for integers as well."""

import numpy as np
import pytest

from .oracle_cases import assert_equals_reference, cases_of, run_case

EVERY = cases_of("AVERAGE_POOL_2D MAX_POOL_2D L2_POOL_2D")


@pytest.mark.parametrize("case", EVERY)
def test_equals_litert(case):
    assert_equals_reference(case)


@pytest.mark.parametrize("case", [p for p in EVERY if p.values[0].dtype != "float32" and p.values[0].default])
def test_both_numerics_are_the_same_for_integers(case):
    for outputs, expected in zip(run_case(case, "float32"), case.default, strict=True):
        np.testing.assert_array_equal(outputs[0], expected[0])
