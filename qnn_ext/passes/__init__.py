"""Passes: QNN graph to scheduled kernels. legalize → canonicalize → fold → fuse → lower; `build.py` lists them."""

from .canonicalize import canonicalize
from .fold import fold_constant_sums
from .fuse import fuse
from .legalize import legalize
from .lower import lower

__all__ = ["canonicalize", "fold_constant_sums", "fuse", "legalize", "lower"]
