"""Operators without a product, as GPU kernels: one conformance case of each against the oracle on the emulated GPU."""

from __future__ import annotations

import numpy as np
import pytest

from qnn_ext import Interpreter, from_tflite
from tests.conformance.cases import load_cases

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
