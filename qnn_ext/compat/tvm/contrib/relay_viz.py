"""tvm.contrib.relay_viz: gone; any of its names says what there is today."""

from ...absent import absent

__all__: list[str] = []

__getattr__ = absent("tvm.contrib.relay_viz", everything="print(mod) shows operators, qnn-ext inspect those of a file")
