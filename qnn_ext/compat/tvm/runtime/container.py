"""tvm.runtime.container."""

from ...absent import absent
from ...library import ADT

__all__ = ["ADT"]

__getattr__ = absent("tvm.runtime.container")
