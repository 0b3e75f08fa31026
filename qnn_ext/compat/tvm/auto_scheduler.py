"""auto_scheduler: gone; any of its names says what there is today."""

from ..absent import absent

__all__: list[str] = []

__getattr__ = absent("auto_scheduler", everything="qnn_ext.autotune tunes the kernels of a model")
