"""Accuracy of 8-bit quantization on networks that are hard to quantize, against ONNX Runtime's quantize_static.

    python -m benchmarks.accuracy [--networks ocr audio residual detector] [--min-sqnr 30] [--markdown FILE]

The networks are those of `standins`. All tools calibrate on the same 16 samples; SQNR is that of the worst output on
16 others, against the float network. Ours: the default configuration, then `control_accuracy` for the SQNR required,
which is measured on the calibration samples. ONNX Runtime: QDQ with each calibrator, the better of per channel and per
tensor.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import qnn_ext
from qnn_ext.compiling.coverage import coverage
from qnn_ext.errors import AccuracyError, QuantizationWarning
from qnn_ext.files.storage import write_text
from qnn_ext.module import QnnModule
from qnn_ext.quantize import QConfig, control_accuracy, quantize
from qnn_ext.quantize.analysis import FidelityMeter

from .standins import NAMES, StandIn, make

METHODS = ("MinMax", "Percentile", "Entropy")

Run = Callable[[np.ndarray], Sequence[np.ndarray]]


@dataclass(frozen=True)
class Row:
    """One way to quantize a network. share: of the multiply-accumulates in 8 bits; seconds: to quantize it."""

    network: str
    tool: str
    setting: str
    sqnr: float
    share: float | None
    seconds: float


def worst_sqnr(exact: Sequence[Sequence[np.ndarray]], run: Run, samples: np.ndarray) -> float:
    """Of the outputs, over all samples."""
    meters = [FidelityMeter() for _ in exact[0]]
    for sample, expected in zip(samples, exact, strict=True):
        for meter, x, y in zip(meters, expected, run(sample[None]), strict=True):
            meter.add(x, y)
    return min(meter.result.sqnr for meter in meters)


def measure(stand_in: StandIn, min_sqnr: float, methods: Sequence[str] = METHODS) -> Iterator[Row]:
    """The rows of one network."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(stand_in.path), providers=["CPUExecutionProvider"])
    exact = [session.run(None, {"x": sample[None]}) for sample in stand_in.held_out]

    def row(tool: str, setting: str, run: Run, share: float | None, started: float) -> Row:
        seconds = time.perf_counter() - started
        return Row(stand_in.name, tool, setting, worst_sqnr(exact, run, stand_in.held_out), share, seconds)

    for method in methods:
        started = time.perf_counter()
        found = [
            row("ONNX Runtime", method, by_onnxruntime(stand_in, method, per), None, started) for per in (True, False)
        ]
        yield max(found, key=lambda one: one.sqnr)
    module = qnn_ext.from_onnx(stand_in.path)
    started = time.perf_counter()
    plain = quantize(module, dataset=stand_in.calibration, config=QConfig())
    yield row("qnn_ext", "default", compiled(plain), coverage(plain).share_in_8_bits, started)
    started = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", QuantizationWarning)
            found_ours = control_accuracy(module, dataset=stand_in.calibration, min_sqnr=min_sqnr)
    except AccuracyError as error:
        yield Row(stand_in.name, "qnn_ext", str(error), float("nan"), None, time.perf_counter() - started)
        return
    result, chosen = found_ours.stages.result, found_ours.report.chosen
    setting = f"{min_sqnr:g} dB: {chosen.setting if chosen else ''}"
    yield row("qnn_ext", setting, compiled(result), coverage(result).share_in_8_bits, started)


def compiled(module: QnnModule) -> Run:
    """A module as a function of one sample."""
    engine = qnn_ext.build(module)
    return lambda x: list(engine.run([x]).values())


def by_onnxruntime(stand_in: StandIn, method: str, per_channel: bool) -> Run:
    """The network quantized by quantize_static, as a function of one sample."""
    import onnxruntime
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Samples(CalibrationDataReader):
        def __init__(self) -> None:
            self._feeds = iter([{"x": sample[None]} for sample in stand_in.calibration])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self._feeds, None)

    prepared, target = (stand_in.path.with_suffix(f".{name}.onnx") for name in ("prepared", "quantized"))
    quant_pre_process(str(stand_in.path), str(prepared))
    quantize_static(
        prepared,
        target,
        Samples(),
        quant_format=QuantFormat.QDQ,
        per_channel=per_channel,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=getattr(CalibrationMethod, method),
    )
    session: Any = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x})


def markdown(rows: Sequence[Row]) -> str:
    """One table; the best SQNR of each network is bold."""
    lines = ["| network | tool | setting | SQNR | in 8 bits | time |", "|---|---|---|---|---|---|"]
    best = {
        row.network: max(np.nan_to_num(r.sqnr, nan=-np.inf) for r in rows if r.network == row.network) for row in rows
    }
    for row in rows:
        sqnr = f"**{row.sqnr:.1f} dB**" if row.sqnr == best[row.network] else f"{row.sqnr:.1f} dB"
        share = "" if row.share is None else f"{100 * row.share:.1f} %"
        lines.append(f"| {row.network} | {row.tool} | {row.setting} | {sqnr} | {share} | {row.seconds:.0f} s |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--min-sqnr", type=float, default=30.0)
    parser.add_argument("--markdown", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.networks:
            for row in measure(make(name, Path(folder)), options.min_sqnr):
                rows.append(row)
                print(markdown([row]).splitlines()[-1], flush=True)
    if options.markdown:
        write_text(options.markdown, markdown(rows))


if __name__ == "__main__":
    main()
