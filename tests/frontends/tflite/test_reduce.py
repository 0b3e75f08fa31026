"""Reductions, ARG_MAX, ARG_MIN, CUMSUM: against LiteRT."""

import numpy as np
import pytest

from qnn_ext.errors import ModelFormatError, UnsupportedOperatorError
from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter

from .oracle_cases import assert_equals_reference, cases_of, run_case

SUM = cases_of("SUM")
INT8_SUM = [p for p in SUM if p.id.startswith("SUM/int8/")]
OPERATORS = "MEAN REDUCE_MAX REDUCE_MIN REDUCE_PROD REDUCE_ANY REDUCE_ALL ARG_MAX ARG_MIN CUMSUM"


@pytest.mark.parametrize("case", [*cases_of(OPERATORS), *(p for p in SUM if p not in INT8_SUM)])
def test_equals_litert(case):
    assert_equals_reference(case)


@pytest.mark.parametrize("case", INT8_SUM)
def test_int8_sum_is_within_one_of_litert(case):
    """LiteRT's reference kernel reads int8 as uint8, so the golden is the optimized kernel's, which sums in float32."""
    for (output,), (golden,) in zip(run_case(case, "tflite"), case.reference, strict=True):
        assert output.shape == golden.shape
        assert np.abs(output.astype(int) - golden).max() <= 1


def reduction(operator, shape, dtype, axes, q=None, numerics="tflite", **options):
    """The imported model of one reduction."""
    pytest.importorskip("ai_edge_litert", reason="models are built with ai-edge-litert")
    from tests.conformance.tflite_models import builder

    graph = builder.Graph()
    quantization = builder.Q(*q) if q else None
    x = graph.input(shape, dtype, quantization)
    y = graph.output([n for i, n in enumerate(shape) if i not in axes], dtype, quantization)
    graph.op(operator, [x, graph.const(axes, "int32")], [y], **options)
    return from_tflite(graph.build(), numerics=numerics)


@pytest.mark.parametrize("operator", ["MEAN", "SUM", "REDUCE_MAX", "REDUCE_PROD"])
def test_no_axes_leave_the_tensor_as_it_is(operator):
    x = np.int8([[1, -3, 5], [7, 8, 9]])
    np.testing.assert_array_equal(Interpreter(reduction(operator, (2, 3), "int8", [], (1.0, 0)))(x), x)
    wide = x.astype(np.int32)
    np.testing.assert_array_equal(Interpreter(reduction(operator, (2, 3), "int32", []))(wide), wide)


def test_product_that_overflows_wraps_around():
    module = reduction("REDUCE_PROD", (6,), "int16", [0], (0.001, 0), numerics="float32")
    assert int(Interpreter(module)(np.full(6, 32767, np.int16))) == -32768


def test_long_quantized_products_are_refused():
    with pytest.raises(UnsupportedOperatorError, match=r"REDUCE_PROD #0 .*1000 factors"):
        reduction("REDUCE_PROD", (1000,), "int8", [0], (0.1, 0))


def test_axes_out_of_range():
    with pytest.raises(ModelFormatError, match=r"MEAN #0 .*out of range"):
        reduction("MEAN", (2, 3), "int8", [2], (0.1, 0))
