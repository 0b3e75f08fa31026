"""Passes: QNN graph to scheduled kernels, in the order that `build.py` lists.

fold_padding → legalize → canonicalize → fold_constant_sums → fuse → lower

qdq_to_integer comes before all of them, at import: it makes QNN operators of QDQ graphs.
"""

from .canonicalize import canonicalize
from .fold import fold_constant_sums
from .fuse import fuse
from .legalize import legalize
from .lower import lower
from .padding import fold_padding
from .qdq_to_integer import qdq_to_integer

__all__ = ["canonicalize", "fold_constant_sums", "fold_padding", "fuse", "legalize", "lower", "qdq_to_integer"]
