"""Runs conformance cases through qnn_ext and reports how close the results are to LiteRT's.

python -m tests.conformance.check              the table, by the interpreter (the oracle)
python -m tests.conformance.check --compiled   the table, by compiled engines; takes long
python -m tests.conformance.check ADD CONV_2D  only these operators
python -m tests.conformance.check --default    where the default numerics differ from LiteRT's default, and which rule
                                               they follow there
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np

import qnn_ext
from qnn_ext import Interpreter, QnnError

from .cases import Case, load_cases

_RESCALE = "reference kernel; the optimized one forgets to rescale over one element"

# (operator, dtype) -> (verdict of some cases under the default numerics, the rule these follow and why it is not
# LiteRT's default). All other pairs equal LiteRT's default.
DEFAULT_DEVIATIONS: dict[tuple[str, str], tuple[str, str]] = {
    ("QUANTIZE", "float32"): ("different", "saturation; beyond int32 LiteRT's conversion is undefined in C"),
    ("REDUCE_PROD", "int16"): ("different", _RESCALE),
    ("REDUCE_PROD", "int8"): ("different", _RESCALE),
}

FLOAT_TOLERANCE = 1e-5  # relative to the largest value: float kernels sum in another order


@dataclass(frozen=True)
class Verdict:
    """exact:   integers equal bit for bit
    within 1:   integers differ by at most one step
    float:      a float result within FLOAT_TOLERANCE of LiteRT's
    refused:    qnn_ext says it does not support the model
    different:  anything else, with how much in `detail`
    fallback:   part of it ran in float although the model quantizes it
    """

    kind: str
    detail: str = ""
    fallback: bool = False


def judge(case: Case, compiled: bool = False, numerics: str = "tflite", trials: int | None = None) -> Verdict:
    """Import the case, run it, compare with LiteRT's outputs: of the reference kernels for numerics "tflite", otherwise
    of the default resolver, which the case must have."""
    try:
        module = qnn_ext.from_tflite(case.model, numerics=numerics)
    except QnnError as error:
        return Verdict("refused", str(error))
    runner = qnn_ext.build(module) if compiled else Interpreter(module)
    worst, is_float = 0.0, False
    expected_outputs = case.reference if numerics == "tflite" else case.default
    for inputs, golden in list(zip(case.inputs, expected_outputs, strict=True))[:trials]:
        if not case.stateful:
            runner.reset_state()
        outputs = list(runner.run(inputs).values())
        outputs = defined_part(case, outputs)
        for output, expected in zip(outputs, golden, strict=True):
            if output.shape != expected.shape or output.dtype != expected.dtype:
                return Verdict("different", f"{output.dtype}{output.shape}, not {expected.dtype}{expected.shape}")
            is_float |= output.dtype.kind == "f"
            worst = max(worst, difference(output, expected))
    fallback = bool(module.notes)
    if is_float:
        return Verdict("float" if worst <= FLOAT_TOLERANCE else "different", f"{worst:g}", fallback)
    kinds = {0: "exact", 1: "within 1"}
    return Verdict(kinds.get(int(worst), "different"), f"{worst:g}", fallback)


def defined_part(case: Case, outputs: list[np.ndarray]) -> list[np.ndarray]:
    """Rows after the valid ones, which LiteRT leaves undefined, set to zero as in the goldens."""
    counted_by = getattr(case, "counted_by", None)
    if counted_by is None:
        return outputs
    valid = int(outputs[counted_by].reshape(-1)[0])
    cleared = []
    for index, output in enumerate(outputs):
        if index != counted_by:
            output = output.copy()
            output[:, valid:] = 0
        cleared.append(output)
    return cleared


def difference(actual: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference: in steps for integers, relative to the largest value for floats. NaN and inf must match."""
    if actual.size == 0:
        return 0.0
    if actual.dtype.kind != "f":
        return float(np.abs(actual.astype(np.int64) - expected.astype(np.int64)).max())
    finite = np.isfinite(expected)
    same_specials = (
        np.array_equal(actual[~finite], expected[~finite], equal_nan=True) and np.isfinite(actual[finite]).all()
    )
    if not same_specials:
        return float("inf")
    a, b = actual[finite].astype(np.float64), expected[finite].astype(np.float64)
    return float(np.abs(a - b).max(initial=0.0) / (np.abs(b).max(initial=0.0) + 1e-6))


def table(cases: list[Case], compiled: bool, numerics: str = "tflite") -> dict[tuple[str, str], Counter]:
    """(operator, dtype) -> how many cases had which verdict; a float fallback is marked with a star."""
    rows: dict[tuple[str, str], Counter] = defaultdict(Counter)
    for number, case in enumerate(cases):
        verdict = judge(case, compiled, numerics)
        rows[case.operator, case.dtype][verdict.kind + ("*" if verdict.fallback else "")] += 1
        if verdict.kind in ("different", "refused"):
            print(f"{case.name}: {verdict.kind} {verdict.detail}", file=sys.stderr)
        if sys.stderr.isatty():
            print(f"\r{number + 1}/{len(cases)}", end="", file=sys.stderr)
    return rows


def print_defaults(rows: dict[tuple[str, str], Counter]) -> None:
    """Print the pairs that differ as markdown, with the rule that ours follow."""
    print("| operator | dtype | cases | rule of ours |")
    print("|---|---|---|---|")
    for (operator, dtype), counts in sorted(rows.items()):
        if any(kind.rstrip("*") not in ("exact", "float") for kind in counts):
            text = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
            rule = DEFAULT_DEVIATIONS[operator, dtype][1] if (operator, dtype) in DEFAULT_DEVIATIONS else "?"
            print(f"| {operator} | {dtype} | {text} | {rule} |")


def main() -> None:
    """Print the table as markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--compiled", action="store_true", help="run compiled engines instead of the interpreter")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth case")
    parser.add_argument("--default", action="store_true", help="the default numerics against LiteRT's default")
    arguments = parser.parse_args()
    cases = [case for case in load_cases() if not arguments.operators or case.operator in arguments.operators]
    if arguments.default:
        print_defaults(table([case for case in cases if case.default], arguments.compiled, "float32"))
        return
    rows = table(cases[:: arguments.every], arguments.compiled)
    dtypes = sorted({dtype for _, dtype in rows})
    print("| operator | " + " | ".join(dtypes) + " |")
    print("|---" * (len(dtypes) + 1) + "|")
    for operator in sorted({operator for operator, _ in rows}):
        cells = []
        for dtype in dtypes:
            counts = rows.get((operator, dtype), Counter())
            text = ", ".join(f"{kind} {count}" if len(counts) > 1 else kind for kind, count in sorted(counts.items()))
            cells.append(text or "–")
        print(f"| {operator} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
