"""Passes: from a QNN graph to scheduled kernels, in the order listed in `build.py`.

fold_padding → channels_last → legalize → canonicalize → sink_shuffles → sink_reshapes → fold_constant_sums →
join_shuffles → order_channels → fuse → lower

qdq_to_integer runs before all of them, at import: it turns QDQ graphs into QNN operators.
"""

from .canonicalize import canonicalize
from .fold import fold_constant_sums
from .fuse import fuse
from .join_shuffles import join_shuffles
from .layout import channels_last
from .legalize import legalize
from .lower import lower
from .order_channels import order_channels
from .padding import fold_padding
from .qdq_to_integer import qdq_to_integer
from .sink import sink_reshapes
from .sink_shuffles import sink_shuffles

__all__ = [
    "canonicalize",
    "channels_last",
    "fold_constant_sums",
    "fold_padding",
    "fuse",
    "join_shuffles",
    "legalize",
    "lower",
    "order_channels",
    "qdq_to_integer",
    "sink_reshapes",
    "sink_shuffles",
]
