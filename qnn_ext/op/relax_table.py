"""The traits of Relax's own operators (those of the dialect are in `define(...)`), and `traits_of` for both."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tvm import ir, relax

from . import axes
from .base import OPS
from .traits import UNKNOWN, Data, Kind, Product, Traits

# by name without "relax.": "nn.conv2d", "add"
RELAX: dict[str, Traits] = {}
# operators whose kind depends on their attributes
_VARIANTS: dict[str, Callable[[relax.Call], Traits]] = {}


def traits_of(value: Any) -> Traits:
    """The traits of a call; UNKNOWN for operators in no table, and for anything but a call of an operator."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, ir.Op):
        return UNKNOWN
    name = str(value.op.name).removeprefix("relax.")
    variant = _VARIANTS.get(name)
    return traits_named(name) if variant is None else variant(value)


def traits_named(name: str) -> Traits:
    """The traits of an operator, by its name without "relax."."""
    if name.startswith("qnn."):
        return OPS[name.removeprefix("qnn.")].traits
    return RELAX.get(name, UNKNOWN)


def _relax(names: str, traits: Traits, arguments: str = "data") -> None:
    """Enter operators that have the same traits."""
    complete = traits.of(arguments.split())
    for name in names.split():
        if name in RELAX:
            raise ValueError(f"two entries for {name}")
        RELAX[name] = complete


def _ranks(names: str) -> str:
    """The names with 1, 2 and 3 in place of "#"."""
    return " ".join(name.replace("#", rank) for name in names.split() for rank in "123")


# ---- moves -------------------------------------------------------------------------------------------------------

_MOVE = Traits(Kind.MOVE, homogeneous=True)
_RESHAPE = replace(_MOVE, moved_axis=axes.reshaped, reshapes=True)
_relax("reshape", replace(_RESHAPE, others=("shape",)), "data shape")
_relax("flatten nn.batch_flatten squeeze expand_dims", _RESHAPE)
_relax("permute_dims", replace(_MOVE, moved_axis=axes.permuted, permutes=True))
_relax("broadcast_to", replace(_MOVE, moved_axis=axes.broadcast, others=("shape",)), "data shape")

_ALONG = replace(_MOVE, moved_axis=axes.untouched, axis="axis")
_relax("flip repeat", _ALONG)
_relax("split", replace(_ALONG, moved_axis=axes.divided))
_relax("take", replace(_ALONG, others=("indices",)), "data indices")
_SLICED = replace(_MOVE, moved_axis=axes.untouched, others=("axes", "begin", "end", "strides"))
_relax("strided_slice", _SLICED, "data axes begin end strides")
_relax(
    "dynamic_strided_slice",
    replace(_MOVE, moved_axis=axes.torn, others=("begin", "end", "strides")),
    "data begin end strides",
)
_relax("tile", replace(_MOVE, moved_axis=axes.tiled))
_relax("gather_elements", replace(_MOVE, moved_axis=axes.untouched, others=("indices",)), "data indices")
_relax("gather_nd", replace(_MOVE, moved_axis=axes.torn, others=("indices",)), "data indices")
_relax("nn.pad", replace(_MOVE, moved_axis=axes.not_padded, fill="pad_value"))
_relax("concat stack", Traits(Kind.JOIN), "tensors")

# ---- maxima and minima -------------------------------------------------------------------------------------------

_SELECTION = Traits(Kind.SELECTION, homogeneous=True)
_POOL_LAYOUTS = ("layout", "out_layout")
_relax(_ranks("nn.max_pool#d"), replace(_SELECTION, moved_axis=axes.not_spatial, layouts=_POOL_LAYOUTS))
_relax("max min", replace(_SELECTION, moved_axis=axes.reduced, reduces=True))

# ---- sums --------------------------------------------------------------------------------------------------------

_SUM = Traits(Kind.SUM, homogeneous=True)
_AVERAGE = replace(_SUM, moved_axis=axes.not_spatial, layouts=_POOL_LAYOUTS)
_relax(_ranks("nn.avg_pool#d nn.adaptive_avg_pool#d"), _AVERAGE)
_relax("mean sum", replace(_SUM, moved_axis=axes.reduced, reduces=True))
_relax("prod variance std", Traits(Kind.OTHER, moved_axis=axes.reduced, reduces=True))
_relax("cumsum", Traits(Kind.OTHER, axis="axis"))

# ---- pointwise functions -----------------------------------------------------------------------------------------

_FUNCTION = Traits(Kind.POINTWISE, cheap=False, quantizable=True)
_CHEAP = replace(_FUNCTION, cheap=True)
_TWO = (Data("x1"), Data("x2"))
_relax("add subtract multiply divide", replace(_CHEAP, data=_TWO), "x1 x2")
_relax("maximum minimum", replace(_CHEAP, data=_TWO, selects=("x1", "x2")), "x1 x2")
_relax("power", replace(_FUNCTION, data=_TWO), "x1 x2")
_relax("negative abs square floor ceil round sign", _CHEAP)
_relax("nn.relu", replace(_CHEAP, clips=lambda call: (0.0, math.inf), homogeneous=True))
_relax("nn.relu6", replace(_CHEAP, clips=lambda call: (0.0, 6.0)))
_relax(
    "clip",
    replace(
        _CHEAP,
        clips=lambda call: (float(call.args[1].value), float(call.args[2].value)),
        others=("low", "high"),
    ),
    "data low high",
)
_relax("nn.leakyrelu", replace(_CHEAP, homogeneous=True))
_relax("sqrt rsqrt exp log erf tanh sigmoid sin cos tan asin acos atan sinh cosh asinh acosh atanh", _FUNCTION)
_relax("nn.silu nn.softplus nn.selu", _FUNCTION)
_relax("nn.gelu nn.gelu_tanh", replace(_FUNCTION, function="gelu"))
_relax(
    "nn.prelu",
    Traits(Kind.POINTWISE, data=(Data("data", axis="axis"),), others=("slope",), quantizable=True, homogeneous=True),
    "data slope",
)

# comparisons, logic and others without a real result
_NOT_REAL = Traits(Kind.POINTWISE, cheap=True)
_relax("equal not_equal less less_equal greater greater_equal", replace(_NOT_REAL, data=_TWO), "x1 x2")
_relax("logical_and logical_or logical_xor", replace(_NOT_REAL, data=_TWO), "x1 x2")
_relax("logical_not isnan isinf trunc", _NOT_REAL)
_relax(
    "where",
    replace(_NOT_REAL, data=(Data("condition"), Data("x1"), Data("x2")), selects=("x1", "x2")),
    "condition x1 x2",
)
_relax("astype bitwise_not", Traits(Kind.POINTWISE))
_INTEGERS = Traits(Kind.POINTWISE, data=_TWO)
_relax("floor_divide mod floor_mod bitwise_and bitwise_or bitwise_xor left_shift right_shift", _INTEGERS, "x1 x2")

# ---- products ----------------------------------------------------------------------------------------------------

_PRODUCT = Traits(Kind.PRODUCT, data=(Data("data"), Data("weight")), weight="weight")
_CONVOLUTION = replace(_PRODUCT, product=Product.CONVOLUTION)
_relax("nn.conv1d nn.conv3d", _CONVOLUTION, "data weight")
_relax("nn.conv2d", replace(_CONVOLUTION, layouts=("data_layout", "out_layout")), "data weight")
_relax(_ranks("nn.conv#d_transpose"), replace(_PRODUCT, product=Product.TRANSPOSED), "data weight")
_relax("matmul", Traits(Kind.PRODUCT, data=_TWO, product=Product.MATRIX), "x1 x2")
_ATTENTION = Traits(Kind.PRODUCT, data=(Data("query"), Data("key"), Data("value")))
_relax("nn.attention", _ATTENTION, "query key value")
_relax("nn.attention_bias", replace(_ATTENTION, others=("bias",)), "query key value bias")
_relax("einsum", Traits(Kind.PRODUCT), "tensors")

# ---- rows, order, and the rest -----------------------------------------------------------------------------------

_relax("nn.softmax nn.log_softmax", Traits(Kind.ROWS, axis="axis", function="softmax"))
_NORMALIZATION = Traits(Kind.ROWS, others=("weight", "bias"), function="layer_norm")
_relax("nn.layer_norm nn.group_norm nn.instance_norm", _NORMALIZATION, "data weight bias")
_relax("nn.rms_norm", replace(_NORMALIZATION, others=("weight",)), "data weight")
_STATISTICS = ("gamma", "beta", "moving_mean", "moving_var")
_relax("nn.batch_norm", Traits(Kind.OTHER, others=_STATISTICS), " ".join(("data", *_STATISTICS)))
_relax("argmax argmin sort argsort topk", Traits(Kind.SEARCH))
_relax("shape_of zeros ones full arange zeros_like ones_like full_like", Traits(Kind.CREATION))
_relax("shape_to_tensor tensor_to_shape", Traits(Kind.OTHER))
_relax("scatter_elements scatter_nd", Traits(Kind.OTHER, others=("indices", "updates")), "data indices updates")

_IMAGE = Traits(Kind.OTHER, layouts=("layout",), others=("size",), moved_axis=axes.not_spatial)
_relax("image.resize2d", _IMAGE, "data size")
_relax("image.grid_sample", Traits(Kind.OTHER, others=("grid",)), "data grid")


def _resize(call: relax.Call) -> Traits:
    """Copying the nearest pixels is a move; interpolation computes new values, which are sums of others."""
    traits = replace(RELAX["image.resize2d"], homogeneous=float(call.attrs.extrapolation_value) == 0)
    return replace(traits, kind=Kind.MOVE) if str(call.attrs.method) == "nearest_neighbor" else traits


_VARIANTS["image.resize2d"] = _resize
