"""Accuracy of 8-bit quantization on trained networks, against ONNX Runtime's quantize_static.

    python -m benchmarks.accuracy [--networks text regions ...] [--min-sqnr 30] [--folder FOLDER] [--markdown FILE]

The networks are those of `standins`; with a folder, those trained earlier are taken from there, and the rows of those
measured earlier, so that an interrupted run goes on where it was. All tools calibrate on the same 32 samples. SQNR is
that of the worst output on 64 others, against the float network, and the score is what the network is for. Ours: the
default configuration, then `control_accuracy` for the SQNR required, which is measured on the calibration samples; both
run as compiled integers. ONNX Runtime: the best of QDQ with three calibrators, per channel and per tensor, computed as
on CPUs where its kernels do not saturate.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import qnn_ext
from qnn_ext.compiling.coverage import coverage
from qnn_ext.errors import AccuracyError, QuantizationWarning
from qnn_ext.files.storage import write_text
from qnn_ext.module import QnnModule
from qnn_ext.quantize import QConfig, control_accuracy, quantize
from qnn_ext.quantize.analysis import FidelityMeter

from . import onnxruntime_static
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
    score: str
    seconds: float


def worst_sqnr(exact: Sequence[Sequence[np.ndarray]], found: Sequence[Sequence[np.ndarray]]) -> float:
    """Of the outputs, over all samples."""
    meters = [FidelityMeter() for _ in exact[0]]
    for expected, outputs in zip(exact, found, strict=True):
        for meter, x, y in zip(meters, expected, outputs, strict=True):
            meter.add(x, y)
    return min(meter.result.sqnr for meter in meters)


def measure(
    stand_in: StandIn, min_sqnr: float, methods: Sequence[str] = METHODS, work: Path | None = None
) -> Iterator[Row]:
    """The rows of one network, each as soon as it is measured. work: where `control_accuracy` keeps what it measures"""
    exact = _outputs(in_onnxruntime(stand_in.path), stand_in)

    def row(tool: str, setting: str, run: Run, share: float | None, started: float) -> Row:
        seconds = time.perf_counter() - started
        found = _outputs(run, stand_in)
        score = f"{stand_in.score(found):.2f} {stand_in.unit}"
        return Row(stand_in.name, tool, setting, worst_sqnr(exact, found), share, score, seconds)

    yield row("float", "", in_onnxruntime(stand_in.path), None, time.perf_counter())
    started = time.perf_counter()
    yield max(
        (row("ONNX Runtime", setting, run, None, started) for setting, run in by_onnxruntime(stand_in, methods)),
        key=lambda one: one.sqnr,
    )
    _say(f"{stand_in.name}: qnn_ext")
    module = qnn_ext.from_onnx(stand_in.path)
    started = time.perf_counter()
    plain = quantize(module, dataset=stand_in.calibration, config=QConfig())
    yield row("qnn_ext", "default", compiled(plain), coverage(plain).share_in_8_bits, started)
    started = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", QuantizationWarning)
            found_ours = control_accuracy(module, dataset=stand_in.calibration, min_sqnr=min_sqnr, work=work)
    except AccuracyError as error:
        yield Row(stand_in.name, "qnn_ext", str(error), float("nan"), None, "", time.perf_counter() - started)
        return
    result, chosen = found_ours.stages.result, found_ours.report.chosen
    setting = f"{min_sqnr:g} dB: {chosen.setting if chosen else ''}"
    yield row("qnn_ext", setting, compiled(result), coverage(result).share_in_8_bits, started)


def rows_of(name: str, folder: Path, min_sqnr: float) -> Iterator[Row]:
    """The rows of the network of this name, measured now unless the folder has them."""
    kept = folder / f"{name}.{min_sqnr:g}.json"
    if kept.exists():
        yield from (Row(**row) for row in json.loads(kept.read_text()))
        return
    _say(f"{name}: training")
    stand_in = make(name, folder)
    rows = []
    for row in measure(stand_in, min_sqnr, work=folder / f"{name}.search"):
        rows.append(asdict(row))
        yield row
    write_text(kept, json.dumps(rows))


def _say(text: str) -> None:
    """What is being done, apart from the table."""
    print(text, file=sys.stderr, flush=True)


def _outputs(run: Run, stand_in: StandIn) -> list[Sequence[np.ndarray]]:
    return [run(sample[None]) for sample in stand_in.held_out]


def compiled(module: QnnModule) -> Run:
    """A module as a function of one sample."""
    engine = qnn_ext.build(module)
    return lambda x: list(engine.run([x]).values())


def in_onnxruntime(path: Path) -> Run:
    """A file as a function of one sample, in float where it is a QDQ file."""
    session = onnxruntime_static.session(path, optimized=False)
    return lambda x: session.run(None, {"x": x})


def by_onnxruntime(stand_in: StandIn, methods: Sequence[str]) -> Iterator[tuple[str, Run]]:
    """The network quantized by quantize_static with each setting."""
    from onnxruntime.quantization import CalibrationMethod

    with tempfile.TemporaryDirectory() as folder:
        prepared = onnxruntime_static.prepared(stand_in.path, Path(folder) / "prepared.onnx")
        for method in methods:
            for per_channel in (True, False):
                feeds = [{"x": sample[None]} for sample in stand_in.calibration]
                kind = getattr(CalibrationMethod, method)
                setting = f"{method}, per {'channel' if per_channel else 'tensor'}"
                _say(f"{stand_in.name}: ONNX Runtime, {setting}")
                target = Path(folder) / "quantized.onnx"
                onnxruntime_static.quantized(prepared, target, feeds, method=kind, per_channel=per_channel)
                yield setting, in_onnxruntime(target)


def markdown(rows: Sequence[Row]) -> str:
    """One table; the best SQNR of each network is bold."""
    lines = ["| network | tool | setting | SQNR | in 8 bits | score | time |", "|---|---|---|---|---|---|---|"]
    best = {row.network: max([r.sqnr for r in rows if r.network == row.network and np.isfinite(r.sqnr)], default=0.0)
            for row in rows}  # fmt: skip
    for row in rows:
        sqnr = "" if row.sqnr == np.inf else f"{row.sqnr:.1f} dB"
        sqnr = f"**{sqnr}**" if row.sqnr == best[row.network] else sqnr
        share = "" if row.share is None else f"{100 * row.share:.1f} %"
        cells = row.network, row.tool, row.setting, sqnr, share, row.score, f"{row.seconds:.0f} s"
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--min-sqnr", type=float, default=30.0)
    parser.add_argument("--folder", type=Path, help="where trained networks and their rows are kept")
    parser.add_argument("--markdown", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in options.networks:
            for row in rows_of(name, folder, options.min_sqnr):
                rows.append(row)
                print(markdown([row]).splitlines()[-1], flush=True)
    if options.markdown:
        write_text(options.markdown, markdown(rows))


if __name__ == "__main__":
    main()
