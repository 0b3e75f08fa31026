"""relay.testing.temp_op_attr."""

from ....checking import TempOpAttr

__all__ = ["TempOpAttr"]
