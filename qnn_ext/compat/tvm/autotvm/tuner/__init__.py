"""autotvm.tuner."""

from ....absent import absent
from ....tuning.tuners import GATuner, GridSearchTuner, RandomTuner, Tuner, XGBTuner
from . import callback

__all__ = ["GATuner", "GridSearchTuner", "RandomTuner", "Tuner", "XGBTuner", "callback"]

__getattr__ = absent("autotvm.tuner", {"DropletTuner": "use GATuner or XGBTuner"})
