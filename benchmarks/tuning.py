"""What tuners find within a number of trials, against the best of all configurations.

    python -m benchmarks.tuning [--only SUBSTRING] [--trials 64] [--seeds 5] [--log FILE] [--markdown FILE]

Every configuration of each workload is measured once, as `qnn-ext tune` does, into a log that a second run resumes.
Then each tuner tunes on these measurements instead of a machine, with several seeds: its share of the exhaustive best
is the best configuration's time over that of the one it found.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qnn_ext.autotune import LocalBuilder, MeasureOption, Result, Task, log_to_file, make_task, measure_option
from qnn_ext.autotune.tuners import TUNERS, make_tuner
from qnn_ext.files.storage import write_text
from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8 import BatchMatmulWorkload, Conv2dWorkload, Workload

ALL = 10**6
BYTES = ("uint8", "int8")


def conv(height: int, channels: tuple[int, int], kernel: int, stride: int = 1, groups: int = 1) -> Conv2dWorkload:
    """A square convolution with "same" padding."""
    padding = ((kernel - 1) // 2,) * 4 if stride == 1 else (0, 0, kernel // 2, kernel // 2)
    sizes = (1, height, height, *channels)
    return Conv2dWorkload(*sizes, (kernel, kernel), (stride, stride), padding, (1, 1), groups, *BYTES)


WORKLOADS: list[Workload] = [
    conv(513, (3, 16), 3, 2),
    conv(257, (16, 8), 1),
    conv(129, (12, 72), 1),
    conv(112, (16, 96), 1),
    conv(112, (96, 96), 3, 2, 96),
    conv(7, (960, 960), 3, 1, 960),
    BatchMatmulWorkload(12, 50, 64, 50, "uint8", "uint8"),
]
"""Mostly ones whose best configuration the cost model does not predict."""


class Replay:
    """A runner that knows all results."""

    tracker = None

    def __init__(self, results: dict[Any, Result]) -> None:
        self._results = results

    def run(self, task: Task, default: str, libraries: Sequence[tuple[Any, str]]) -> Iterator[Result]:
        return (self._results[configuration] for configuration, _ in libraries)

    def race(self, task: Task, libraries: Sequence[tuple[Any, str]], rounds: int = 4) -> list[Result]:
        default = Result(task, libraries[0][0], 1.0, 1.0)
        return [default, *(self._results[configuration] for configuration, _ in libraries[1:])]

    def close(self) -> None: ...


class NoBuilder(LocalBuilder):
    """Compiles nothing: everything has already been measured."""

    def __init__(self) -> None: ...

    def build(self, task: Task, configurations: Sequence[Any]) -> list[str | Result]:
        return ["measured"] * len(configurations)

    def close(self) -> None: ...


def exhaustive(task: Task, log: Path, option: MeasureOption) -> dict[Any, Result]:
    """The result of every configuration but the default's."""
    tuner = make_tuner("gridsearch", task)
    tuner.tune(ALL, option, callbacks=[log_to_file(log)])
    return tuner.results


def shares(name: str, task: Task, results: dict[Any, Result], trials: int, seeds: int) -> list[float]:
    """For each seed, the share of the exhaustive best that a tuner reaches; the default counts as found."""
    best = min(1.0, *(result.ratio for result in results.values()))
    found = []
    for seed in range(seeds):
        tuner = make_tuner(name, task, seed)
        tuner.tune(trials, measure_option(NoBuilder(), Replay(results)))  # type: ignore[arg-type]
        found.append(best / min(1.0, *(result.ratio for result in tuner.results.values())))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only workloads whose description contains this")
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--log", type=Path, default=Path("exhaustive.jsonl"))
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args(argv)
    target = make_target("native", 1)
    tasks = [task for workload in WORKLOADS if (task := make_task(workload, target)) and options.only in task.name]
    lines = [f"| workload | space | default | {' | '.join(TUNERS)} |", "|---|---:|---:|" + "---:|" * len(TUNERS)]
    lines[0] = lines[0].replace("default", "default's share")
    option = measure_option()
    try:
        for task in tasks:
            results = exhaustive(task, options.log, option)
            row = [task.name, str(len(results) + 1), f"{min(1.0, *(r.ratio for r in results.values())):.1%}"]
            for name in TUNERS:
                found = shares(name, task, results, options.trials, options.seeds)
                row.append(f"{np.mean(found):.1%} (≥ {min(found):.1%})")
            lines.append(f"| {' | '.join(row)} |")
            print(lines[-1], flush=True)
    finally:
        option.close()
    if options.markdown:
        write_text(options.markdown, "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
