"""Operators of one tensor, element by element, and PRELU. Quantized ones are lookups in tables built at import."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax

from .... import op as qnn
from ....errors import QnnError, UnsupportedOperatorError
from ....numerics import gemmlowp16
from ....numerics import tflite_tables as tables
from ....numerics.multiplier import power_of_two
from ....numerics.reference import domain, saturate
from ....op.base import constant
from ....qparams import QParams
from ...building import sign_or_nan
from ..integers import (
    centered,
    multiply,
    quantized_or_plain,
    require_dtype,
    result_qparams,
    same_dtype,
    tensor_qparams,
)
from ..node import Node, clip_bounds
from ..registry import converter

Table = Callable[[QParams, QParams], np.ndarray]
BYTES = ("int8", "uint8")


def lookup(node: Node, table: Table, supported: tuple[str, ...]) -> relax.Expr:
    """table[x] with table(input QParams, output QParams), for the quantized dtypes LiteRT has a kernel for."""
    require_dtype(node, node.dtype(), *supported, "float32")
    source, target = tensor_qparams(node), result_qparams(node)
    if source.dtype != target.dtype:
        raise node.malformed(f"the input is {source.dtype}, but the output is {target.dtype}")
    try:
        values = table(source, target)
    except QnnError as error:
        raise UnsupportedOperatorError(f"{node.label}: {error}") from error
    return qnn.table(node.input(0), values)


def real_function(node: Node, *supported: str) -> bool:
    """True when the operator works on plain numbers of one of the dtypes, False when it is quantized."""
    if quantized_or_plain(node, 0):
        return False
    require_dtype(node, node.dtype(), *supported)
    return True


# ---- sigmoid, tanh, exp, log, roots ------------------------------------------------------------------------------

# operator -> float function, table, quantized dtypes of LiteRT's kernels
FUNCTIONS: dict[str, tuple[Callable[[relax.Expr], relax.Expr], Table, tuple[str, ...]]] = {
    "LOGISTIC": (relax.op.sigmoid, tables.sigmoid, ("int8", "uint8", "int16")),
    "TANH": (relax.op.tanh, tables.tanh, ("int8", "uint8", "int16")),
    "EXP": (relax.op.exp, tables.exp, ("int8", "int16")),
    "LOG": (relax.op.log, tables.log, ("int8", "int16")),
    "SQRT": (relax.op.sqrt, tables.sqrt, ("int8", "int16")),
    "RSQRT": (relax.op.rsqrt, tables.rsqrt, ("int8", "int16")),
}


@converter("LOGISTIC", "TANH", "RSQRT", max_version=3)
@converter("EXP", "LOG", "SQRT", max_version=2)
def convert_function(node: Node) -> relax.Expr:
    """A function that LiteRT tabulates; for int16 it interpolates between samples."""
    function, table, supported = FUNCTIONS[node.operator.name]
    if real_function(node, "float32"):
        known = XNNPACK_FLOAT.get(node.operator.name)
        if known is not None and node.follows_xnnpack:
            return qnn.float_function(node.input(0), known)
        return function(node.input(0))
    if node.delegated:
        return lookup(node, XNNPACK[node.operator.name], BYTES)
    optimized = OPTIMIZED_INT16.get(node.operator.name)
    if optimized is not None and node.dtype() == "int16" and not node.reference_kernels:
        return lookup(node, lambda source, target: optimized(source, target, table), supported)
    return lookup(node, table, supported)


def _int16_sigmoid(source: QParams, target: QParams, reference: Table) -> np.ndarray:
    """LiteRT's optimized kernel takes Q3.12 to gemmlowp's function, all other scales to the reference table."""
    values = reference(source, target)
    return gemmlowp16.logistic_table() if _left_shift(source) == 0 else values


def _int16_tanh(source: QParams, target: QParams, reference: Table) -> np.ndarray:
    """The same; it takes Q4.11 too, shifted to Q3.12."""
    values, shift = reference(source, target), _left_shift(source)
    if shift not in (0, 1):
        return values
    shifted = saturate(domain("int16").astype(np.int64) << shift, "int16")
    return gemmlowp16.tanh_table(3)[shifted.astype(np.int64) + 32768]


def _left_shift(source: QParams) -> int | None:
    """Of Q3.12's scale to a power of two, None for other scales."""
    exponent = power_of_two(source.scale)
    return None if exponent is None else exponent + 12


XNNPACK = {"ELU": tables.xnnpack_elu, "LOGISTIC": tables.xnnpack_sigmoid, "TANH": tables.xnnpack_tanh}
XNNPACK_FLOAT = {
    "COS": "xnnpack_cos",
    "ELU": "xnnpack_elu",
    "EXP": "xnnpack_exp",
    "LOG": "xnnpack_log",
    "LOGISTIC": "xnnpack_sigmoid",
    "SIN": "xnnpack_sin",
    "TANH": "xnnpack_tanh",
}
OPTIMIZED_INT16 = {"LOGISTIC": _int16_sigmoid, "TANH": _int16_tanh}


@converter("HARD_SWISH", max_version=1)
def convert_hard_swish(node: Node) -> relax.Expr:
    """x · clip(x + 3, 0, 6) / 6; XNNPACK's floats are clip(x / 6 + ½, 0, 1) · x, the former rounded once."""
    if not real_function(node, "float32"):
        return lookup(node, tables.hardswish, BYTES)
    x = node.input(0)
    if not node.reference_kernels:
        line = node.emit(qnn.fma(x, constant(np.float32(1 / 6)), constant(np.float32(0.5))))
        return relax.op.multiply(node.emit(relax.op.clip(line, 0, 1)), x)
    gate = node.emit(relax.op.clip(node.emit(relax.op.add(x, constant(np.float32(3)))), 0, 6))
    return relax.op.divide(node.emit(relax.op.multiply(x, gate)), constant(np.float32(6)))


@converter("ELU", max_version=1)
def convert_elu(node: Node) -> relax.Expr:
    """x for x ≥ 0, else eˣ − 1."""
    if not real_function(node, "float32"):
        return lookup(node, XNNPACK["ELU"] if node.delegated else tables.elu, ("int8",))
    x = node.input(0)
    if node.follows_xnnpack:
        return qnn.float_function(x, XNNPACK_FLOAT["ELU"])
    below = relax.op.subtract(node.emit(relax.op.exp(x)), constant(np.float32(1)))
    return relax.op.where(_negative(node, x), node.emit(below), x)


@converter("GELU", max_version=2)
def convert_gelu(node: Node) -> relax.Expr:
    """x·Φ(x), or its approximation with tanh."""
    approximate = bool(node.options["approximate"])
    if real_function(node, "float32"):
        if node.follows_xnnpack:
            return qnn.float_function(node.input(0), "xnnpack_gelu_tanh" if approximate else "xnnpack_gelu")
        return (relax.op.nn.gelu_tanh if approximate else relax.op.nn.gelu)(node.input(0))
    return lookup(node, lambda source, target: tables.gelu(source, target, approximate), (*BYTES, "int16"))


# ---- piecewise linear --------------------------------------------------------------------------------------------

RELU_RANGES: dict[str, tuple[float | None, float | None]] = {
    "RELU": (0.0, None),
    "RELU6": (0.0, 6.0),
    "RELU_N1_TO_1": (-1.0, 1.0),
    "RELU_0_TO_1": (0.0, 1.0),
}


@converter("RELU", "RELU6", max_version=3)
@converter("RELU_N1_TO_1", "RELU_0_TO_1", max_version=1)
def convert_relu(node: Node) -> relax.Expr:
    """Rescaled, then clipped."""
    low, high = RELU_RANGES[node.operator.name]
    if real_function(node, "float32"):
        return relax.op.nn.relu(node.input(0)) if high is None else relax.op.clip(node.input(0), low, high)
    supported = (*BYTES, "int16") if node.operator.name in ("RELU", "RELU6") else BYTES
    require_dtype(node, node.dtype(), *supported)
    source, target = tensor_qparams(node), result_qparams(node)
    value = node.input(0)
    if source != target:
        factor = float(source.scale / target.scale)  # a float32 quotient
        value = multiply(node, centered(node, 0), factor, int(target.zero_point), target.dtype, node.rounding)
    return relax.op.clip(value, *clip_bounds(target, low, high))


@converter("LEAKY_RELU", max_version=2)
def convert_leaky_relu(node: Node) -> relax.Expr:
    """x for x ≥ 0, else alpha·x; alpha may be above 1 or negative."""
    alpha = float(node.options["alpha"])
    if not real_function(node, "float32"):
        if node.delegated:
            return lookup(node, lambda source, target: xnnpack_leaky_relu(source, target, alpha), BYTES)
        signed = node.dtype() == "int16" and not node.reference_kernels
        return lookup(node, lambda source, target: tables.leaky_relu(source, target, alpha, signed), (*BYTES, "int16"))
    x = node.input(0)
    return relax.op.where(_negative(node, x), node.emit(relax.op.multiply(x, constant(np.float32(alpha)))), x)


def xnnpack_leaky_relu(source: QParams, target: QParams, alpha: float) -> np.ndarray:
    """Multipliers with 8 fraction bits, midpoints up (xnn_qs8_vlrelu_ukernel)."""
    positive = np.float32(source.scale) / np.float32(target.scale)
    upper, lower = (int(np.rint(np.float32(256) * scale)) for scale in (positive, positive * np.float32(alpha)))
    x = domain(source.dtype).astype(np.int32) - int(source.zero_point)
    rounded = (x * np.where(x >= 0, upper, lower) + 128) >> 8
    return saturate(rounded + int(target.zero_point), target.dtype)


@converter("PRELU", max_version=1)
def convert_prelu(node: Node) -> relax.Expr:
    """x for x ≥ 0, else alpha·x; the slopes broadcast to the input's shape. 16-bit inputs come with 8-bit slopes:
    LiteRT reads the bytes of 16-bit slopes as if they were 8-bit."""
    if not quantized_or_plain(node, 0, 1):
        require_dtype(node, same_dtype(node, 0, 1), "float32")
        x = node.input(0)
        return relax.op.where(_negative(node, x), node.emit(relax.op.multiply(x, node.input(1))), x)
    if node.dtype(1) != ("int8" if node.dtype(0) == "int16" else node.dtype(0)):
        raise node.unsupported(f"slopes of dtype {node.dtype(1)} for an input of dtype {node.dtype(0)}")
    source, slopes, target = tensor_qparams(node, 0), tensor_qparams(node, 1), result_qparams(node)
    return qnn.prelu(
        node.input(0),
        node.input(1),
        source.scale,
        source.zero_point,
        slopes.scale,
        slopes.zero_point,
        target.scale,
        target.zero_point,
        rounding=node.rounding,
        out_dtype=target.dtype,
    )


def _negative(node: Node, x: relax.Expr) -> relax.Expr:
    return node.emit(relax.op.less(x, constant(np.float32(0))))


# ---- sign and rounding -------------------------------------------------------------------------------------------


@converter("ABS", max_version=5)
def convert_abs(node: Node) -> relax.Expr:
    """|x|."""
    if real_function(node, "float32", "int16", "int32"):
        return relax.op.abs(node.input(0))
    return lookup(node, tables.absolute, ("int8", "int16"))


@converter("NEG", max_version=1)
def convert_neg(node: Node) -> relax.Expr:
    """−x. LiteRT negates the stored integers of quantized tensors; numerics "float32" negates the real values."""
    if real_function(node, "float32", "int8", "int16", "int32", "int64"):
        return relax.op.negative(node.input(0))
    negated = tables.negative if node.reference_kernels else negated_table
    return lookup(node, negated, ("int8", "int16"))


def negated_table(source: QParams, target: QParams) -> np.ndarray:
    """−x of real values."""
    return tables.table_8bit(np.negative, source, target)


@converter("SIGN", max_version=2)
def convert_sign(node: Node) -> relax.Expr:
    """−1, 0, 1 or NaN."""
    if not real_function(node, "float32", "int32"):
        raise node.unsupported("a quantized input")
    return sign_or_nan(node.emit, node.input(0))


FLOAT_ONLY = {
    "CEIL": relax.op.ceil,
    "FLOOR": relax.op.floor,
    "SIN": relax.op.sin,
    "COS": relax.op.cos,
}


@converter(*FLOAT_ONLY, max_version=1)
def convert_float_only(node: Node) -> relax.Expr:
    """LiteRT has float kernels only."""
    known, x = XNNPACK_FLOAT.get(node.operator.name), _only_float(node)
    if known is not None and node.follows_xnnpack:
        return qnn.float_function(x, known)
    return FLOAT_ONLY[node.operator.name](x)


@converter("ROUND", max_version=1)
def convert_round(node: Node) -> relax.Expr:
    """Ties to even. Negative numbers that become zero lose their sign in TFLite's kernel, but not in XNNPACK's."""
    x = _only_float(node)
    rounded = node.emit(relax.op.round(x))
    if not node.reference_kernels:
        return rounded
    zero = constant(np.float32(0))
    vanished = node.emit(relax.op.logical_and(relax.op.equal(rounded, zero), relax.op.less(x, zero)))
    return relax.op.where(vanished, zero, rounded)


def _only_float(node: Node) -> relax.Expr:
    if not real_function(node, "float32"):
        raise node.unsupported("a quantized input; LiteRT only has a float kernel")
    return node.input(0)
