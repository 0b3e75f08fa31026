"""autotvm.feature: gone; any of its names says what there is today."""

from ...absent import absent

__all__: list[str] = []

__getattr__ = absent("autotvm.feature", everything="qnn_ext.autotune.cost_model has the features")
