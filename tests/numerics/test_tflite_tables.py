"""Every table of numerics.tflite_tables over its whole domain against LiteRT's reference kernel."""

import numpy as np
import pytest

from qnn_ext.errors import QnnError
from qnn_ext.numerics import tflite_tables as tables
from qnn_ext.numerics.reference import domain
from qnn_ext.qparams import QParams, dtype_range

LOW, ODD, MID = -128, -5, 0  # zero points of int8


def qparams(dtype, scale, zero_point):
    """int8 settings carried over to the dtype."""
    if dtype == "int16":
        return QParams(np.float32(scale / 256), 0, dtype)
    return QParams(np.float32(scale), zero_point + (128 if dtype == "uint8" else 0), dtype)


def check(operator, table, source, target, values=None, **options):
    """The table equals LiteRT's kernel on every value (or on `values`)."""
    from tests.op.litert import run_reference

    values = domain(source.dtype) if values is None else values
    golden = run_reference(operator, [(values, source)], values.shape, target, **options)
    np.testing.assert_array_equal(table[values.astype(int) - dtype_range(source.dtype)[0]], golden)


SETTINGS = [
    ((0.05, ODD), (0.05, ODD)),
    ((0.021, 127), (0.043, LOW)),
    ((0.1, LOW), (0.07, MID)),
    ((0.0078125, MID), (0.0078125, MID)),
    ((0.0123, 17), (0.3, 99)),
    ((0.37, 3), (3321.4, -108)),
    ((1e-7, 3), (0.5, 7)),
]


@pytest.mark.parametrize("source,target", SETTINGS)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("name", ["HARD_SWISH", "TANH", "GELU", "GELU_TANH", "ELU", "EXP"])
def test_8bit(name, dtype, source, target):
    if dtype == "uint8" and name in ("ELU", "EXP"):
        pytest.skip("LiteRT has no such kernel")
    functions = {
        "HARD_SWISH": tables.hardswish,
        "TANH": tables.tanh,
        "GELU": tables.gelu,
        "GELU_TANH": lambda s, t: tables.gelu(s, t, True),
        "ELU": tables.elu,
        "EXP": tables.exp,
    }
    source, target = qparams(dtype, *source), qparams(dtype, *target)
    options = {"approximate": name == "GELU_TANH"} if name.startswith("GELU") else {}
    check(name.removesuffix("_TANH"), functions[name](source, target), source, target, **options)


@pytest.mark.parametrize("scale", [0.001, 0.0078125, 0.0234, 0.05, 0.1, 1 / 3])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_sigmoid_8bit(dtype, scale):
    for zero_point in (LOW, ODD, MID, 127):
        source, target = qparams(dtype, scale, zero_point), qparams(dtype, 1 / 256, LOW)
        check("LOGISTIC", tables.sigmoid(source, target), source, target)


@pytest.mark.parametrize(
    "scale", [2.0**-12, 2.0**-11, 2.0**-13, 1e-5, 0.05 / 256, 0.1 / 256, 1 / 3000, 0.01, 1e-9, 3.0]
)
def test_sigmoid_and_tanh_16bit(scale):
    source, target = QParams(np.float32(scale), 0, "int16"), QParams(np.float32(2.0**-15), 0, "int16")
    check("LOGISTIC", tables.sigmoid(source, target), source, target)
    check("TANH", tables.tanh(source, target), source, target)


@pytest.mark.parametrize("alpha", [0.1, 0.3, 1.7, 0.01, -0.25, 0.0])
@pytest.mark.parametrize("source,target", SETTINGS)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_leaky_relu(dtype, source, target, alpha):
    source, target = qparams(dtype, *source), qparams(dtype, *target)
    check("LEAKY_RELU", tables.leaky_relu(source, target, alpha), source, target, alpha=alpha)


@pytest.mark.parametrize("source,target", SETTINGS)
@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_abs(dtype, source, target):
    source, target = qparams(dtype, *source), qparams(dtype, *target)
    check("ABS", tables.absolute(source, target), source, target)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_neg(dtype):
    source, target = qparams(dtype, 0.05, ODD), qparams(dtype, 0.07, MID)
    check("NEG", tables.negative(source, target), source, target)


@pytest.mark.parametrize("scale,out", [(0.05, 0.05), (0.021, 0.03), (1.3, 0.1), (0.0007, 0.04), (3.0, 0.001)])
@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_log(dtype, scale, out):
    for zero_points in [(LOW, LOW), (MID, ODD), (LOW, 100)]:
        source, target = qparams(dtype, scale, zero_points[0]), qparams(dtype, out, zero_points[1])
        check("LOG", tables.log(source, target), source, target)


@pytest.mark.parametrize("scale,out", [(0.05, 0.02), (0.021, 0.05), (1.3, 0.01), (0.0007, 0.4), (3.0, 0.001)])
@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_rsqrt(dtype, scale, out):
    for zero_points in [(LOW, LOW), (MID, ODD), (-17, 100)]:
        source, target = qparams(dtype, scale, zero_points[0]), qparams(dtype, out, zero_points[1])
        values = domain(dtype)
        values = values[values >= source.zero_point]
        check("RSQRT", tables.rsqrt(source, target), source, target, values)


@pytest.mark.parametrize("scale,out", [(0.05, 0.02), (0.021, 0.05), (1.3, 0.01), (0.0007, 0.4), (3.0, 0.001)])
@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_sqrt(dtype, scale, out):
    for zero_points in [(LOW, LOW), (MID, ODD), (-17, 100)]:
        source, target = qparams(dtype, scale, zero_points[0]), qparams(dtype, out, zero_points[1])
        values = domain(dtype)
        values = values[values >= source.zero_point]
        check("SQRT", tables.sqrt(source, target), source, target, values)


@pytest.mark.parametrize("scale,out", [(0.05, 0.02), (0.03, 0.2), (0.002, 0.001), (0.1, 3.0)])
@pytest.mark.parametrize("approximate", [False, True])
def test_gelu_16bit(approximate, scale, out):
    source, target = qparams("int16", scale, 0), qparams("int16", out, 0)
    check("GELU", tables.gelu(source, target, approximate), source, target, approximate=approximate)


@pytest.mark.parametrize("scale,out", [(0.05, 0.02), (0.03, 0.2), (0.002, 0.001), (0.1, 3.0)])
def test_exp_16bit(scale, out):
    source, target = qparams("int16", scale, 0), qparams("int16", out, 0)
    check("EXP", tables.exp(source, target), source, target)


def test_errors():
    int16 = QParams(0.1, 0, "int16")
    for function in (tables.hardswish, tables.elu):
        with pytest.raises(QnnError, match="int16"):
            function(int16, int16)
    with pytest.raises(QnnError, match="1/32768"):
        tables.tanh(int16, int16)
    with pytest.raises(QnnError, match="1/128"):
        tables.hardswish(QParams(1.0, 0), QParams(0.001, 0))


@pytest.mark.parametrize(("table", "middle"), [(tables.sigmoid, 16384), (tables.tanh, 0)])
def test_16_bit_scales_that_vanish(table, middle):
    """Where nothing remains of the multiplier every input is zero."""
    source, target = QParams(np.float32(1e-30), 0, "int16"), QParams(np.float32(2.0**-15), 0, "int16")
    assert np.all(table(source, target) == middle)
