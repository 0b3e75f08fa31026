"""relay.backend."""

from ...absent import absent
from ...library import Executor, Runtime

__all__ = ["Executor", "Runtime"]

__getattr__ = absent("relay.backend", everything="qnn_ext.build is the compiler")
