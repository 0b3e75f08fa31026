"""Resizing: against LiteRT's reference kernels."""

import pytest

from .oracle_cases import assert_equals_reference, cases_of

EVERY = cases_of("RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR")


@pytest.mark.parametrize("case", EVERY)
def test_equals_litert(case):
    assert_equals_reference(case)
