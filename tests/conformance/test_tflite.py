"""Single operators against LiteRT: all cases through the interpreter, a spread of them compiled; the default numerics
against LiteRT's default.

What is not exact is listed here by name with the reason; a new deviation fails, and so does one that has gone away.
"""

import pkgutil
from importlib import import_module

import pytest

from tests.frontends import tflite as frontend

from .cases import load_cases
from .check import DEFAULT_DEVIATIONS, judge

OPERATORS = sorted({case.operator for case in load_cases()})
# of every so many cases of an operator one is compiled too, which takes about a second
COMPILED, COMPILED_WITH_ALL = 36, 12

# Case name prefix -> (the verdict some of these cases get, why LiteRT's result is not ours)
DEVIATIONS: dict[str, tuple[str, str]] = {
    "SUM/int8/": (
        "within 1",
        "LiteRT's reference resolver reads int8 as uint8; the goldens are its optimized kernel, which rounds a float",
    ),
    "QUANTIZE/float32/to_int16_": (
        "different",
        "beyond int32 LiteRT converts float to int, which C leaves undefined; ours saturates",
    ),
    "GELU/float32/": ("different", "1 + erf cancels for large negative x; absolute error below 5e-7"),
}


def deviation(name: str) -> str | None:
    """The verdict that a listed case may have, None for the others."""
    return next((kind for prefix, (kind, _) in DEVIATIONS.items() if name.startswith(prefix)), None)


def test_every_case_is_taken_by_the_tests_of_the_frontend():
    """There the interpreter's results are compared with LiteRT's reference kernels, one case a test."""
    taken = set()
    for module in pkgutil.iter_modules(frontend.__path__, f"{frontend.__name__}."):
        for test in vars(import_module(module.name)).values():
            marks = getattr(test, "pytestmark", []) if "litert" in getattr(test, "__name__", "") else []
            for values in (mark.args[1] for mark in marks if mark.args[:1] == ("case",)):
                taken |= {getattr(case, "id", None) or getattr(case, "name", case) for case in values}
    assert {case.name for case in load_cases()} <= taken


@pytest.mark.parametrize("operator", OPERATORS)
def test_compiled_operator_equals_litert(operator, thorough):
    cases, step = load_cases(operator), COMPILED_WITH_ALL if thorough else COMPILED
    offset = OPERATORS.index(operator) % min(step, len(cases))  # another variant for each operator
    problems = []
    for case in cases[offset::step]:
        verdict = judge(case, compiled=True)
        if verdict.kind not in {"exact", "float", deviation(case.name)}:
            problems.append(f"{case.name}: {verdict.kind} {verdict.detail}")
    assert not problems, "\n".join(problems[:20])


@pytest.mark.parametrize("operator", OPERATORS)
def test_default_numerics_equal_the_default_of_litert(operator, thorough):
    """But for the pairs of operator and dtype that are listed."""
    problems = []
    for case in [case for case in load_cases(operator) if case.default][:: 1 if thorough else 5]:
        kind, _ = DEFAULT_DEVIATIONS.get((operator, case.dtype), (None, ""))
        verdict = judge(case, numerics="float32")
        if verdict.kind not in {"exact", "float", kind}:
            problems.append(f"{case.name}: {verdict.kind} {verdict.detail}")
    assert not problems, "\n".join(problems[:20])


@pytest.mark.parametrize("pair", DEFAULT_DEVIATIONS, ids="-".join)
def test_deviation_of_the_default_is_still_there(pair):
    cases = (case for case in load_cases(*pair) if case.default)
    assert any(judge(case, numerics="float32").kind == DEFAULT_DEVIATIONS[pair][0] for case in cases)


@pytest.mark.parametrize("operator", OPERATORS)
def test_compiled_default_equals_litert(operator, thorough):
    cases = [case for case in load_cases(operator) if case.default and case.default_differs]
    cases = [case for case in cases if (operator, case.dtype) not in DEFAULT_DEVIATIONS]
    problems = []
    for case in cases[::4] if thorough else cases[:1]:
        verdict = judge(case, compiled=True, numerics="float32")
        if verdict.kind not in {"exact", "float"}:
            problems.append(f"{case.name}: {verdict.kind} {verdict.detail}")
    assert not problems, "\n".join(problems[:20])


@pytest.mark.parametrize("prefix", DEVIATIONS)
def test_deviation_is_still_there(prefix):
    kinds = {judge(case).kind for case in load_cases() if case.name.startswith(prefix)}
    assert DEVIATIONS[prefix][0] in kinds
