"""relay.op.annotation: gone; any of its names says what there is today."""

from ....absent import absent

__all__: list[str] = []

__getattr__ = absent("relay.op.annotation", everything="a model runs on one device, and is compiled as a whole")
