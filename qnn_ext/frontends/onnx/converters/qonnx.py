"""QONNX (Brevitas, FINN, hls4ml): Quant, BipolarQuant and Trunc, each of which quantizes to some width and dequantizes.

They are written as quantize → clip → dequantize, so that what lies between two of them is computed in integers. Widths
that no dtype has are held in the next wider one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from .... import op as qnn
from ....op.base import along_axis, constant, constant_value
from ....qparams import dtype_range
from ..node import Node
from ..registry import converter
from .arithmetic import number, over, plus, times

DOMAINS = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general")

_HELD_AS = {True: ("int8", "int16", "int32"), False: ("uint8", "uint16", "int32")}  # signed -> dtypes, narrowest first
_MOST_BITS = {True: 32, False: 31}
_MOST_ZERO_POINT = 1 << 30
_HALF_EVEN = ("ROUND", "HALF_EVEN")


def _converter(*names: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Register the decorated function for these operators in every domain that QONNX has had."""

    def register(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        for domain in DOMAINS:
            converter(*names, domain=domain)(function)
        return function

    return register


@_converter("Quant", "IntQuant")
def quant(node: Node) -> relax.Expr:
    """y = (round(clip(x / scale + zero_point)) − zero_point) · scale, clipped to the integers of bit_width bits.

    Inputs: x, scale, zero_point, bit_width. The bounds are integers, so that clipping after rounding is the same.
    """
    given, bits, signed = _parameters(node), _bits(node, 3), bool(node.attribute("signed", 1))
    if bits == 1 and signed:
        return _signs(node, _steps_of(node, given) if given.zero_point.any() else _data(node), given)
    bounds = _bounds(node, bits, signed, narrow=bool(node.attribute("narrow", 1)))
    mode = _rounding_mode(node, "ROUND")
    if mode in _HALF_EVEN and not given.zero_point.any():
        quantized = _quantized(node, _data(node), given.scale, given.axis, bounds, signed)
    else:
        quantized = _integers(node, _rounded(node, _steps_of(node, given), mode), bounds, signed)
    return _dequantized(quantized, given)


@_converter("BipolarQuant")
def bipolar_quant(node: Node) -> relax.Expr:
    """y = scale where x ≥ 0, −scale elsewhere. Inputs: x, scale."""
    return _signs(node, _data(node), _parameters(node, with_zero_point=False))


@_converter("Trunc")
def trunc(node: Node) -> relax.Expr:
    """Drops the k lowest bits of q = rint(x / scale + zero_point): y = (round(q / 2ᵏ) − z) · s, by default with floor.

    Inputs of version 1: x, scale, zero_point, bit width before and after. k is the difference of these, z is
    zero_point, s is scale, and nothing is clipped. Version 2 has the output's scale before the last input: k is
    rint(log2(output scale / scale)), z is zero_point / 2ᵏ, s the output's scale, and round(q / 2ᵏ) is clipped.
    """
    if len(node.inputs) not in (5, 6):
        raise node.malformed(f"Trunc has 5 inputs, or 6 in version 2; found {len(node.inputs)}")
    given = _parameters(node)
    if given.scale.ndim or given.zero_point.ndim:
        raise node.unsupported("truncation with a scale or zero point for each channel")
    if len(node.inputs) == 5:
        bits, signed, result = _bits(node, 4), True, given
        dropped = _bits(node, 3) - bits
        bounds = dtype_range("int16" if bits < 16 else "int32")
    else:
        bits, signed = _bits(node, 5), bool(node.attribute("signed", 1))
        scale = _scale(node, 4)
        if scale.size != 1:
            raise node.unsupported(f"output scales of shape {scale.shape}; there must be a single one")
        dropped = round(math.log2(scale.item() / given.scale.item()))
        if abs(dropped) > _MOST_BITS[True]:
            raise node.unsupported(f"truncation by {dropped} bits; at most {_MOST_BITS[True]} are supported")
        result = _Parameters(scale.reshape(()), given.zero_point / np.float32(2.0**dropped), -1)
        bounds = _bounds(node, bits, signed, narrow=bool(node.attribute("narrow", 0)))
    if not result.zero_point.item().is_integer():
        raise node.unsupported(f"zero point {given.zero_point:g}, of which 2^{dropped} is no divisor")
    whole = node.emit(relax.op.round(_steps_of(node, given)))
    steps = _rounded(node, times(node, whole, number(2.0**-dropped)), _rounding_mode(node, "FLOOR"))
    return _dequantized(_integers(node, steps, bounds, signed), result)


# ---- parameters --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Parameters:
    """Scale and zero point as float32 scalars or vectors along an axis of the data; the zero point is an integer."""

    scale: np.ndarray
    zero_point: np.ndarray
    axis: int


def _parameters(node: Node, with_zero_point: bool = True) -> _Parameters:
    """Inputs 1 and 2, which broadcast against the data and differ along at most one axis of it."""
    values = [_scale(node, 1), _zero_point(node, 2) if with_zero_point else np.zeros((), np.float32)]
    ndim, axes = len(node.shape(0)), set()
    for index, array in enumerate(values):
        if array.size == 1:
            values[index] = array.reshape(())
        else:
            axes |= {axis - array.ndim for axis, length in enumerate(array.shape) if length != 1}
    axis = axes.pop() if axes else -1
    if axes or any(array.size not in (1, node.shape(0)[axis] if -axis <= ndim else 1) for array in values):
        shapes = " and ".join(str(array.shape) for array in values)
        raise node.unsupported(
            f"a scale and zero point of shapes {shapes} for data of shape {node.shape(0)}; supported are one for the "
            "whole tensor, or one for each index of a single axis"
        )
    scale, zero_point = (array.reshape(-1) if array.ndim else array for array in values)
    return _Parameters(scale, zero_point, axis)


def _constant(node: Node, index: int) -> np.ndarray:
    """A parameter, which must be known at import and finite, as float32."""
    values = node.constant(index)
    if not values.size or not np.isfinite(values).all():
        raise node.malformed(f"input {index} ('{node.input_name(index)}') must hold finite numbers")
    return values.astype(np.float32)


def _scale(node: Node, index: int) -> np.ndarray:
    if (_constant(node, index) < 0).any():
        raise node.malformed(f"input {index} ('{node.input_name(index)}') must hold positive scales")
    scale = constant_value(node.scale(index))
    assert scale is not None, "the scale of a constant input is constant"
    return scale


def _zero_point(node: Node, index: int) -> np.ndarray:
    values = _constant(node, index)
    wrong = values[(values != np.rint(values)) | (np.abs(values) > _MOST_ZERO_POINT)]
    if wrong.size:
        raise node.unsupported(f"zero point {wrong[0]:g}; it must be an integer of at most 30 bits")
    return values


def _bits(node: Node, index: int) -> int:
    """A bit width; more than 32 bits are refused."""
    width = _constant(node, index)
    if width.size != 1 or width != np.rint(width) or not 1 <= width <= _MOST_BITS[True]:
        raise node.unsupported(
            f"bit width {width.reshape(-1)[:4].tolist()}; it must be one integer from 1 to {_MOST_BITS[True]}"
        )
    return int(width.item())


def _bounds(node: Node, bits: int, signed: bool, narrow: bool) -> tuple[int, int]:
    """The lowest and highest integer of so many bits; a narrow range lacks the lowest, or if unsigned the highest."""
    if bits > _MOST_BITS[signed]:
        raise node.unsupported(f"unsigned integers of {bits} bits; at most {_MOST_BITS[signed]} are supported")
    if signed:
        return int(narrow) - (1 << (bits - 1)), (1 << (bits - 1)) - 1
    return 0, (1 << bits) - 1 - int(narrow)


def _rounding_mode(node: Node, default: str) -> str:
    mode = str(node.attribute("rounding_mode", default)).upper()
    if mode not in (*_DIRECT, *_OF_MAGNITUDE):
        raise node.malformed(f"rounding_mode must be one of {', '.join((*_DIRECT, *_OF_MAGNITUDE))}, found {mode!r}")
    return mode


# ---- arithmetic --------------------------------------------------------------------------------------------------

# rounding_mode -> rounding of x
_DIRECT = {"FLOOR": relax.op.floor, "CEIL": relax.op.ceil, **dict.fromkeys(_HALF_EVEN, relax.op.round)}
# rounding_mode -> rounding of |x|, in float32 like all of the specification's arithmetic; the result gets the sign of x
_OF_MAGNITUDE: dict[str, Callable[[Node, relax.Expr], relax.Expr]] = {
    "UP": lambda node, x: relax.op.ceil(x),
    "DOWN": lambda node, x: relax.op.floor(x),
    "HALF_UP": lambda node, x: relax.op.floor(plus(node, x, number(0.5))),
    "HALF_DOWN": lambda node, x: relax.op.ceil(plus(node, x, number(-0.5))),
}


def _rounded(node: Node, steps: relax.Expr, mode: str) -> relax.Expr:
    if mode in _DIRECT:
        return node.emit(_DIRECT[mode](steps))
    magnitude = node.emit(_OF_MAGNITUDE[mode](node, node.emit(relax.op.abs(steps))))
    negative = node.emit(relax.op.less(steps, number(0)))
    return node.emit(relax.op.where(negative, node.emit(relax.op.negative(magnitude)), magnitude))


def _data(node: Node) -> relax.Expr:
    if node.dtype(0) != "float32":
        raise node.unsupported(f"data of {node.dtype(0)}; only float32 is supported")
    return node.input(0)


def _steps_of(node: Node, given: _Parameters) -> relax.Expr:
    """x / scale + zero_point, not yet rounded."""
    ndim = len(node.shape(0))
    steps = over(node, _data(node), constant(along_axis(given.scale, given.axis, ndim)))
    if not given.zero_point.any():
        return steps
    return plus(node, steps, constant(along_axis(given.zero_point, given.axis, ndim)))


def _quantized(
    node: Node, data: relax.Expr, scale: np.ndarray, axis: int, bounds: tuple[int, int], signed: bool
) -> relax.Expr:
    """clip(rint(data / scale)) in the narrowest dtype that holds the bounds."""
    dtype = next(d for d in _HELD_AS[signed] if dtype_range(d)[0] <= bounds[0] and bounds[1] <= dtype_range(d)[1])
    quantized = node.emit(qnn.quantize(data, constant(scale), constant(np.int32(0)), axis=axis, out_dtype=dtype))
    return quantized if bounds == dtype_range(dtype) else node.emit(relax.op.clip(quantized, *bounds))


def _integers(node: Node, whole: relax.Expr, bounds: tuple[int, int], signed: bool) -> relax.Expr:
    """Floats that hold integers, as integers within the bounds."""
    return _quantized(node, whole, np.ones((), np.float32), -1, bounds, signed)


def _signs(node: Node, data: relax.Expr, given: _Parameters) -> relax.Expr:
    """(±1 − zero_point) · scale, with + where data ≥ 0."""
    positive = node.emit(relax.op.greater_equal(data, number(0)))
    sign = node.emit(relax.op.where(positive, number(1), number(-1)))
    return _dequantized(_integers(node, sign, (-128, 127), True), given)


def _dequantized(quantized: relax.Expr, given: _Parameters) -> relax.Expr:
    """(quantized − zero_point) · scale."""
    zero_point = constant(given.zero_point.astype(np.int32))
    return qnn.dequantize(quantized, constant(given.scale), zero_point, axis=given.axis)
