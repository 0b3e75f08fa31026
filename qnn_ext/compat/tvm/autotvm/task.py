"""autotvm.task."""

from ...absent import absent
from ...tuning.logs import ApplyGraphBest, ApplyHistoryBest, DispatchContext, FallbackContext
from ...tuning.tasks import (
    Task,
    create,
    extract_from_multiple_program,
    extract_from_program,
    get_config,
    template,
)

__all__ = [
    "ApplyGraphBest",
    "ApplyHistoryBest",
    "DispatchContext",
    "FallbackContext",
    "Task",
    "create",
    "extract_from_multiple_program",
    "extract_from_program",
    "get_config",
    "template",
]

__getattr__ = absent("autotvm.task")
