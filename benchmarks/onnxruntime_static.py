"""ONNX Runtime's static quantization, for the benchmarks that compare with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def prepared(source: Path, target: Path) -> Path:
    """`source` as quantize_static wants it, with shapes and simplified, written to `target`."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    quant_pre_process(str(source), str(target))
    return target


def quantized(
    source: Path,
    target: Path,
    feeds: Iterable[Mapping[str, np.ndarray]],
    *,
    method: Any = None,
    per_channel: bool = True,
    symmetric: bool = False,
    excluded: Sequence[str] = (),
) -> Path:
    """The QDQ file of quantize_static, written to `target`: weights int8, activations uint8, or int8 if symmetric.

    source: a prepared file; feeds: inputs by name, for calibration; method: a CalibrationMethod, None: MinMax;
    excluded: nodes that stay in float
    """
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Feeds(CalibrationDataReader):
        def __init__(self) -> None:
            self._feeds = iter(feeds)

        def get_next(self) -> Mapping[str, np.ndarray] | None:
            return next(self._feeds, None)

    quantize_static(
        source,
        target,
        Feeds(),
        quant_format=QuantFormat.QDQ,
        per_channel=per_channel,
        activation_type=QuantType.QInt8 if symmetric else QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=CalibrationMethod.MinMax if method is None else method,
        nodes_to_exclude=list(excluded),
        extra_options={"ActivationSymmetric": symmetric},
    )
    return target


def session(path: Path, threads: int = 0, *, optimized: bool = True) -> Any:
    """A file in ONNX Runtime, on the CPU; threads: 0 takes its default.

    optimized: False computes a QDQ file in float, as its integer kernels do where they do not saturate: without VNNI
               they do, on x86
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
