"""The ONNX backend suite's node tests of quantization and recurrent operators: all pass but those that take or
give float8, which NumPy arrays cannot hold, and float4."""

import pytest

pytest.importorskip("onnx")

from .backend_nodes import OPERATORS, RECURRENT, cases, run_case

REFUSED_TYPES = ("e4m3fn", "e5m2", "float4e2m1")


@pytest.mark.parametrize("operator", OPERATORS)
def test_operator(operator):
    found = [case for name, case in cases().items() if name.startswith(f"test_{operator}")]
    for case in found:
        result = run_case(case)
        if any(dtype in case.name for dtype in REFUSED_TYPES):
            assert result.outcome == "refused", result
            assert "element type FLOAT" in result.reason or "float8" in result.reason
        else:
            assert result.outcome == "pass", result


@pytest.mark.exhaustive("test_recurrent.py, with options drawn at random")
@pytest.mark.parametrize("operator", RECURRENT)
def test_recurrent_operator(operator):
    found = [case for name, case in cases().items() if name.startswith(f"test_{operator}")]
    assert found and {run_case(case).outcome for case in found} == {"pass"}


def test_the_suite_has_not_lost_cases():
    assert len(cases()) >= 56
