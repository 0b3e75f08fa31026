"""Calibration throughput, against plain inference of the same float module.

    python -m benchmarks.calibration MODEL.onnx [--modes minmax auto ...] [--samples 16] [--rounds 5] [--workers 1 2]

Inputs are random normal (the time does not depend on what they mean). Plain inference and every calibration mode take
turns; only per-sample work is timed, not one-time compilation.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

import qnn_ext
from qnn_ext.module import QnnModule, TensorSpec
from qnn_ext.quantize.annotate import annotate, sites
from qnn_ext.quantize.calibrators import Calibrator, Settings, make_calibrator
from qnn_ext.quantize.collect import Batch, Reader, collect
from qnn_ext.quantize.config import QConfig
from qnn_ext.quantize.fields import CALIBRATE_MODES
from qnn_ext.quantize.fold import fold
from qnn_ext.quantize.instrument import instrument

GOAL = 0.5  # share of inference throughput


@dataclass(frozen=True)
class Speed:
    """Samples per second, medians over the rounds; ratio: inference time over calibration time."""

    mode: str
    workers: int
    inference: float
    calibration: float
    ratio: float


def measure(
    module: QnnModule, modes: Sequence[str], samples: int, rounds: int, workers: Sequence[int] = (1,)
) -> list[Speed]:
    """The speed of each mode with each number of worker processes. Workers are restarted in each round: give them
    enough to do, or start-up is what you measure."""
    folded = fold(module, QConfig())
    annotated = annotate(folded, QConfig())
    names = [site.name for site in sites(annotated) if site.role != "weight"]
    instrumented = instrument(annotated, names)
    plain, observed = qnn_ext.build(folded), qnn_ext.build(instrumented.module)
    batches: list[Batch] = [[_random(spec, seed) for spec in module.inputs] for seed in range(samples)]

    def inference() -> None:
        for batch in batches:
            plain.run(tuple(batch))

    def calibration(mode: str, count: int) -> Callable[[], None]:
        calibrator: Calibrator = make_calibrator(mode, Settings(dtype="uint8", symmetric=False))
        reader = Reader(instrumented.sites, dict.fromkeys(names, calibrator))
        return lambda: collect(observed, reader, batches, count)

    ways = {(mode, count): calibration(mode, count) for mode in modes for count in workers}
    times = _take_turns({"inference": inference, **ways}, rounds)
    base = times["inference"]
    return [
        Speed(mode, count, samples / np.median(base), samples / np.median(taken), float(np.median(base / taken)))
        for (mode, count), taken in ((way, times[way]) for way in ways)
    ]


def _random(spec: TensorSpec, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if np.dtype(spec.dtype).kind == "f":
        return rng.standard_normal(spec.shape).astype(spec.dtype)
    return rng.integers(0, 2, spec.shape).astype(spec.dtype)


def _take_turns(ways: Mapping[object, Callable[[], None]], rounds: int) -> dict[object, np.ndarray]:
    """Seconds of each mode in each round, after one uncounted round."""
    times: dict[object, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, run in ways.items():
            start = time.perf_counter()
            run()
            if number:
                times[name].append(time.perf_counter() - start)
    return {name: np.array(taken) for name, taken in times.items()}


def markdown(speeds: Sequence[Speed]) -> str:
    """A table."""
    lines = ["| mode | processes | inference | calibration | ratio |", "|---|---|---|---|---|"]
    lines += [
        f"| {s.mode} | {s.workers} | {s.inference:.2f}/s | {s.calibration:.2f}/s | {s.ratio:.2f} |" for s in speeds
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 when a mode misses the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a float ONNX model")
    parser.add_argument("--modes", nargs="+", choices=CALIBRATE_MODES, default=["minmax", "auto"])
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", nargs="+", type=int, default=[1])
    options = parser.parse_args(arguments)
    module = qnn_ext.from_onnx(options.model)
    speeds = measure(module, options.modes, options.samples, options.rounds, options.workers)
    print(markdown(speeds))
    return int(any(speed.ratio < GOAL for speed in speeds))


if __name__ == "__main__":
    raise SystemExit(main())
