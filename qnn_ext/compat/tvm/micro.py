"""tvm.micro: gone; any of its names says what there is today."""

from ..absent import absent

__all__: list[str] = []

__getattr__ = absent("tvm.micro", everything="boards take a C library: README.md, ARM boards")
