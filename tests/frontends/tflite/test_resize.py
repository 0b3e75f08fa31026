"""Resizing: against LiteRT's reference and, for numerics="float32", its default kernels."""

import numpy as np
import pytest

from .oracle_cases import assert_equals_reference, cases_of, run_case

EVERY = cases_of("RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR")


@pytest.mark.parametrize("case", EVERY)
def test_equals_litert(case):
    assert_equals_reference(case)


@pytest.mark.parametrize("case", cases_of("RESIZE_NEAREST_NEIGHBOR"))
def test_nearest_equals_the_default_kernels(case):
    for outputs, expected in zip(run_case(case, "float32"), case.default, strict=True):
        np.testing.assert_array_equal(outputs[0], expected[0])
