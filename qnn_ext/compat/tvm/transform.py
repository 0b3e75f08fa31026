"""tvm.transform: pass contexts, whose settings chose among Relay's passes, and sequences of passes."""

import tvm

from ..absent import absent
from ..passes import Pass, PassContext, Sequential, module_pass

__all__ = ["Pass", "PassContext", "Sequential", "module_pass"]

__getattr__ = absent("tvm.transform", None, lambda name: getattr(tvm.transform, name))
