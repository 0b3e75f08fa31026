"""Channels first: operators with the channels last, of TFLite, between transposes to and from the layout rules know.

The transposes move integers like any other move does, and `passes.layout` makes them cancel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import IRModule, relax

from ...op.base import constant, constant_value
from ..layout.rules import rebuild
from ..rewrite import Emit, op_name, rewrite

_POOLS = tuple(f"nn.{kind}{rank}d" for kind in ("avg_pool", "adaptive_avg_pool") for rank in (1, 2, 3))
_CONVOLUTIONS = tuple(f"nn.conv{rank}d" for rank in (1, 2, 3))


def channels_first(mod: IRModule) -> IRModule:
    """`mod` with convolutions, average pools and interpolating resizes in NCHW (NCW, NCDHW); max pools, which only
    compare, in any layout."""
    return rewrite(mod, _rule)


def _rule(value: relax.Expr, emit: Emit) -> relax.Expr | None:
    name = op_name(value)
    if name in _CONVOLUTIONS:
        layout, kernel = str(value.attrs.data_layout), str(value.attrs.kernel_layout)
        wanted, first = _first(layout), _first(kernel, "OI")
        if (layout, kernel) == (wanted, first) or set(kernel) != set(first):
            return None
        args = [_arranged(value.args[0], layout, wanted, emit), _arranged(value.args[1], kernel, first, emit)]
        changes = {"data_layout": wanted, "out_layout": wanted, "kernel_layout": first}
    elif name in _POOLS or name == "image.resize2d":
        layout = str(value.attrs.layout)
        wanted = _first(layout)
        if layout == wanted or set(layout) != set(wanted):
            return None
        args = [_arranged(value.args[0], layout, wanted, emit), *value.args[1:]]
        changes = {"layout": wanted} if name == "image.resize2d" else {"layout": wanted, "out_layout": wanted}
    else:
        return None
    return _arranged(emit(rebuild(value, args, **changes)), wanted, layout, emit)


def _first(layout: str, leading: str = "NC") -> str:
    """The layout with these two axes first and the spatial ones behind: NHWC → NCHW, OHWI → OIHW."""
    return leading + "".join(axis for axis in layout if axis not in leading)


def _arranged(expr: Any, layout: str, wanted: str, emit: Emit) -> Any:
    axes: Sequence[int] = [layout.index(axis) for axis in wanted]
    array = constant_value(expr)
    if array is not None:
        return constant(array.transpose(axes))
    return expr if layout == wanted else emit(relax.op.permute_dims(expr, list(axes)))
