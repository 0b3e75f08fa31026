"""Padding, space to depth and to batch: against LiteRT."""

import pytest
from oracle_cases import assert_equals_reference, cases_of


@pytest.mark.parametrize(
    "case",
    cases_of("PAD PADV2 MIRROR_PAD SPACE_TO_DEPTH DEPTH_TO_SPACE SPACE_TO_BATCH_ND BATCH_TO_SPACE_ND"),
)
def test_equals_litert(case):
    assert_equals_reference(case)
