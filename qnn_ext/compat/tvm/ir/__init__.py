"""tvm.ir."""

import tvm.ir as _ir

from ...absent import absent
from ...expressions import FuncType, Op, TensorType, TupleType
from ...functors import assert_structural_equal, structural_equal
from ...modules import IRModule

__all__ = [
    "FuncType",
    "IRModule",
    "Op",
    "TensorType",
    "TupleType",
    "assert_structural_equal",
    "structural_equal",
]

__getattr__ = absent("tvm.ir", None, lambda name: getattr(_ir, name))
