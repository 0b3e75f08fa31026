"""tvm.runtime.vm."""

from ...absent import absent
from ...library import Executable, VirtualMachine

__all__ = ["Executable", "VirtualMachine"]

__getattr__ = absent("tvm.runtime.vm")
