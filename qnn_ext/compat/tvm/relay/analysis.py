"""relay.analysis."""

from ...absent import absent
from ...analysis import (
    all_vars,
    bound_vars,
    count_layers,
    free_vars,
    list_op_freqs,
    post_order_visit,
    well_formed,
)
from ...functors import structural_equal as alpha_equal

__all__ = [
    "all_vars",
    "alpha_equal",
    "bound_vars",
    "count_layers",
    "free_vars",
    "list_op_freqs",
    "post_order_visit",
    "well_formed",
]

__getattr__ = absent("relay.analysis")
