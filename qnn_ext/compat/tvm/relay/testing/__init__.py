"""relay.testing."""

from ....absent import absent
from ....checking import run_infer_type, run_opt_pass
from . import temp_op_attr

__all__ = ["run_infer_type", "run_opt_pass", "temp_op_attr"]

__getattr__ = absent("relay.testing")
