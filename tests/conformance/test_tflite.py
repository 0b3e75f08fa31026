"""Single operators against LiteRT: all cases through the interpreter, a spread of them compiled.

What is not exact is listed here by name; a new deviation fails, and so does one that has gone away.
"""

import pytest

from .cases import load_cases
from .check import judge

OPERATORS = sorted({case.operator for case in load_cases()})
COMPILED_EVERY = 12  # every Nth case of an operator is compiled too: about a second each
WITHIN_ONE: dict[str, str] = {}  # case name prefix -> why LiteRT's result cannot be had exactly
REFUSED: dict[str, str] = {}  # case name prefix -> why


def expectation(name: str) -> str | None:
    """The kind that a listed case must have, None for the others."""
    if any(name.startswith(prefix) for prefix in WITHIN_ONE):
        return "within 1"
    return "refused" if any(name.startswith(prefix) for prefix in REFUSED) else None


@pytest.mark.parametrize("operator", OPERATORS)
def test_operator_equals_litert(operator):
    problems = []
    for case in load_cases(operator):
        verdict = judge(case)
        allowed = {expectation(case.name)} if expectation(case.name) else {"exact", "float"}
        if verdict.kind not in allowed:
            problems.append(f"{case.name}: {verdict.kind} {verdict.detail}")
    assert not problems, "\n".join(problems[:20])


@pytest.mark.parametrize("operator", OPERATORS)
def test_compiled_operator_equals_litert(operator):
    cases = load_cases(operator)
    offset = OPERATORS.index(operator) % min(COMPILED_EVERY, len(cases))  # another variant for each operator
    problems = []
    for case in cases[offset::COMPILED_EVERY]:
        if expectation(case.name) == "refused":
            continue
        verdict = judge(case, compiled=True)
        if verdict.kind not in {"exact", "float", expectation(case.name)}:
            problems.append(f"{case.name}: {verdict.kind} {verdict.detail}")
    assert not problems, "\n".join(problems[:20])


@pytest.mark.parametrize("operator", OPERATORS)
def test_float32_numerics_import(operator):
    """The default numerics import every case too and stay near LiteRT's reference."""
    far = []
    for case in load_cases(operator)[::7]:
        verdict = judge(case, numerics="float32", trials=1)
        if verdict.kind == "refused" and expectation(case.name) != "refused":
            far.append(f"{case.name}: {verdict.detail}")
    assert not far, "\n".join(far[:20])
