"""autotvm."""

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
from . import graph_tuner, measure, record, task, tuner
from .tuner import callback

__all__ = [
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
    "get_config",
    "graph_tuner",
    "measure",
    "measure_option",
    "record",
    "task",
    "template",
    "tuner",
]

_TEMPLATES = "te schedules are gone from TVM; a kernel is an implementation in qnn_ext.topi_int8"

__getattr__ = absent(
    "autotvm",
    {
        "register_topi_compute": _TEMPLATES,
        "register_topi_schedule": _TEMPLATES,
        "ConfigSpace": _TEMPLATES,
        "ConfigEntity": _TEMPLATES,
        "apply_fixed_config": "autotune.apply_history_best takes records",
        "tophub": "there are no records to download; a cost model chooses where nothing was tuned",
        "database": "logs are files of lines, merged by concatenation",
        "feature": "autotune.cost_model has the features",
    },
)
