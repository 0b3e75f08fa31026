"""Tuning: measure the configurations of the integer kernels on a machine and keep the fastest in a log.

    tasks = autotune.extract_from_program(module, "native")
    for task in tasks:
        autotune.XGBTuner(task).tune(64, callbacks=[autotune.log_to_file("tuning.jsonl")])
    with autotune.apply_history_best("tuning.jsonl"):
        engine = qnn_ext.build(module)

The names are AutoTVM's, so that scripts written for it look the same; `tune` does all of this for a whole model.
"""

from __future__ import annotations

from .callbacks import log_to_file, progress_bar
from .measure import Decision, LocalBuilder, LocalRunner, MeasureOption, Result, RPCRunner, measure_option
from .measured import Measure
from .records import apply_history_best, best_configuration, read_log
from .report import Report
from .session import tune
from .space import Space, space_of
from .task import Task, extract_from_program, make_task
from .tuner import Tuner
from .tuners import GATuner, GridSearchTuner, RandomTuner, XGBTuner

__all__ = [
    "Decision",
    "GATuner",
    "GridSearchTuner",
    "LocalBuilder",
    "LocalRunner",
    "Measure",
    "MeasureOption",
    "RPCRunner",
    "RandomTuner",
    "Report",
    "Result",
    "Space",
    "Task",
    "Tuner",
    "XGBTuner",
    "apply_history_best",
    "best_configuration",
    "extract_from_program",
    "log_to_file",
    "make_task",
    "measure_option",
    "progress_bar",
    "read_log",
    "space_of",
    "tune",
]
