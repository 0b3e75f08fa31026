"""relay.op: the operators again, and operators by name."""

from ....absent import absent
from ....basic import (
    ELEMENTWISE,
    REDUCTIONS,
    broadcast_to,
    cast,
    clip,
    concatenate,
    expand_dims,
    full,
    ones,
    repeat,
    reshape,
    round,
    split,
    squeeze,
    stack,
    strided_slice,
    take,
    tile,
    transpose,
    where,
    zeros,
)
from ....expressions import Op
from ....lowering import named_operator as get
from .. import nn

globals().update(ELEMENTWISE, **REDUCTIONS)

__all__ = [
    *ELEMENTWISE,
    *REDUCTIONS,
    "Op",
    "broadcast_to",
    "cast",
    "clip",
    "concatenate",
    "expand_dims",
    "full",
    "get",
    "nn",
    "ones",
    "repeat",
    "reshape",
    "round",
    "split",
    "squeeze",
    "stack",
    "strided_slice",
    "take",
    "tile",
    "transpose",
    "where",
    "zeros",
]

_STRATEGY = "kernels are added to qnn_ext.topi_int8: ARCHITECTURE.md, Add a target"

__getattr__ = absent(
    "relay.op",
    {
        "register_compute": _STRATEGY,
        "register_strategy": _STRATEGY,
        "register_alter_op_layout": _STRATEGY,
        "register_legalize": _STRATEGY,
        "OpStrategy": _STRATEGY,
    },
)
