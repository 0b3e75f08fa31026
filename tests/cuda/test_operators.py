"""Operators without a product, as GPU kernels: one conformance case of each against the oracle on the emulated GPU."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from qnn_ext import Interpreter, from_tflite
from qnn_ext import op as qnn
from qnn_ext.op.base import constant
from tests.cases.segments import ARGUMENTS, COEFFICIENTS, arguments
from tests.compiling.program.small import small_module
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


@pytest.mark.one_in(2)
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


def test_several_results_of_one_kernel(rng):
    """Without a workspace."""

    def body(_, x):
        parts = relax.op.split(x[0], 3, axis=1)
        return [relax.op.negative(relax.TupleGetItem(parts, index)) for index in range(3)]

    module = small_module(body, [((4, 9), "float32")])
    values = [rng.standard_normal((4, 9)).astype(np.float32)]
    for output, reference in zip(
        run_model(module, "sm_80", values), Interpreter(module).run(values).values(), strict=True
    ):
        np.testing.assert_array_equal(output, reference)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_truth_values_and_a_scalar_of_bytes(dtype, rng):
    """Vectors of bytes that one byte fills, known at run time, and chosen by a byte for each."""

    def body(_, x):
        return [relax.op.where(x[1], x[0], x[2]), relax.op.maximum(x[0], x[2])]

    module = small_module(body, [((5, 8), dtype), ((5, 8), "bool"), ((), dtype)])
    info = np.iinfo(dtype)
    data = rng.integers(info.min, info.max + 1, (5, 8)).astype(dtype)
    values = [data, rng.random((5, 8)) < 0.5, np.array(info.max - 3, dtype)]
    expected = Interpreter(module).run(values).values()
    for output, reference in zip(run_model(module, "sm_80", values), expected, strict=True):
        np.testing.assert_array_equal(output, reference)


@pytest.mark.parametrize("depth", [2, 40])
def test_products_of_one_row_each(depth, rng):
    """A batch whose only row the epilogue, with the weights' zero point in it, reads by number."""
    weight = constant(rng.integers(-128, 128, (3, 7, depth)).astype(np.int8))
    module = small_module(lambda _, x: [qnn.batch_matmul(x[0], weight, 0, 3, 1.0, 1.0)], [((3, 1, depth), "uint8")])
    values = [rng.integers(0, 256, (3, 1, depth)).astype(np.uint8)]
    for output, reference in zip(
        run_model(module, "sm_80", values), Interpreter(module).run(values).values(), strict=True
    ):
        np.testing.assert_array_equal(output, reference)


def test_piecewise_and_rounding_of_nan(rng):
    values = arguments(rng, (5, 37))
    module = small_module(
        lambda _, x: [
            qnn.quantize(qnn.piecewise(x[0], COEFFICIENTS, *ARGUMENTS), 0.7, 100, out_dtype="uint8"),
            qnn.quantize(x[0], 0.7, 100, out_dtype="uint8"),
        ],
        [(values.shape, "float32")],
    )
    for found, reference in zip(run_model(module, "sm_80", [values]), Interpreter(module)(values), strict=True):
        np.testing.assert_array_equal(found, reference)
