"""autotvm.measure."""

from ...absent import absent
from ...tuning.measuring import (
    LocalBuilder,
    LocalRunner,
    MeasureErrorNo,
    MeasureInput,
    MeasureResult,
    RPCRunner,
    measure_option,
    request_remote,
)

__all__ = [
    "LocalBuilder",
    "LocalRunner",
    "MeasureErrorNo",
    "MeasureInput",
    "MeasureResult",
    "RPCRunner",
    "measure_option",
    "request_remote",
]

__getattr__ = absent("autotvm.measure", {"create_measure_batch": "Tuner.tune measures"})
