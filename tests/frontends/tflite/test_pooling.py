"""Pooling: against LiteRT's reference kernels."""

import pytest

from .oracle_cases import assert_equals_reference, cases_of

EVERY = cases_of("AVERAGE_POOL_2D MAX_POOL_2D L2_POOL_2D")


@pytest.mark.parametrize("case", EVERY)
def test_equals_litert(case):
    assert_equals_reference(case)
