"""Float operators that stay ordinary Relax, legalized to formulas of our own instead of TVM's.

They are those of the interpreter and of the float tails of integer kernels, in vector code: exp and what contains it,
softmax and layer normalization along the last axis. Products of matrices get a number of columns that vectors divide.
Everything else keeps TVM's legalization.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax, te, tirx

from ..numerics import elementary
from ..op.base import along_last_axis, constant_value, shape_of
from ..topi_int8.generic import float_rows

Legalization = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]

ELEMENTARY = ("exp", "erf", "tanh", "sigmoid", "nn.silu", "nn.gelu", "nn.gelu_tanh")


def float_legalizations() -> dict[str, Legalization]:
    """By operator, for the `customize_legalize_map` of `relax.transform.LegalizeOps`."""
    rules = {f"relax.{name}": _elementary(name) for name in ELEMENTARY}
    rules["relax.nn.softmax"] = _guarded(_softmax)
    rules["relax.nn.layer_norm"] = _guarded(_layer_norm)
    rules["relax.matmul"] = _guarded(_matmul, _has_odd_columns)
    return rules


def _is_float32(call: relax.Call) -> bool:
    return str(call.args[0].ty.dtype) == "float32"


def _guarded(rule: Legalization, applies: Callable[[relax.Call], bool] = along_last_axis) -> Legalization:
    """`rule` for the calls it is for, TVM's own legalization for the others."""

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        return rule(builder, call) if applies(call) else call.op.get_attr("FLegalize")(builder, call)

    return legalize


def _elementary(name: str) -> Legalization:
    function = getattr(elementary, name.removeprefix("nn."))

    def compute(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: function(x(*i), elementary.TIR), name=name.removeprefix("nn."))

    def rule(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        return builder.call_te(compute, call.args[0], primfunc_name_hint=f"float_{name.removeprefix('nn.')}")

    return _guarded(rule, _is_float32)


def _softmax(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return builder.call_te(float_rows.softmax, call.args[0], primfunc_name_hint="softmax")


def _layer_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    epsilon = float(call.attrs.epsilon)
    return builder.call_te(float_rows.layer_norm, *call.args, epsilon, primfunc_name_hint="layer_norm")


# ---- products ----------------------------------------------------------------------------------------------------

LANES = 16  # float32 in the widest vector
OUT_ELEMENTWISE_FUSABLE = 4  # relax.TVMOpPattern: elementwise operators may follow in the same kernel


def _has_odd_columns(call: relax.Call) -> bool:
    """Whether padding the columns of a float32 product pays: they fill no vectors, and rows enough share them."""
    lhs, rhs = (shape_of(arg) for arg in call.args)
    same = len(lhs) == len(rhs) and lhs[:-2] == rhs[:-2] or len(rhs) == 2 and len(lhs) >= 2
    both = all(str(arg.ty.dtype) == "float32" for arg in call.args) and str(call.ty.dtype) == "float32"
    constant_columns = constant_value(call.args[1]) is not None
    return both and same and rhs[-1] % LANES != 0 and (lhs[-2] >= 8 or constant_columns)


def _matmul(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    columns = shape_of(call.args[1])[-1]
    padded = builder.emit(builder.call_te(_pad_columns, call.args[1], primfunc_name_hint="pad_columns"))
    attributes = {"op_pattern": OUT_ELEMENTWISE_FUSABLE}
    return builder.call_te(
        _first_columns_of_product, call.args[0], padded, columns, primfunc_name_hint="matmul", primfunc_attrs=attributes
    )


def _pad_columns(x: te.Tensor) -> te.Tensor:
    """Zeros behind the last axis, up to a multiple of LANES."""
    *outer, columns = (int(size) for size in x.shape)

    def padded(*i: tirx.Var) -> tirx.Expr:
        return tirx.if_then_else(i[-1] < columns, x(*i), tirx.const(0.0, x.dtype))

    return te.compute((*outer, -(-columns // LANES) * LANES), padded, name="pad_columns")


def _first_columns_of_product(x: te.Tensor, y: te.Tensor, columns: int) -> te.Tensor:
    """(x · y)[…, :columns]; y may lack the batch axes."""
    k = te.reduce_axis((0, int(x.shape[-1])), "k")
    batched = len(y.shape) > 2
    product = te.compute(
        (*x.shape[:-1], y.shape[-1]),
        lambda *i: te.sum(x(*i[:-1], k) * y(*(i[:-2] if batched else ()), k, i[-1]), axis=k),
        name="matmul",
    )
    return te.compute((*x.shape[:-1], columns), lambda *i: product(*i), name="columns")
