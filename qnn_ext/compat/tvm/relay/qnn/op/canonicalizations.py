"""relay.qnn.op.canonicalizations."""

from .....absent import absent
from .....library import run_const_expr
from .....quantized import create_integer_lookup_op

__all__ = ["create_integer_lookup_op", "run_const_expr"]

__getattr__ = absent("relay.qnn.op.canonicalizations")
