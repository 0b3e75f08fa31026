"""autotvm.graph_tuner."""

from ...absent import absent
from ...tuning.logs import GraphTuner
from ...tuning.logs import GraphTuner as DPTuner
from ...tuning.logs import GraphTuner as PBQPTuner

__all__ = ["DPTuner", "GraphTuner", "PBQPTuner"]

__getattr__ = absent("autotvm.graph_tuner")
