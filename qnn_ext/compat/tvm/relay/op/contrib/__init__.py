"""relay.op.contrib: gone; any of its names says what there is today."""

from .....absent import absent

__all__: list[str] = []

__getattr__ = absent("relay.op.contrib", everything="a model is compiled as a whole, by qnn_ext.build")
