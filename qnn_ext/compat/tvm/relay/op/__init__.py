"""relay.op: the operators again, and operators by name."""

from ....absent import absent
from ....basic import *  # noqa: F403
from ....basic import ELEMENTWISE, REDUCTIONS
from ....basic import __all__ as _BASIC
from ....expressions import Op
from ....lowering import named_operator as get
from .. import nn
from . import annotation, contrib

globals().update(ELEMENTWISE, **REDUCTIONS)

__all__ = [
    *ELEMENTWISE,
    *REDUCTIONS,
    *_BASIC,
    "Op",
    "annotation",
    "contrib",
    "get",
    "nn",
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
