"""tvm.runtime."""

import tvm.runtime as _runtime

from ...absent import absent
from ...arrays import NDArray
from ...library import load_module
from . import container, vm

__all__ = ["NDArray", "container", "load_module", "vm"]

__getattr__ = absent("tvm.runtime", None, lambda name: getattr(_runtime, name))
