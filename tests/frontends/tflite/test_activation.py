"""Operators of one tensor and PRELU: against LiteRT."""

import numpy as np
import pytest

from qnn_ext.errors import UnsupportedOperatorError
from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter

from .oracle_cases import assert_equals_reference, cases_of, run_case

OPERATORS = (
    "LOGISTIC TANH HARD_SWISH ELU RELU RELU6 RELU_N1_TO_1 RELU_0_TO_1 LEAKY_RELU PRELU EXP LOG SQRT RSQRT ABS NEG SIGN "
    "CEIL FLOOR ROUND SIN COS"
)


@pytest.mark.parametrize("case", cases_of(OPERATORS))
def test_equals_litert(case):
    assert_equals_reference(case)


@pytest.mark.parametrize("case", cases_of("GELU"))
def test_gelu_equals_litert(case):
    """The float forms 1 + erf and 1 + tanh cancel for large negative x; for the former LiteRT takes erfc."""
    for (output,), (reference,) in zip(run_case(case, "tflite"), case.reference, strict=True):
        if output.dtype == np.float32:
            np.testing.assert_allclose(output, reference, rtol=1e-6, atol=5e-7)
        else:
            np.testing.assert_array_equal(output, reference)


def unary(operator, dtype, values, source, target, numerics="tflite", **options):
    """The operator on a vector; source and target are (scale, zero point)."""
    pytest.importorskip("ai_edge_litert", reason="models are built with ai-edge-litert")
    from tests.conformance.tflite_models import builder

    graph = builder.Graph()
    x = graph.input((len(values),), dtype, builder.Q(*source))
    graph.op(operator, [x], [graph.output((len(values),), dtype, builder.Q(*target))], **options)
    return Interpreter(from_tflite(graph.build(), numerics=numerics))(np.array(values, dtype))


def test_neg_negates_real_values_in_float32():
    q = (0.1, 10)
    np.testing.assert_array_equal(unary("NEG", "int8", [10, 30, -100], q, q, "float32"), [10, -10, 120])
    np.testing.assert_array_equal(unary("NEG", "int8", [10, 30, -100], q, q, "tflite"), [-10, -30, 100])


def test_relu_on_equal_parameters_is_a_clip():
    np.testing.assert_array_equal(unary("RELU6", "int8", [-128, 0, 5, 127], (0.1, 0), (0.1, 0)), [0, 0, 5, 60])


def test_the_sign_of_nan_is_nan():
    pytest.importorskip("ai_edge_litert", reason="models are built with ai-edge-litert")
    from tests.conformance.tflite_models import builder, runner

    graph, values = builder.Graph(), np.float32([np.nan, -2, 0, 3])
    graph.op("SIGN", [graph.input((4,), "float32")], [graph.output((4,), "float32")])
    ((expected,),) = runner.invoke(graph.build(), [[values]], "builtin", stateful=False)
    np.testing.assert_array_equal(Interpreter(from_tflite(graph.build()))(values), expected)


@pytest.mark.parametrize("numerics, kernels", [("tflite", "builtin"), ("float32", "default")])
def test_the_sign_of_what_is_rounded_to_zero(numerics, kernels):
    """TFLite's kernel drops it, XNNPACK's keeps it: 1/√x of such a zero is ±∞."""
    pytest.importorskip("ai_edge_litert", reason="models are built with ai-edge-litert")
    from tests.conformance.tflite_models import builder, runner

    graph, values = builder.Graph(), np.float32([-0.0, 0.0, -0.3, -0.5, 0.5, -1.5, 2.5, -(2.0**-149), np.nan, -np.inf])
    graph.op("ROUND", [graph.input(values.shape, "float32")], [graph.output(values.shape, "float32")])
    ((expected,),) = runner.invoke(graph.build(), [[values]], kernels, stateful=False)
    found = Interpreter(from_tflite(graph.build(), numerics=numerics))(values)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found)[:-2], np.signbit(expected)[:-2])


def test_what_litert_has_no_kernel_for_is_refused():
    with pytest.raises(UnsupportedOperatorError, match=r"SIN #0 .*float"):
        unary("SIN", "int8", [1], (0.1, 0), (0.1, 0))
    with pytest.raises(UnsupportedOperatorError, match=r"ELU #0 .*dtype uint8"):
        unary("ELU", "uint8", [1], (0.1, 0), (0.1, 0))
    with pytest.raises(UnsupportedOperatorError, match=r"TANH #0 .*1/32768"):
        unary("TANH", "int16", [1], (0.1, 0), (0.1, 0))


@pytest.mark.parametrize("scale", [0.01, 1.0])
def test_exp_that_overflows_in_a_part_of_its_domain(scale):
    """16 bits have as much room above zero as below: what stays below may have a range whose exponential overflows."""
    pytest.importorskip("ai_edge_litert", reason="models are built with ai-edge-litert")
    from tests.conformance.tflite_models import builder, runner

    graph, values = builder.Graph(), np.arange(-32768, 32768, dtype=np.int16)
    x = graph.input(values.shape, "int16", builder.Q(scale, 0))
    graph.op("EXP", [x], [graph.output(values.shape, "int16", builder.Q(0.01, 0))])
    ((expected,),) = runner.invoke(graph.build(), [[values]], "reference", stateful=False)
    np.testing.assert_array_equal(Interpreter(from_tflite(graph.build(), numerics="tflite"))(values), expected)
