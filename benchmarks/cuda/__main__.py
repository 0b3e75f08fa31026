"""qnn_ext on an NVIDIA GPU: exactness of whole models, then latency and throughput beside other runtimes.

    python -m benchmarks.cuda [--minutes 10] [--json FILE] [--markdown FILE] [--models PATH ...] [--networks DIR]
                              [--batches 1 8 64]

First all models are built, several at a time, for at most half of the time. Then, in this order, until the time is up:
the GPU's int8 peak; every model's outputs against the CPU build, bit for bit; int8 products beside torch._int_mm;
models at batch 1, then 8, then 64, with kernels launched one by one and as a CUDA graph, beside our own float32 and
float16 builds, ONNX Runtime's CUDA and TensorRT providers and PyTorch, where they are installed. Each runs in its own
process, they take turns, and the median counts. Whatever fails gets a row that says why. The FILEs are rewritten after
every step.

Models: the bundled ones, and ResNet-50, MobileNetV2, ViT-B/32 and BERT-base from the folder --networks. Missing files
are made, which takes minutes and the packages in scripts/requirements-train.txt; they can be made beforehand on any
machine:

    python -m scripts.networks --out DIR --only resnet50 mobilenet_v2 vit_b_32 bert_base \\
        --format onnx-static float32 --batch 8

The exit code is 1 where there is no GPU, where an output differs from the CPU's, or where one of our builds fails for
any reason but lack of time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from qnn_ext import TargetError
from qnn_ext.files.storage import write_text
from qnn_ext.targets import gpus as gpu

from ..models import BUNDLED, ROOT
from ..results import _versions
from ..turns import Times, take_turns
from ..worker import Task, Worker, WorkerError
from .compiling import FORMS, Compiled, compile_item
from .plan import BATCHES, FORMAT, GEMMS, NETWORKS, Budget, Item, plan
from .report import BUILDS, Gemm, Report, Row, agreement, markdown, to_json
from .runners import GEMM, INT_MM, OURS, PEAK, PREFIX, PROVIDERS, TORCH, available_peers

SETUP_S = 120.0  # time limit for a runtime to load a model
BUILD_S = 240.0  # time limit for building one
MAKE_S = 400.0  # time limit for making a network
LEAST_S = 10.0  # no step is started with less than this left
BUILDING = 0.5  # share of the time
CORES_PER_BUILD = 2
LATE = "not built within the time limit"
ROUNDS, TURN_S = 9, 0.05


class Bench:
    """A run: fills its report step by step."""

    def __init__(self, report: Report, peers: Sequence[str], budget: Budget, folder: Path) -> None:
        self.report = report
        self._peers, self._budget, self._folder = peers, budget, folder
        self._compiled: dict[tuple[Path, str], Compiled | str] = {}
        self._unmade: dict[Path, str] = {}

    def measure_peak(self) -> None:
        """The int8 peak."""
        times, failures, works = self._turns({PEAK: Task(PREFIX + PEAK, "", 1)})
        if PEAK in times:
            self.report.peak = works[PEAK][1] / times[PEAK].least
            self.report.instruction = works[PEAK][0]
        else:
            print(f"the GPU's peak is unknown: {failures[PEAK]}", file=sys.stderr)

    def measure_gemm(self, m: int, k: int, n: int) -> None:
        """One product by our kernel and by PyTorch's."""
        kinds = [GEMM, *(peer for peer in self._peers if peer == INT_MM)]
        result = Gemm(m, k, n)
        times, failures, names = self._turns({kind: Task(PREFIX + kind, f"{m},{k},{n}", 1) for kind in kinds})
        titles = {kind: OURS if kind == GEMM else names.get(kind, ("torch._int_mm", 0))[0] for kind in kinds}
        result.times = {titles[kind]: found for kind, found in times.items()}
        result.failures = {titles[kind]: why for kind, why in failures.items()}
        self.report.gemms.append(result)

    def check(self, item: Item) -> Row:
        """A model's outputs against the CPU's."""
        row = Row(item.network, item.model.path.name, item.batch)
        self.report.rows.append(row)
        if item.model.path in self._unmade:
            row.failures["made"] = self._unmade[item.model.path]
            return row
        compiled = self._form(item, "int8")
        if isinstance(compiled, str):
            row.failures["built"] = compiled
            return row
        row.macs, row.integer_share = compiled.macs, compiled.integer_share
        row.build_seconds = compiled.built.seconds
        worker = Worker(self._model_task(compiled))
        try:
            row.exact = agreement(worker.wait(self._budget.limit(SETUP_S)).outputs, compiled.expected)
        except (WorkerError, ValueError) as error:
            row.failures[BUILDS[0]] = str(error)
        finally:
            worker.close()
        return row

    def measure(self, item: Item, row: Row) -> None:
        """Times of a model that `check` has built, and of its peers."""
        if row.failures:
            return
        tasks = {}
        for title, form in zip(BUILDS, FORMS, strict=True):
            if form != "int8" and item.float_twin is None:
                continue
            compiled = self._form(item, form)
            if isinstance(compiled, str):
                row.failures[title] = compiled
            else:
                tasks[title] = self._model_task(compiled)
        inputs = next(iter(tasks.values())).inputs
        if item.model.format == "onnx":
            for key in (peer for peer in self._peers if peer in PROVIDERS):
                tasks[key] = Task(PREFIX + key, str(item.model.path), 1, inputs)
        if item.network in NETWORKS:
            for key in (peer for peer in self._peers if peer in TORCH):
                tasks[key] = Task(PREFIX + key, f"{item.network},{item.batch}", 1)
        times, failures, _ = self._turns(tasks)
        row.times.update(times)
        row.failures.update(failures)

    def _model_task(self, compiled: Compiled) -> Task:
        return Task(PREFIX + OURS, compiled.built.path, 1, compiled.inputs)

    def build(self, items: Sequence[Item], budget: Budget) -> None:
        """Make missing files and build everything: the int8 models in their order, then the float ones."""
        workers = max(1, (os.cpu_count() or 1) // CORES_PER_BUILD)
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(lambda item: self._make(item, budget) and self._build(item, "int8", budget), items))
            forms = [(item, form) for item in items if item.float_twin is not None for form in FORMS[1:]]
            list(pool.map(lambda pair: self._build(*pair, budget), forms))

    def _make(self, item: Item, budget: Budget) -> bool:
        """Make the missing files of a network; whether they exist now."""
        if not item.missing:
            return True
        limit = budget.limit(MAKE_S)
        if limit < LEAST_S:
            self._unmade[item.model.path] = LATE
            return False
        command = [sys.executable, "-m", "scripts.networks", "--out", str(item.model.path.parent)]
        command += ["--only", item.network, "--batch", str(item.batch), "--format", FORMAT, "float32"]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            self._unmade[item.model.path] = (
                f"scripts.networks did not end within {limit:.0f} s: make the network beforehand"
            )
            return False
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it failed"])[-1]
            self._unmade[item.model.path] = f"scripts.networks: {last}"
        return done.returncode == 0

    def _build(self, item: Item, form: str, budget: Budget) -> None:
        limit = budget.limit(BUILD_S)
        if limit < LEAST_S:
            return
        key = (item.model.path, form)
        try:
            self._compiled[key] = compile_item(item, form, self.report.architecture, self._folder, limit)
        except WorkerError as error:
            self._compiled[key] = str(error)

    def _form(self, item: Item, form: str) -> Compiled | str:
        """One form of the model, or why there is none."""
        return self._compiled.get((item.model.path, form), LATE)

    def _turns(self, tasks: dict[str, Task]) -> tuple[dict[str, Times], dict[str, str], dict[str, tuple[str, float]]]:
        """Times of all tasks that survived, why the others did not, and each runner's name and work."""
        workers: dict[str, Worker] = {}
        failures: dict[str, str] = {}
        ready: dict[str, tuple[str, float]] = {}
        try:
            for key, task in tasks.items():
                worker = workers[key] = Worker(task)
                try:
                    found = worker.wait(self._budget.limit(SETUP_S))
                    ready[key] = (found.name, found.work)
                except WorkerError as error:
                    failures[key] = str(error)
            lasting = {key: worker for key, worker in workers.items() if key not in failures}
            times, lost = take_turns(lasting, ROUNDS, TURN_S) if lasting else ({}, {})
        finally:
            for worker in workers.values():
                worker.close()
        return times, {**failures, **lost}, ready


def run(bench: Bench, items: Sequence[Item], budget: Budget, options: argparse.Namespace) -> None:
    """All steps in order; those there is no time for are listed."""
    rows: dict[Path, Row] = {}
    steps = [("the peak", bench.measure_peak)]
    small = [item for item in items if item.batch == 1]
    steps += [(f"check of {item.model.path.name}", _checked(bench, item, rows)) for item in small]
    steps += [(f"product {sizes}", _product(bench, sizes)) for sizes in GEMMS]
    timed = sorted(items, key=lambda item: item.network not in NETWORKS)  # networks are more telling than small models
    steps += [(f"times of {item.model.path.name}", _measured(bench, item, rows)) for item in timed]
    for number, (title, step) in enumerate(steps, 1):
        if not budget.allows(LEAST_S):
            bench.report.not_reached.append(title)
            continue
        step()
        print(f"[{number}/{len(steps)}] {title}", file=sys.stderr, flush=True)
        _write(options, bench.report)
    _write(options, bench.report)


def _checked(bench: Bench, item: Item, rows: dict[Path, Row]):
    def step() -> None:
        rows[item.model.path] = bench.check(item)

    return step


def _measured(bench: Bench, item: Item, rows: dict[Path, Row]):
    def step() -> None:
        if item.model.path not in rows:  # a larger batch: its outputs are checked here
            rows[item.model.path] = bench.check(item)
        bench.measure(item, rows[item.model.path])

    return step


def _product(bench: Bench, sizes: tuple[int, int, int]):
    return lambda: bench.measure_gemm(*sizes)


def _write(options: argparse.Namespace, report: Report) -> None:
    if options.json:
        write_text(options.json, json.dumps(to_json(report), indent=1) + "\n")
    if options.markdown:
        write_text(options.markdown, markdown(report))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write. See the module's docstring for the exit code."""
    options = _parse(arguments)
    try:
        architecture = gpu.architecture_of("cuda")
    except TargetError as error:
        print(f"error: no GPU to measure: {str(error).partition(': give an')[0]}", file=sys.stderr)
        return 1
    budget = Budget(60 * options.minutes)
    peers, reasons = available_peers()
    report = Report(_device_name(), architecture, _versions(), left_out=reasons)
    items = plan([BUNDLED, *options.models], options.networks, options.only, options.batches)
    with tempfile.TemporaryDirectory(prefix="qnn-ext-bench-") as folder:
        bench = Bench(report, peers, budget, Path(folder))
        bench.build(items, Budget(60 * options.minutes * BUILDING))
        run(bench, items, budget, options)
    print(markdown(report))
    ours = [*BUILDS, "built"]
    failures = [why for row in report.rows for name, why in row.failures.items() if name in ours]
    return int(any(row.is_wrong for row in report.rows) or any(why != LATE for why in failures))


def _device_name() -> str:
    import tvm

    return str(tvm.cuda().device_name)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "benchmarks.cuda", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10, help="start no new step after this many minutes (10)")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file")
    parser.add_argument("--models", type=Path, nargs="*", default=[], help="more quantized models, or folders of them")
    parser.add_argument("--networks", type=Path, default=ROOT / "networks", help="folder with the network files")
    parser.add_argument("--only", nargs="*", choices=NETWORKS, default=list(NETWORKS), help="networks to measure (all)")
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES), help="batch sizes (1 8 64)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
