"""autotvm."""

from types import SimpleNamespace

from ...absent import absent
from ...tuning.logs import (
    ApplyGraphBest as apply_graph_best,
)
from ...tuning.logs import (
    ApplyHistoryBest as apply_history_best,
)
from ...tuning.logs import DispatchContext, FallbackContext
from ...tuning.measuring import (
    LocalBuilder,
    LocalRunner,
    MeasureErrorNo,
    MeasureInput,
    MeasureResult,
    RPCRunner,
    measure_option,
)
from ...tuning.tasks import create, get_config, template
from . import database, feature, graph_tuner, measure, record, task, tophub, tuner
from .tuner import callback

__all__ = [
    "GLOBAL_SCOPE",
    "DispatchContext",
    "FallbackContext",
    "LocalBuilder",
    "LocalRunner",
    "MeasureErrorNo",
    "MeasureInput",
    "MeasureResult",
    "RPCRunner",
    "apply_graph_best",
    "apply_history_best",
    "callback",
    "create",
    "database",
    "feature",
    "get_config",
    "graph_tuner",
    "measure",
    "measure_option",
    "record",
    "task",
    "template",
    "tophub",
    "tuner",
]

GLOBAL_SCOPE = SimpleNamespace(silent=False, in_tuning=False, current_target=None, cuda_target_arch=None)
"""Settings of AutoTVM's processes, which decide nothing any more."""

_TEMPLATES = "te schedules are gone from TVM; a kernel is an implementation in qnn_ext.topi_int8"

__getattr__ = absent(
    "autotvm",
    {
        "register_topi_compute": _TEMPLATES,
        "register_topi_schedule": _TEMPLATES,
        "ConfigSpace": _TEMPLATES,
        "ConfigEntity": _TEMPLATES,
        "apply_fixed_config": "autotune.apply_history_best takes records",
    },
)
