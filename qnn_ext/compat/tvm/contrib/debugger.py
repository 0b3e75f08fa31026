"""tvm.contrib.debugger: gone; any of its names says what there is today."""

from ...absent import absent

__all__: list[str] = []

__getattr__ = absent("tvm.contrib.debugger", everything="engine.profile() times each kernel")
