"""Padding: folds an explicit pad with the zero point into the following convolution, whose kernel pads anyway."""

from __future__ import annotations

from typing import Any

from tvm import IRModule, relax

from ..op.arguments import argument, data_of
from ..op.base import OPS, call_attributes, constant_value
from .rewrite import Emit, op_name, rewrite


def fold_padding(mod: IRModule) -> IRModule:
    """`mod` with every R.nn.pad of an image's height and width folded into the qnn.conv2d that it feeds."""
    pads: dict[Any, relax.Call] = {}  # variable -> the pad it is bound to

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        if op_name(expr) == "nn.pad":
            var = emit(expr)
            pads[var] = expr
            return var
        if op_name(expr) != "qnn.conv2d" or data_of(expr) not in pads:
            return None
        data, *others = expr.args
        pad = pads[data]
        attributes = call_attributes(expr)
        margins = _margins(pad, attributes["data_layout"])
        zero_point = constant_value(argument(expr, "input_zero_point"))
        if margins is None or zero_point is None or float(pad.attrs.pad_value) != float(zero_point.reshape(())):
            return None
        attributes["padding"] = tuple(map(sum, zip(attributes["padding"], margins, strict=True)))
        return OPS["conv2d"].call(data_of(pad), *others, **attributes)

    return rewrite(mod, rule)


def _margins(pad: relax.Call, layout: str) -> tuple[int, int, int, int] | None:
    """top, left, bottom, right of a constant pad; None if it pads another dimension, mirrors or crops."""
    widths = [int(width) for width in pad.attrs.pad_width]
    pairs = dict(zip(layout, zip(widths[::2], widths[1::2], strict=True), strict=True))
    if pad.attrs.pad_mode != "constant" or any(pairs["N"]) or any(pairs["C"]) or min(widths) < 0:
        return None
    (top, bottom), (left, right) = pairs["H"], pairs["W"]
    return top, left, bottom, right
