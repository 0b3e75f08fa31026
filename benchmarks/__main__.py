"""qnn_ext side by side with LiteRT, ONNX Runtime, OpenVINO and PyTorch: same model file, same input, same threads.

    python -m benchmarks [--models PATH ... | --architectures [NAME ...] | --operators [NAME ...]] [--only PART ...]
                         [--threads 1 2] [--json FILE] [--markdown FILE] [--plots DIR]

Models: the bundled ones and those of ../shared/models where that folder exists, or those given by --models; plus those
given by --add: files, or folders such as `python -m scripts.networks` writes. With --architectures they are the
networks of `architectures.py`, of random weights, made for the run, with --operators the single operators of
`operators.py`. A runtime that is not installed is left out. Each runtime runs in its own process; they take turns, so
that a busy moment of the machine affects all alike, and the median counts. Whatever fails gets a row that says why.

Printed: latencies, and the ratio of the best other runtime's to ours; the share of the machine's peak that each class
of layers reaches: of 8-bit dot products, of float32 or bfloat16; import and build times, file size, peak memory, and
how well the outputs agree; int8 against the float32 network where NETWORK.float32.onnx lies beside NETWORK.*.
Throughput of several engines at once: `python -m benchmarks.streams`.

All available models on one and two threads take about 15 minutes on two cores. Leave the machine idle meanwhile:
another process on one of two cores doubles the time of two threads. Where that is impossible, --realtime gives the
runtimes priority. With --slow-core a share of one core's time is taken away, as on a CPU with big and little cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from qnn_ext.files.storage import write_text
from qnn_ext.passes.low_precision import PRECISIONS
from qnn_ext.processes.cores import default_threads
from qnn_ext.report.machine import ARITHMETIC

from .architectures import ARCHITECTURES, write_architectures
from .comparison import Options, compare
from .compiling import Compiled, compile_model
from .disturbances import slow_core
from .models import Model, default_models, find_models
from .operators import OPERATORS, write_operators
from .plots import write_plots
from .report import markdown
from .results import Machine, Result, to_json
from .runners import PEERS, READS, Peer
from .turns import take_turns
from .worker import Task, Worker, WorkerError


class Bench:
    """A run over many models."""

    def __init__(self, threads: list[int], peers: list[Peer], options: Options) -> None:
        self.machine = Machine.here()
        self.results: list[Result] = []
        self._threads = threads
        self._peers = peers
        self._options = options
        self._peaks: dict[int, dict[str, Worker]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="qnn-ext-bench-")
        self._twins: dict[Path, Compiled | WorkerError] = {}

    def __enter__(self) -> Bench:
        for count in self._threads:
            self._measure_machine(count)
        return self

    def __exit__(self, *_: object) -> None:
        for workers in self._peaks.values():
            for worker in workers.values():
                worker.close()
        self._folder.cleanup()

    def run(self, model: Model) -> Result:
        """Measure one model; failures are recorded, not raised."""
        result = Result(model)
        self.results.append(result)
        folder = Path(self._folder.name)
        try:
            result.compiled = compile_model(
                model, self._threads, folder, 600, self._options.verbose, self._options.precision
            )
        except WorkerError as error:
            result.error = str(error)
        twin = self._twin(model.float_twin)
        if isinstance(twin, WorkerError):
            result.float_error, twin = str(twin), None
        for count in self._threads:
            peaks = self._peaks.get(count, {})
            result.comparisons.append(compare(model, count, result.compiled, twin, self._peers, peaks, self._options))
        for path in folder.glob(f"{model.path.name}.*.qnn"):
            path.unlink()
        return result

    def _twin(self, model: Model | None) -> Compiled | WorkerError | None:
        """The float network, compiled once for all files quantized from it."""
        if model is None:
            return None
        if model.path not in self._twins:
            folder = Path(self._folder.name, "float32")
            folder.mkdir(exist_ok=True)
            try:
                self._twins[model.path] = compile_model(
                    model, self._threads, folder, 600, self._options.verbose, self._options.precision
                )
            except WorkerError as error:
                self._twins[model.path] = error
        return self._twins[model.path]

    def _measure_machine(self, threads: int) -> None:
        """The peaks and the memory bandwidth. The peaks' workers are kept, to measure with every model."""
        tasks = {arithmetic: Task("peak", arithmetic, threads) for arithmetic in ARITHMETIC}
        tasks.update({place: Task("read", place, threads) for place in READS})
        workers = {name: Worker(task, self._options.verbose, self._options.realtime) for name, task in tasks.items()}
        try:
            ready = {}
            for name in tasks:
                try:
                    ready[name] = workers[name].wait(self._options.setup_limit)
                except WorkerError as error:  # no such instruction, say: then there is no share of its peak
                    print(f"{name}: {error}", file=sys.stderr)
            times, _ = take_turns(
                {name: workers[name] for name in ready}, self._options.rounds, self._options.seconds_per_turn
            )
            rates = {name: ready[name].work / taken.least for name, taken in times.items()}
            found = [arithmetic for arithmetic in ARITHMETIC if arithmetic in rates]
            self.machine.peaks[threads] = {ready[arithmetic].name: rates[arithmetic] for arithmetic in found}
            self.machine.reads[threads] = {place: rates[place] for place in READS if place in rates}
            self._peaks[threads] = {arithmetic: workers.pop(arithmetic) for arithmetic in found}
        finally:
            for worker in workers.values():
                worker.close()


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write; returns 1 if one of our own models failed."""
    options = _parse(arguments)
    peers = [peer for peer in PEERS if peer.key in options.peers]
    for peer in [peer for peer in peers if peer.missing]:
        print(f"{peer.title} is skipped: {', '.join(peer.missing)} is not installed", file=sys.stderr)
    peers = [peer for peer in peers if not peer.missing]
    rounds, length = (3, 0.01) if options.quick else (options.rounds, 0.04)
    how = Options(rounds, length, options.setup_limit, options.realtime, options.verbose, options.precision)
    with (
        slow_core(options.slow_core),
        tempfile.TemporaryDirectory(prefix="qnn-ext-architectures-") as made,
        Bench(options.threads, peers, how) as bench,
    ):
        models = _models(options, Path(made))
        for number, model in enumerate(models, 1):
            result = bench.run(model)
            print(f"[{number}/{len(models)}] {_summary(result)}", file=sys.stderr, flush=True)
            _write(options, bench)
        print(markdown(bench.machine, bench.results))
        if options.plots:
            write_plots(options.plots, bench.results)
    return int(any(result.error for result in bench.results))


def _models(options: argparse.Namespace, folder: Path) -> list[Model]:
    """The models to measure; those that are made for the run are written to `folder`."""
    models = find_models(options.models) if options.models else []
    for asked, known, write in (
        (options.architectures, ARCHITECTURES, write_architectures),
        (options.operators, OPERATORS, write_operators),
    ):
        if asked is not None:
            write([name for name in asked or known if any(part in name for part in options.only)], folder)
    if options.architectures is not None or options.operators is not None:
        models += find_models([folder])
    elif not options.models:
        models = default_models()
    models += find_models(options.add)
    return [model for model in models if any(part in model.path.name for part in options.only)]


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    keys = [peer.key for peer in PEERS]
    threads = [1, 2] if default_threads() > 1 else [1]
    parser = argparse.ArgumentParser(
        "benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", type=Path, help="files or folders instead of the default models")
    parser.add_argument(
        "--add", nargs="+", type=Path, default=[], help="files or folders in addition to the default models"
    )
    parser.add_argument(
        "--architectures", nargs="*", metavar="NAME", choices=ARCHITECTURES,
        help=f"networks made for the run instead of the default models (all): {', '.join(ARCHITECTURES)}",
    )  # fmt: skip
    parser.add_argument(
        "--operators", nargs="*", metavar="NAME", choices=OPERATORS,
        help="single operators behind a quantized convolution instead of the default models (all)",
    )  # fmt: skip
    parser.add_argument("--only", nargs="+", default=[""], help="only files whose name contains one of these")
    parser.add_argument("--threads", nargs="+", type=int, default=threads, help="thread counts to measure with (1, 2)")
    parser.add_argument("--peers", nargs="*", choices=keys, default=keys, help="runtimes to compare with (all)")
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="float32",
        help="of float products, ours and those of runtimes that have it; the others are left out (float32)",
    )
    parser.add_argument("--rounds", type=int, default=15, help="number of turns per runtime (15)")
    parser.add_argument("--quick", action="store_true", help="only 3 short turns, to check that everything runs")
    parser.add_argument(
        "--setup-limit", type=float, default=180, help="time limit for a runtime to load a model, in seconds (180)"
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file")
    parser.add_argument("--plots", type=Path, help="write plots into this folder")
    parser.add_argument(
        "--realtime", action="store_true", help="measure with real-time priority on a busy machine (needs root)"
    )
    parser.add_argument(
        "--slow-core", type=float, default=0.0, metavar="SHARE",
        help="take this share of the last core's time away, 0.2 ms at a time (0; needs root)",
    )  # fmt: skip
    parser.add_argument("--verbose", action="store_true", help="show what the runtimes print")
    options = parser.parse_args(arguments)
    if not 0 <= options.slow_core < 1:
        parser.error("--slow-core takes a share from 0 to below 1")
    return options


def _write(options: argparse.Namespace, bench: Bench) -> None:
    """Called after each model, so that an interrupted run leaves what it has found."""
    if options.json:
        write_text(options.json, json.dumps(to_json(bench.machine, bench.results), indent=1) + "\n")
    if options.markdown:
        write_text(options.markdown, markdown(bench.machine, bench.results))


def _summary(result: Result) -> str:
    if result.error:
        return f"{result.model.path.name}: {result.error}"
    parts = []
    for found in result.comparisons:
        ratio = found.ratio()
        rivals = f" {ratio:.2f} against {found.best_rival}" if ratio else ""
        failed = f" ({', '.join(found.failures)} failed)" if found.failures else ""
        parts.append(f"{found.threads} T{rivals}{failed}")
    return f"{result.model.path.name}: {'; '.join(parts)}"


if __name__ == "__main__":
    sys.exit(main())
