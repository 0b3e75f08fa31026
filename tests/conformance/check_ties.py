"""Compares results next to midpoints with LiteRT's, see `ties.py`.

python -m tests.conformance.check_ties   the table of those that differ, for RESULTS.md; takes some minutes
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import qnn_ext
from qnn_ext import Interpreter

from .cases import Case, load_cases
from .ties import NearTie, load_ties

CASES = {case.name: case for case in load_cases() if case.name in load_ties()}
OPERATORS = sorted({case.operator for case in CASES.values()})
NUMERICS = {"reference": "tflite", "default": "float32"}
C_LIBRARY = "the C library's tanhf, erfcf and logf, off by one unit in the last place in glibc; ours are exact"

# (operator, dtype, kernels) -> why some results are one step from LiteRT's
DEVIATIONS: dict[tuple[str, str, str], str] = {
    **{(operator, dtype, kernels): C_LIBRARY for kernels in NUMERICS for operator, dtype in (
        ("GELU", "int8"), ("GELU", "uint8"), ("TANH", "int8"), ("TANH", "uint8"),
    )},
    ("SUM", "int8", "reference"): "the goldens are the optimized kernel's, see test_tflite.py",
    ("LOG_SOFTMAX", "int8", "default"): C_LIBRARY,
}  # fmt: skip


def element(model: bytes, trials: Sequence[Any], tie: NearTie, numerics: str) -> int:
    """The element of the last trial's output."""
    interpreter = Interpreter(qnn_ext.from_tflite(model, numerics=numerics))
    for inputs in trials:
        outputs = list(interpreter.run(inputs).values())
    return int(outputs[tie.output].reshape(-1)[tie.element])


@cache
def differences(case: Case, kernels: str, most: int | None) -> tuple[tuple[NearTie, int], ...]:
    """(near-tie, our element minus LiteRT's) where they differ, of the case's first `most` near-ties or of all."""
    found = []
    content, trials = case.model, case.inputs if case.stateful else case.inputs[-1:]
    for tie in getattr(load_ties()[case.name], kernels)[:most]:
        for model, expected in tie.sides(content):
            found.append((tie, element(model, trials, tie, NUMERICS[kernels]) - expected))
    return tuple((tie, difference) for tie, difference in found if difference)


def main() -> None:
    """Print the table as markdown."""
    compared, differing = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for case in CASES.values():
        for kernels in NUMERICS:
            key = case.operator, case.dtype, kernels
            compared[key] += 2 * len(getattr(load_ties()[case.name], kernels))
            differing[key] += len(differences(case, kernels, None))
    print("| operator | dtype | kernels | differ | why |")
    print("|---|---|---|---|---|")
    for key, count in sorted(differing.items()):
        if count:
            print(f"| {' | '.join(key)} | {count} of {compared[key]} | {DEVIATIONS.get(key, '?')} |")


if __name__ == "__main__":
    main()
