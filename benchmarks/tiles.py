"""The register tile that the cost model chooses, against the best of all legal ones, per product of some models.

    python -m benchmarks.tiles [MODEL ...] [--json FILE] [--markdown FILE] [--within 1.6] [--only SUBSTRING]

Every distinct workload of the models is built separately, with bias and requantize as its epilogue, once with each
legal tile that the cost model predicts to be within a factor of the best, and all are timed in turns on one thread: the
minimum over many short batches counts, as in tuning. Without models it takes the workloads in `workloads.json`, those
of ResNet-50, MobileNetV1, V2 and V3, DeepLab, BERT and ViT. `--save-workloads FILE` writes such a file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm

from qnn_ext.autotune.kernel import kernel_of, product
from qnn_ext.autotune.task import Task, describe, extract_from_program, make_task
from qnn_ext.autotune.timing import Timer, race
from qnn_ext.cli.formats import ImportOptions, read_module, recognize
from qnn_ext.compiling.codegen import generate_code
from qnn_ext.files.storage import write_text
from qnn_ext.running.threads import use_tvm_threads
from qnn_ext.targets.names import check_runs_here, make_target
from qnn_ext.topi_int8.workload import workload_from, workload_to

WORKLOADS = Path(__file__).with_name("workloads.json")
ROUNDS = 6
CANDIDATES = 24  # tiles timed in turns; their code is compiled together


@dataclass
class Measured:
    """Seconds of one workload by tile, (rows, columns, blocks), in the order of predicted cost: the default first."""

    workload: Any
    seconds: dict[tuple[int, ...], float]

    @property
    def default(self) -> tuple[int, ...]:
        return next(iter(self.seconds))

    @property
    def best(self) -> tuple[int, ...]:
        return min(self.seconds, key=lambda tile: self.seconds[tile])

    @property
    def ratio(self) -> float:
        """The default tile's time over the best one's."""
        return self.seconds[self.default] / self.seconds[self.best]

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "workload": workload_to(self.workload),
            "tiles": [[*tile, value] for tile, value in self.seconds.items()],
        }

    def gops(self, tile: tuple[int, ...]) -> float:
        return 2 * self.workload.macs / self.seconds[tile] / 1e9


# ---- workloads ---------------------------------------------------------------------------------------------------


def workloads_of(path: Path, cpu: str) -> list[Any]:
    """The distinct products of a model whose kernels have tiles on the target."""
    module = read_module(path, recognize(path), ImportOptions())
    return [task.workload for task in extract_from_program(module, cpu, threads=1)]


# ---- measurement -------------------------------------------------------------------------------------------------


def measure(workload: Any, cpu: str, within: float, rounds: int = ROUNDS) -> Measured | None:
    """Time the legal tiles of a workload; None where its kernel has no tiles."""
    task = make_task(workload, make_target(cpu, 1))
    if task is None:
        return None
    implementation = task.implementation
    assert implementation.tiles is not None
    costs = implementation.tiles(workload)
    lowest = min(costs.values())
    kept = [tile for tile, cost in costs.items() if cost <= within * lowest]
    seconds: dict[Any, float] = {}
    for start in range(0, len(kept), CANDIDATES):
        group = kept[start : start + CANDIDATES]
        # The default is in every group, so that times are comparable between groups.
        seconds |= _race(task, [*dict.fromkeys([kept[0], *group])], rounds, seconds.get(kept[0]))
    return Measured(workload, {_sizes(tile): seconds[tile] for tile in kept})


def _sizes(tile: Any) -> tuple[int, ...]:
    return tuple(getattr(tile, name) for name in ("rows", "columns", "blocks") if hasattr(tile, name))


def _race(task: Task, tiles: Sequence[Any], rounds: int, reference: float | None) -> dict[Any, float]:
    """Minimum seconds of each tile, timed in turns; scaled so that the first tile takes `reference`, if given."""
    data = product(task.workload)
    kernels = [kernel_of(task, tile) for tile in tiles]
    functions = {
        f"tile{index}": kernel.module["main"].with_attr("global_symbol", f"tile{index}")
        for index, kernel in enumerate(kernels)
    }
    executable = generate_code(tvm.IRModule(functions), task.target).jit()
    shared = [tvm.runtime.tensor(value) for value in (*data.inputs, data.expected)]

    def timer(index: int) -> Timer:
        arguments = [*shared[:-1], *map(tvm.runtime.tensor, kernels[index].constants), shared[-1]]

        def run(number: int) -> float:
            return executable.time_evaluator(f"tile{index}", tvm.cpu(), number=number, repeat=4)(*arguments).min

        return run

    best = race([timer(index) for index in range(len(tiles))], 4 * rounds)
    scale = reference / best[0] if reference else 1.0
    return {tile: value * scale for tile, value in zip(tiles, best, strict=True)}


# ---- output ------------------------------------------------------------------------------------------------------


def table(measured: Iterable[Measured]) -> str:
    """Markdown: one line per workload."""
    lines = ["| workload | default | GOP/s | best | GOP/s | ratio |", "|---|---|---|---|---|---|"]
    for item in measured:
        default, best = ("×".join(map(str, tile)) for tile in (item.default, item.best))
        lines.append(
            f"| {describe(item.workload)} | {default} | {item.gops(item.default):.0f} "
            f"| {best} | {item.gops(item.best):.0f} | {item.ratio:.2f} |"
        )
    return "\n".join(lines)


def summary(measured: Sequence[Measured]) -> str:
    """How many defaults are within 10 % of the best, the worst of them, and the total loss over all workloads."""
    close = sum(item.ratio <= 1.1 for item in measured)
    worst = max(measured, key=lambda item: item.ratio)
    defaults, bests = (sum(item.seconds[getattr(item, name)] for item in measured) for name in ("default", "best"))
    return (
        f"{close} of {len(measured)} defaults within 10 % of the best tile; "
        f"worst {worst.ratio:.2f} ({describe(worst.workload)}); overall {defaults / bests:.3f}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--cpu", default="native", help="target to build for, which this machine must be able to run")
    parser.add_argument("--within", type=float, default=1.6, help="time tiles up to this factor of the predicted best")
    parser.add_argument("--only", default="", help="only workloads whose description contains this")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--save-workloads", type=Path, metavar="FILE", help="only write the workloads of the models")
    options = parser.parse_args(argv)
    use_tvm_threads(1)
    check_runs_here(make_target(options.cpu, 1))

    if options.models:
        found = [workload for path in options.models for workload in workloads_of(path, options.cpu)]
    else:
        found = [workload_from(fields) for fields in json.loads(WORKLOADS.read_text())]
    found = [workload for workload in dict.fromkeys(found) if options.only in describe(workload)]
    if options.save_workloads:
        lines = ",\n".join(json.dumps(workload_to(workload)) for workload in found)
        write_text(options.save_workloads, f"[\n{lines}\n]\n")
        return 0
    measured: list[Measured] = []
    for workload in found:
        item = measure(workload, options.cpu, options.within, options.rounds)
        if item is not None:
            measured.append(item)
            print(table([item]).splitlines()[-1], flush=True)
            if options.json:
                write_text(options.json, json.dumps([item.record() for item in measured], indent=1) + "\n")
    if not measured:
        print(f"none of {len(found)} workloads has tiles to compare on {options.cpu}")
        return 0
    print(summary(measured))
    if options.markdown:
        write_text(options.markdown, f"{table(measured)}\n\n{summary(measured)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
