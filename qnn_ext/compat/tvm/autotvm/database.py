"""autotvm.database: gone; any of its names says what there is today."""

from ...absent import absent

__all__: list[str] = []

__getattr__ = absent("autotvm.database", everything="logs are files of lines, merged by concatenation")
