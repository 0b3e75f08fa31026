"""tvm.parser: gone; any of its names says what there is today."""

from ..absent import absent

__all__: list[str] = []

__getattr__ = absent("tvm.parser", everything="modules are TVMScript: tvm.script.from_source")
