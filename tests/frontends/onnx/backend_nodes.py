"""The node tests of the ONNX backend suite for quantization and recurrent operators; prints how many pass.

    python -m tests.frontends.onnx.backend_nodes

The `onnx` package generates them: a model of one operator (or the function it expands to), inputs, expected outputs.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

import qnn_ext
from qnn_ext.errors import QnnError, UnsupportedOperatorError

OPERATORS = (
    "quantizelinear",
    "dequantizelinear",
    "dynamicquantizelinear",
    "qlinearconv",
    "qlinearmatmul",
    "convinteger",
    "basic_convinteger",
    "matmulinteger",
)
RECURRENT = ("lstm", "gru", "rnn", "simple_rnn")


@dataclass(frozen=True)
class Result:
    """Outcome of one case: "pass", "refused" (a clear error before anything runs) or "fail", with the reason."""

    name: str
    outcome: str
    reason: str = ""


@lru_cache(maxsize=1)
def cases() -> dict[str, Any]:
    """The suite's cases of the operators above, by name."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():  # the generators of other operators overflow and divide by 0
        warnings.simplefilter("ignore")
        found = load_model_tests(kind="node")
    wanted = tuple(f"test_{name}" for name in OPERATORS + RECURRENT)
    return {case.name: case for case in found if case.name.startswith(wanted)}


def run_case(case: Any) -> Result:
    """Interpreter and engine against the expected outputs, integers exactly."""
    try:
        module = qnn_ext.from_onnx(case.model)
    except UnsupportedOperatorError as error:
        return Result(case.name, "refused", str(error))
    except QnnError as error:
        return Result(case.name, "fail", str(error))
    for inputs, expected in _data_sets(case, module):
        engine = qnn_ext.build(module, num_threads=1)
        for runner in (qnn_ext.Interpreter(module), engine):
            for actual, wanted in zip(runner.run(inputs).values(), expected, strict=True):
                problem = _difference(actual, wanted, case.rtol, case.atol)
                if problem:
                    return Result(case.name, "fail", f"{type(runner).__name__}: {problem}")
    return Result(case.name, "pass")


def _data_sets(case: Any, module: Any) -> Iterator[tuple[list[np.ndarray], list[np.ndarray]]]:
    for inputs, outputs in case.data_sets:
        arrays = [_held(value) for value in inputs]
        # unused inputs and input order follow the model's graph
        names = [value.name for value in case.model.graph.input]
        by_name = dict(zip(names, arrays, strict=True))
        yield [by_name[spec.name] for spec in module.inputs], [_held(value) for value in outputs]


def _held(value: Any) -> np.ndarray:
    """An array as qnn_ext holds it: 4- and 2-bit integers in 8 bits."""
    import onnx

    array = onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
    name = str(array.dtype)
    if name in ("int4", "int2"):
        return array.astype(np.int8)
    return array.astype(np.uint8) if name in ("uint4", "uint2") else array


def _difference(actual: np.ndarray, wanted: np.ndarray, rtol: float, atol: float) -> str:
    if actual.shape != wanted.shape or actual.dtype != wanted.dtype:
        return f"{actual.dtype}{actual.shape} instead of {wanted.dtype}{wanted.shape}"
    if wanted.dtype.kind == "f":
        same = np.isclose(actual, wanted, rtol=rtol, atol=atol, equal_nan=True)
    else:
        same = actual == wanted
    return "" if same.all() else f"{np.count_nonzero(~same)} of {same.size} results differ"


def main() -> int:
    """Run everything and print a table; returns 1 if a case fails."""
    results = [run_case(case) for case in cases().values()]
    by_outcome = {outcome: [r for r in results if r.outcome == outcome] for outcome in ("pass", "refused", "fail")}
    for outcome in ("refused", "fail"):
        for result in by_outcome[outcome]:
            print(f"{outcome:8}{result.name}: {result.reason}")
    print()
    print("| ONNX backend node tests of quantization operators | count |")
    print("|---|---|")
    for outcome, found in by_outcome.items():
        print(f"| {outcome} | {len(found)} |")
    print(f"| all | {len(results)} |")
    return 1 if by_outcome["fail"] else 0


if __name__ == "__main__":
    sys.exit(main())
