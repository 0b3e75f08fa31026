"""relay.analysis."""

from ...absent import absent
from ...analysis import all_vars, count_layers, free_vars, post_order_visit

__all__ = ["all_vars", "count_layers", "free_vars", "post_order_visit"]

__getattr__ = absent("relay.analysis")
