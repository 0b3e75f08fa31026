"""Matrix products of com.microsoft against ONNX Runtime: integers and floats equal where the product is quantized."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import ModelFormatError

from .single_op import MICROSOFT, compare, const, ends, full_range, single_op

DTYPES = [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)]
FORMS = [
    ({}, (5, 24), (24, 7)),
    ({"transA": 1, "alpha": 1.7}, (24, 5), (24, 7)),
    ({"transB": 1, "alpha": 0.3}, (5, 24), (7, 24)),
]


@pytest.mark.parametrize("a_dtype,b_dtype", DTYPES)
@pytest.mark.parametrize("attributes,a_shape,b_shape", FORMS)
@pytest.mark.parametrize("quantized", [True, False])
def test_qgemm(quantized, attributes, a_shape, b_shape, a_dtype, b_dtype, rng):
    inputs = [
        full_range(rng, a_dtype, *a_shape),
        const(0.1),
        const(ends(a_dtype)[1], a_dtype),
        const(full_range(rng, b_dtype, *b_shape), b_dtype),
        const(np.linspace(0.01, 0.02, 7)),
        const(full_range(rng, b_dtype, 7), b_dtype),
        const(rng.integers(-9000, 9000, 7), np.int32),
    ]
    result = [const(0.7), const(ends(a_dtype)[0], a_dtype)] if quantized else []
    compare("QGemm", [*inputs, *result], [a_dtype if quantized else np.float32], domain=MICROSOFT, **attributes)


@pytest.mark.parametrize("bias_shape", [(), (1,), (5, 1), (1, 7), (5, 7), None])
def test_qgemm_bias_shapes(bias_shape, rng):
    a, b = full_range(rng, np.uint8, 5, 24), full_range(rng, np.int8, 24, 7)
    bias = None if bias_shape is None else rng.integers(-9000, 9000, bias_shape).astype(np.int32)
    inputs = [
        a,
        const(0.1),
        const(3, np.uint8),
        b,
        const(0.02),
        const(-5, np.int8),
        bias,
        const(0.4),
        const(9, np.uint8),
    ]
    compare("QGemm", inputs, [np.uint8], domain=MICROSOFT)


def test_qgemm_of_a_vector_is_refused(rng):
    inputs = [
        full_range(rng, np.uint8, 24),
        const(0.1),
        const(3, np.uint8),
        const(full_range(rng, np.int8, 24, 7), np.int8),
    ]
    model, _ = single_op("QGemm", [*inputs, const(0.1), const(0, np.int8)], [np.float32], domain=MICROSOFT)
    with pytest.raises(ModelFormatError, match=r"QGemm.*matrix"):
        qnn_ext.from_onnx(model)


@pytest.mark.parametrize("a_dtype,b_dtype", DTYPES)
@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("per_column", [True, False])
def test_matmul_integer_to_float(per_column, constant, a_dtype, b_dtype, rng):
    b = full_range(rng, b_dtype, 24, 7)
    inputs = [
        full_range(rng, a_dtype, 2, 5, 24),
        const(b, b_dtype) if constant else b,
        const(0.1),
        const(np.linspace(0.01, 0.02, 7) if per_column else 0.03),
        const(ends(a_dtype)[2], a_dtype),
        const(full_range(rng, b_dtype, 7) if per_column else 3, b_dtype),
        const(rng.standard_normal(7)),
    ]
    compare("MatMulIntegerToFloat", inputs, [np.float32], domain=MICROSOFT)


@pytest.mark.parametrize("b_dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("constant", [True, False])
def test_dynamic_quantize_matmul(constant, b_dtype, rng):
    b = full_range(rng, b_dtype, 24, 7)
    rest = [
        const(np.linspace(0.01, 0.02, 7)),
        const(full_range(rng, b_dtype, 7), b_dtype),
        const(rng.standard_normal(7)),
    ]
    data = rng.standard_normal((2, 5, 24)).astype(np.float32)
    compare(
        "DynamicQuantizeMatMul", [data, const(b, b_dtype) if constant else b, *rest], [np.float32], domain=MICROSOFT
    )
    compare("DynamicQuantizeMatMul", [data, const(b, b_dtype), const(0.02)], [np.float32], domain=MICROSOFT)


@pytest.mark.parametrize("attributes", [{}, {"transA": 1, "transB": 1, "alpha": 0.3}])
def test_fused_matmul(attributes, rng):
    shapes = ((3, 16, 5), (3, 7, 16)) if attributes else ((3, 5, 16), (16, 7))
    operands = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    compare("FusedMatMul", operands, [np.float32], 1e-6, domain=MICROSOFT, **attributes)


@pytest.mark.parametrize("name", ["FusedMatMul", "TransposeMatMul"])
@pytest.mark.parametrize(
    "a_shape, b_shape, attributes",
    [
        ((5, 3, 2, 16), (3, 2, 16, 7), {"transBatchA": 1}),
        ((3, 2, 5, 16), (16, 3, 2, 7), {"transBatchB": 1}),
        ((16, 3, 5), (7, 3, 16), {"transBatchA": 1, "transA": 1, "transBatchB": 1, "transB": 1, "alpha": 0.3}),
    ],
)
def test_fused_matmul_of_moved_batches(name, a_shape, b_shape, attributes, rng):
    if name == "TransposeMatMul":
        a_shape, b_shape, attributes = (3, 16, 5), (3, 7, 16), {"transA": 1, "transB": 1}
    operands = [rng.standard_normal(shape).astype(np.float32) for shape in (a_shape, b_shape)]
    compare(name, operands, [np.float32], 1e-6, domain=MICROSOFT, **attributes)
