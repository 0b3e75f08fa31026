"""Runs conformance cases through import and interpreter, and compares with LiteRT's reference kernels.

The default numerics are compared with LiteRT's default in tests/conformance/test_tflite.py, on the same cases.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter
from tests.conformance.cases import Case, load_cases

ALIKE = pytest.mark.exhaustive("a case of the same operator and dtype")
FLOAT_TOLERANCE = 1e-5  # relative to the largest value: sums in another order


def cases_of(operators: str) -> list[Any]:
    """All cases of a space-separated list of operators, as test parameters. `make test` runs one in three per operator
    and dtype."""
    found, seen = [], Counter[tuple[str, str]]()
    for operator in operators.split():
        for case in load_cases(operator):
            kind = case.operator, case.dtype
            found.append(pytest.param(case, id=case.name, marks=ALIKE if seen[kind] % 3 else []))
            seen[kind] += 1
    assert found, operators
    return found


def run_case(case: Case, numerics: str) -> list[list[np.ndarray]]:
    """The outputs of every trial."""
    interpreter = Interpreter(from_tflite(case.model, numerics=numerics))
    results = []
    for trial in case.inputs:
        if not case.stateful:
            interpreter.reset_state()
        results.append(list(interpreter.run(trial).values()))
    return results


def assert_equals_reference(case: Case) -> None:
    """Integers exactly, floats up to the order of summation."""
    for outputs, references in zip(run_case(case, "tflite"), case.reference, strict=True):
        for output, reference in zip(outputs, references, strict=True):
            assert (output.shape, output.dtype) == (reference.shape, reference.dtype)
            if output.dtype.kind == "f":
                scale = np.abs(reference).max(initial=1e-3, where=np.isfinite(reference))
                np.testing.assert_allclose(output, reference, rtol=0, atol=FLOAT_TOLERANCE * scale)
            else:
                np.testing.assert_array_equal(output, reference)
