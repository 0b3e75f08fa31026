"""Operators without a product, as GPU kernels: one conformance case of each against the oracle on the emulated GPU."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from qnn_ext import Interpreter, from_tflite
from tests.conformance.cases import load_cases
from tests.program.small import small_module

from .models import run_model

# What bundled models do not have: sorting, loops over data, reductions of all kinds, moves, tables, float functions
OPERATORS = (
    "ARG_MAX",
    "CUMSUM",
    "DIV",
    "GATHER",
    "L2_NORMALIZATION",
    "LOG_SOFTMAX",
    "MAX_POOL_2D",
    "MIRROR_PAD",
    "PACK",
    "PRELU",
    "REDUCE_MAX",
    "RESIZE_BILINEAR",
    "SOFTMAX",
    "SPACE_TO_DEPTH",
    "SPLIT",
    "STRIDED_SLICE",
    "SUM",
    "SVDF",
    "TFLite_Detection_PostProcess",
    "TOPK_V2",
    "TRANSPOSE_CONV",
)


@pytest.mark.parametrize("operator", OPERATORS)
def test_equals_oracle(operator):
    cases = [case for case in load_cases(operator) if "/int8/" in case.name] or load_cases(operator)
    case = cases[OPERATORS.index(operator) % len(cases)]  # another variant for each operator
    module = from_tflite(case.model, numerics="tflite")
    values = case.inputs[0]
    expected = list(Interpreter(module).run(values).values())
    inputs = [values[spec.name] for spec in module.inputs] if isinstance(values, dict) else list(values)
    found = run_model(module, "sm_80", inputs)[: len(expected)]
    for output, reference in zip(found, expected, strict=True):
        np.testing.assert_array_equal(output, reference)


@pytest.mark.parametrize(("shape", "axis"), [((4, 300), 1), ((1, 128, 3), None), ((6, 5), 0)], ids=str)
def test_extremes_of_infinities_and_nan(shape, axis, rng):
    """Threads share a row from −∞ on."""
    reduced = small_module(
        lambda _, x: [relax.op.max(x[0], axis, keepdims=True), relax.op.min(x[0], axis, keepdims=True)],
        [(shape, "float32")],
    )
    values = rng.standard_normal(shape).astype(np.float32)
    nan = np.where(values > 2, np.float32(np.nan), values)
    for data in (values, nan, np.full_like(values, -np.inf), np.full_like(values, np.inf)):
        for found, reference in zip(run_model(reduced, "sm_80", [data]), (np.max, np.min), strict=True):
            np.testing.assert_array_equal(found, reference(data, axis, keepdims=True))
