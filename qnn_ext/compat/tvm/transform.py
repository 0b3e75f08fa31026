"""tvm.transform: pass contexts, whose settings chose among Relay's passes, and sequences of passes."""

import tvm

from ..absent import absent
from ..passes import Pass, PassContext, Sequential

__all__ = ["Pass", "PassContext", "Sequential"]

__getattr__ = absent("tvm.transform", None, lambda name: getattr(tvm.transform, name))
