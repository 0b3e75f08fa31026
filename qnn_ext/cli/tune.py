"""`qnn-ext tune`: measure the configurations of a model's kernels, and keep the fastest in a log for compile."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from ..autotune.measure import LocalBuilder, LocalRunner, RPCRunner
from ..autotune.report import Report
from ..autotune.session import TRIALS, tune
from ..autotune.tuners import TUNERS
from ..errors import QnnError
from .common import FILE, build_options, import_model, json_option, out, print_json
from .formats import ImportOptions, recognize
from .outputs import check_output


@click.command("tune")
@click.argument("model", type=FILE)
@click.option("--trials", type=click.IntRange(1), default=TRIALS, show_default=True, help="Configurations per task.")
@click.option("--log", type=FILE, default="tuning.jsonl", show_default=True, help="Records are appended to this file.")
@click.option("--tuner", type=click.Choice(list(TUNERS)), help="Default: xgb where xgboost is installed, else ga.")
@click.option(
    "--early-stopping",
    type=click.IntRange(1),
    metavar="N",
    help="Go on to the next task after N trials without improvement.",
)
@click.option("--rpc", metavar="HOST:PORT", help="Measure on the servers of this RPC tracker instead of here.")
@click.option("--key", help="Key of the RPC servers to use.")
@click.option("--parallel", type=click.IntRange(1), help="Number of processes that compile. Default: one per core.")
@click.option(
    "--timeout",
    type=click.FloatRange(1),
    default=60.0,
    show_default=True,
    help="Time limit per configuration, in seconds.",
)
@click.option("--plot", type=FILE, help="Write a plot of the tuning curve to this file.")
@build_options
@json_option
def tune_(
    model: Path,
    trials: int,
    log: Path,
    tuner: str | None,
    early_stopping: int | None,
    rpc: str | None,
    key: str | None,
    parallel: int | None,
    timeout: float,
    plot: Path | None,
    target: str,
    threads: int | None,
    importing: ImportOptions,
    as_json: bool,
) -> None:
    """Tune the kernels of MODEL for a CPU: this one, or the boards of an RPC tracker.

    Every configuration is compared with the interpreter before it is timed. Interrupt at any time: what was measured
    is in the log, and the same command goes on from there.

    \b
    Examples:
      qnn-ext tune mobilenet.tflite
      qnn-ext compile mobilenet.tflite --tuning tuning.jsonl
      qnn-ext tune mobilenet.tflite --threads 1 --trials 64 --plot curve.png
      qnn-ext tune mobilenet.tflite --target avx512_vnni --rpc tracker:9190 --key epyc
    """
    form = recognize(model)
    if form == "qnn":
        raise QnnError(f"{model} is already compiled; tune the model it was compiled from")
    if "," in target:
        raise QnnError(f"tune takes one target at a time, found {target!r}; one log can hold the records of several")
    check_output(log, [model, importing.params])
    if plot is not None:
        check_output(plot, [model, log, importing.params])
        if find_spec("matplotlib") is None:
            raise QnnError("--plot needs matplotlib: pip install 'qnn-ext[bench]'")
    runner, builder = _runner(rpc, key, timeout), LocalBuilder(timeout, parallel)
    try:
        module = import_model(model, form, importing)
        report = tune(
            module, target, trials, log, runner, builder, tuner, threads, early_stopping, progress=not as_json
        )
    finally:
        runner.close()
        builder.close()
    if plot is not None:
        report.plot(plot)
    if as_json:
        print_json(_data(report, log))
        return
    console = out()
    console.print(_table(report))
    console.print(report.summary(), markup=False)
    console.print(f"to use them: qnn-ext compile {model} --tuning {log}", markup=False)


def _runner(rpc: str | None, key: str | None, timeout: float) -> LocalRunner:
    if rpc is None:
        if key is not None:
            raise QnnError("--key selects servers of an RPC tracker: give the tracker's address too, --rpc HOST:PORT")
        return LocalRunner(timeout=timeout)
    host, _, port = rpc.rpartition(":")
    if not host or not port.isdigit() or not key:
        raise QnnError("measuring over RPC needs the tracker's address and the servers' key: --rpc HOST:PORT --key KEY")
    return RPCRunner(key, host, int(port), timeout=timeout)


def _table(report: Report) -> Table:
    table = Table()
    for index, name in enumerate(report.HEADER):
        table.add_column(name, justify="right" if 0 < index < len(report.HEADER) - 1 else "left", no_wrap=index != 0)
    for row in report.rows():
        table.add_row(*row)
    return table


def _data(report: Report, log: Path) -> dict[str, Any]:
    tasks = []
    for outcome in report.outcomes:
        decision = outcome.decision
        data: dict[str, Any] = {"task": outcome.task.name, "kernel": outcome.task.kernel, "layers": outcome.task.layers}
        if decision is not None:
            best = decision.best
            data |= {
                "configuration": vars(best.configuration),
                "default_us": best.reference * 1e6,
                "tuned_us": best.seconds * 1e6,
                "gops": best.gops,
            }
        tasks.append(data | {"measured": outcome.new, "errors": outcome.errors, "seconds": outcome.seconds})
    return {"log": str(log), "before_ms": report.before * 1e3, "after_ms": report.after * 1e3, "tasks": tasks}
