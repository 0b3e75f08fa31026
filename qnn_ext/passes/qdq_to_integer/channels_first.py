"""Channels first: puts TFLite's channels-last operators between transposes from and to the layout that the rules know.

The transposes move integers like any other move, and `passes.layout` makes them cancel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import IRModule, relax

from ...op.arguments import factors_of
from ...op.base import constant, constant_value, definition_of
from ...op.relax_table import traits_of
from ...op.traits import Kind, Product
from ..layout.propagation import rebuild
from ..rewrite import Emit, rewrite


def channels_first(mod: IRModule) -> IRModule:
    """`mod` with convolutions, average pools and interpolating resizes in NCHW (NCW, NCDHW); max pools, which only
    compare values, stay in any layout."""
    return rewrite(mod, _rule)


def _rule(value: relax.Expr, emit: Emit) -> relax.Expr | None:
    traits = traits_of(value)
    if definition_of(value) is not None:
        return None
    if traits.product is Product.CONVOLUTION:
        layout, kernel = str(value.attrs.data_layout), str(value.attrs.kernel_layout)
        wanted, first = _first(layout), _first(kernel, "OI")
        if (layout, kernel) == (wanted, first) or set(kernel) != set(first):
            return None
        data, weight = factors_of(value)
        args = [_arranged(data, layout, wanted, emit), _arranged(weight, kernel, first, emit)]
        changes = {"data_layout": wanted, "out_layout": wanted, "kernel_layout": first}
    elif traits.layouts and traits.kind is not Kind.SELECTION:
        layout = str(value.attrs.layout)
        wanted = _first(layout)
        if layout == wanted or set(layout) != set(wanted):
            return None
        data, *others = value.args
        args = [_arranged(data, layout, wanted, emit), *others]
        changes = dict.fromkeys(traits.layouts, wanted)
    else:
        return None
    return _arranged(emit(rebuild(value, args, **changes)), wanted, layout, emit)


def _first(layout: str, leading: str = "NC") -> str:
    """The layout with these two axes first, followed by the spatial ones: NHWC → NCHW, OHWI → OIHW."""
    return leading + "".join(axis for axis in layout if axis not in leading)


def _arranged(expr: Any, layout: str, wanted: str, emit: Emit) -> Any:
    axes: Sequence[int] = [layout.index(axis) for axis in wanted]
    array = constant_value(expr)
    if array is not None:
        return constant(array.transpose(axes))
    return expr if layout == wanted else emit(relax.op.permute_dims(expr, list(axes)))
