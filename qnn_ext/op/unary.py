"""Functions of one quantized value: sigmoid, tanh, exp, ... Each is a lookup table, computed by `unary_table`.

No function here has its own kernel: `qnn.table` computes them all. relu and its variants are R.clip.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import relax

from ..errors import QnnError, ShapeError
from ..numerics import tflite_tables
from ..qparams import QParams
from .base import (
    OPS,
    Shape,
    TensorInfo,
    as_expr,
    check_dtype,
    check_out_dtype,
    check_qparams,
    define,
    export_to_script,
)
from .table import function_table, table_index
from .traits import Data, Kind, Output, Traits

DTYPES = ("int8", "uint8", "int16")
ROUNDINGS = ("TONEAREST_EVEN", "TONEAREST", "TFLITE")


@dataclass(frozen=True)
class Unary:
    """One function: its formula for the docstring, in NumPy on float64, TFLite's table, and parameters with defaults.

    tflite: (source, target, **parameters) -> table; None if TFLite has no quantized kernel.
    """

    formula: str
    function: Callable[..., np.ndarray]
    tflite: Callable[..., np.ndarray] | None = None
    parameters: dict[str, Any] = field(default_factory=dict)


def _gelu(x: np.ndarray, approximate: bool) -> np.ndarray:
    if approximate:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * tflite_tables.erfc(-x * math.sqrt(0.5))


UNARY: dict[str, Unary] = {
    "sigmoid": Unary("1 / (1 + exp(−x))", lambda x: 1 / (1 + np.exp(-x)), tflite_tables.sigmoid),
    "tanh": Unary("tanh(x)", np.tanh, tflite_tables.tanh),
    "exp": Unary("exp(x)", np.exp, tflite_tables.exp),
    "log": Unary("ln(x); the zero point for x < 0, the lowest value for 0", np.log, tflite_tables.log),
    "sqrt": Unary("√x; the zero point for x < 0", np.sqrt, tflite_tables.sqrt),
    "rsqrt": Unary(
        "1 / √x; the zero point for x < 0, the highest value for 0", lambda x: 1 / np.sqrt(x), tflite_tables.rsqrt
    ),
    "erf": Unary("erf(x)", tflite_tables.erf),
    "hardswish": Unary("x · clip(x + 3, 0, 6) / 6", lambda x: x * np.clip(x + 3, 0, 6) / 6, tflite_tables.hardswish),
    "gelu": Unary(
        "x · (1 + erf(x / √2)) / 2, or x · (1 + tanh(√(2/π)·(x + 0.044715·x³))) / 2 when `approximate`",
        _gelu,
        tflite_tables.gelu,
        {"approximate": False},
    ),
    "abs": Unary("|x|", np.abs, tflite_tables.absolute),
    "neg": Unary("−x", np.negative, tflite_tables.negative),
    "elu": Unary(
        "x for x ≥ 0, alpha · (exp(x) − 1) for x < 0",
        lambda x, alpha: np.where(x < 0, alpha * np.expm1(x), x),
        tflite_tables.elu,
        {"alpha": 1.0},
    ),
    "leaky_relu": Unary(
        "x for x ≥ 0, alpha · x for x < 0",
        lambda x, alpha: np.where(x < 0, alpha * x, x),
        tflite_tables.leaky_relu,
        {"alpha": 0.01},
    ),
}


def unary_table(
    name: str, source: QParams, target: QParams, rounding: str = "TONEAREST_EVEN", **parameters: Any
) -> np.ndarray:
    """The table of target.quantize(function(source.dequantize(q))) for every q: 256 entries, or 65536 for int16.

    rounding: "TONEAREST_EVEN" or "TONEAREST" of function(x)/s_out in float32, with the function exact to float32;
              "TFLITE": what LiteRT's reference kernel computes. Raises QnnError when there is no such kernel.
    """
    unary = UNARY[name]
    parameters = {**unary.parameters, **parameters}
    if rounding == "TFLITE":
        if unary.tflite is None:
            raise QnnError(f"rounding TFLITE: TFLite has no quantized kernel for {name}")
        return unary.tflite(source, target, **parameters)
    if rounding not in ROUNDINGS:
        raise QnnError(f"rounding must be one of {', '.join(ROUNDINGS)}, found {rounding!r}")

    def function(x: np.ndarray) -> np.ndarray:
        return unary.function(x.astype(np.float64), **parameters)

    return function_table(function, source, target, rounding)


def _infer(
    data: TensorInfo,
    input_scale: TensorInfo,
    input_zero_point: TensorInfo,
    output_scale: TensorInfo,
    output_zero_point: TensorInfo,
    *,
    rounding: str,
    out_dtype: str,
    **parameters: Any,
) -> tuple[Shape, str]:
    check_dtype(data, *DTYPES)
    check_qparams(input_scale, input_zero_point)
    check_qparams(output_scale, output_zero_point)
    check_out_dtype(out_dtype, *DTYPES)
    if rounding not in ROUNDINGS:
        raise QnnError(f"rounding must be one of {', '.join(ROUNDINGS)}, found {rounding!r}")
    if rounding == "TFLITE" and out_dtype != data.dtype:
        raise ShapeError(f"rounding TFLITE keeps the dtype, found {data.dtype} -> {out_dtype}")
    return data.shape, out_dtype


def _reference(name: str) -> Callable[..., np.ndarray]:
    def run(
        data: np.ndarray,
        input_scale: np.ndarray,
        input_zero_point: np.ndarray,
        output_scale: np.ndarray,
        output_zero_point: np.ndarray,
        *,
        rounding: str,
        out_dtype: str,
        **parameters: Any,
    ) -> np.ndarray:
        source = QParams(input_scale, input_zero_point, str(data.dtype))
        target = QParams(output_scale, output_zero_point, out_dtype)
        return unary_table(name, source, target, rounding, **parameters)[table_index(data)]

    return run


DOCSTRING = """q = saturate(round(y / s_out) + z_out), y = {formula}, x = (data − z_in) · s_in.

data: int8, uint8 or int16 of any shape; scales float, zero points int32: scalars
rounding:  "TONEAREST_EVEN" or "TONEAREST" (midpoints away from zero) of float32 values; {tflite}
out_dtype: int8, uint8 or int16, by default that of data; TFLITE keeps data's

Raises ShapeError, QnnError. Source: {source}.
"""


def _builder(name: str) -> Callable[..., relax.Call]:
    unary = UNARY[name]

    def build(
        data: relax.Expr,
        input_scale: relax.Expr,
        input_zero_point: relax.Expr,
        output_scale: relax.Expr,
        output_zero_point: relax.Expr,
        rounding: str = "TONEAREST_EVEN",
        out_dtype: str | None = None,
        **parameters: Any,
    ) -> relax.Call:
        unknown = set(parameters) - set(unary.parameters)
        if unknown:
            raise TypeError(f"qnn.{name} has no attribute {', '.join(sorted(unknown))}")
        data = as_expr(data)
        return OPS[name].call(
            data,
            input_scale,
            input_zero_point,
            output_scale,
            output_zero_point,
            rounding=rounding,
            out_dtype=out_dtype or str(data.ty.dtype),
            **{**unary.parameters, **parameters},
        )

    build.__name__ = build.__qualname__ = name
    build.__doc__ = DOCSTRING.format(
        formula=unary.formula,
        tflite='"TFLITE": LiteRT\'s reference kernel, bit for bit' if unary.tflite else "TFLite has no such kernel",
        source="the function's lookup table, as Relay's qnn legalization of unary operators",
    )
    return build


TRAITS = Traits(
    Kind.POINTWISE,
    data=(Data("data", "input_scale", "input_zero_point"),),
    output=Output("output_scale", "output_zero_point"),
)
BUILDERS: dict[str, Callable[..., relax.Call]] = {}
for _name, _unary in UNARY.items():
    define(
        _name,
        "data input_scale input_zero_point output_scale output_zero_point",
        _infer,
        _reference(_name),
        TRAITS,
        f"quantized {_name}: {_unary.formula}",
    )
    BUILDERS[_name] = _builder(_name)

export_to_script(**BUILDERS)

abs = BUILDERS["abs"]
elu = BUILDERS["elu"]
erf = BUILDERS["erf"]
exp = BUILDERS["exp"]
gelu = BUILDERS["gelu"]
hardswish = BUILDERS["hardswish"]
leaky_relu = BUILDERS["leaky_relu"]
log = BUILDERS["log"]
neg = BUILDERS["neg"]
rsqrt = BUILDERS["rsqrt"]
sigmoid = BUILDERS["sigmoid"]
sqrt = BUILDERS["sqrt"]
tanh = BUILDERS["tanh"]
