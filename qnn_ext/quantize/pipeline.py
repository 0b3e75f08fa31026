"""quantize: a float model becomes an integer one, on request as accurate as required."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from tvm import IRModule

from ..errors import QuantizationError
from ..module import QnnModule
from .config import QConfig
from .control import control_accuracy
from .judge import Metric
from .stages import Stages, TableLike, stages


def quantize(
    mod: QnnModule | IRModule,
    params: Mapping[str, Any] | None = None,
    dataset: Any = None,
    config: QConfig | None = None,
    table: TableLike | None = None,
    progress: bool = False,
    *,
    validation_data: Any = None,
    min_sqnr: float | None = None,
    metric: Metric | None = None,
    max_drop: float | None = None,
    drop_type: str = "absolute",
    work: str | os.PathLike | None = None,
) -> QnnModule:
    """Quantize a float model into one that computes with integers.

    mod:      float32, as `from_onnx`, `from_tflite`, `from_pytorch` and `from_mxnet` return it, or an IRModule
    params:   values of inputs of `main` that are weights: name → array. They become constants
    dataset:  to calibrate on, as `dataset.batches` takes it: arrays, iterables of them, a loader, a file, a folder
    config:   default: that of the innermost `with qconfig(...)`, else QConfig()
    table:    ranges to use instead of calibrating: a CalibrationTable or the path of one
    progress: show a progress bar, then `Stages.accuracy` in one line

    With a goal, settings and layers in 16 bits or float are searched until the model is accurate enough:
    validation_data: what accuracy is measured on, as `dataset`; None: the same data, of which a fourth does not
              calibrate then if there are 8 batches or more
    min_sqnr: required signal-to-noise ratio of every output, in dB
    metric, max_drop: function of a model, higher for a better one, and by how much it may be lower than in float, in
              its units, or with drop_type "relative" as a share: 0.01 is one percent
    work:     folder that keeps each measurement, so that an interrupted search goes on
    `control_accuracy` has more options and also returns what was tried.

    Raises QuantizationError: nothing to calibrate with, samples or table that do not fit, contradictory configuration.
    Raises AccuracyError if no setting reaches the goal. Source: Relay's relay.quantize.quantize, which has the same
    positional arguments.
    """
    if min_sqnr is None and metric is None and max_drop is None:
        if work is not None:
            raise QuantizationError("work keeps the measurements of a search: give min_sqnr, or metric with max_drop")
        if validation_data is not None:
            raise QuantizationError("validation_data are for a search: give min_sqnr, or metric with max_drop")
        if drop_type != "absolute":
            raise QuantizationError("drop_type says what max_drop is: give metric with max_drop")
        return _told(stages(mod, params, dataset, config, table, progress), progress)
    if table is not None:
        raise QuantizationError("a search for accuracy calibrates for itself: give a dataset instead of a table")
    found = control_accuracy(
        mod,
        params,
        dataset,
        config,
        validation_data=validation_data,
        min_sqnr=min_sqnr,
        metric=metric,
        max_drop=max_drop,
        drop_type=drop_type,
        work=work,
        progress=progress,
    )
    return _told(found.stages, progress)


def _told(done: Stages, progress: bool) -> QnnModule:
    """The result, with its accuracy on stderr if `progress`."""
    if progress and done.accuracy is not None:
        print(done.accuracy.summary, file=sys.stderr)
    return done.result
