"""`qnn-ext bench`: how long one call takes, and where the time goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from ..running.engine import Engine, LayerProfile, time_text
from .common import (
    FILE,
    build_options,
    bytes_text,
    count_text,
    json_option,
    open_engine,
    out,
    print_json,
    print_reasons,
    step,
    verify_option,
)
from .outputs import check_output
from .tables import Column, layers_text, print_table
from .traces import layer_times, run_times, trace_events, write_json

if TYPE_CHECKING:
    from ..running.pool import Throughput

_SECONDS_PER_REPEAT = (
    0.02  # one repeat averages over the calls that fit in this time, so that clock resolution does not matter
)


@click.command()
@click.argument("model", type=FILE)
@click.option("--repeat", type=click.IntRange(1), default=20, show_default=True, help="Number of measurements.")
@click.option("--number", type=click.IntRange(1), help="Calls per measurement. Default: as many as fit into 20 ms.")
@click.option("--profile", is_flag=True, help="Time each kernel as well.")
@click.option(
    "--streams", type=click.IntRange(1), help="Also serve requests on this many engines of --threads at once."
)
@click.option(
    "--seconds", type=click.FloatRange(0.01), default=2.0, show_default=True, help="How long --streams takes."
)
@click.option("--trace", type=FILE, help="Write when each kernel ran, as a trace for Perfetto and chrome://tracing.")
@click.option(
    "--export-layers", type=FILE, help="Write each kernel's times as JSON, as trtexec's --exportProfile does."
)
@click.option("--export-times", type=FILE, help="Write each run's times as JSON, as trtexec's --exportTimes does.")
@verify_option
@build_options
@json_option
def bench(
    model: Path,
    repeat: int,
    number: int | None,
    profile: bool,
    streams: int | None,
    seconds: float,
    trace: Path | None,
    export_layers: Path | None,
    export_times: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Time MODEL (.qnn, or a model file, which is compiled first) on zeros.

    GOP/s counts two operations per multiply-accumulate (MAC) of the integer kernels.

    \b
    Examples:
      qnn-ext bench mobilenet.qnn --threads 1
      qnn-ext bench mobilenet.tflite --profile
      qnn-ext bench mobilenet.qnn --threads 1 --streams 8
      qnn-ext bench mobilenet.qnn --trace trace.json
    """
    exported = [path for path in (trace, export_layers, export_times) if path is not None]
    for path in exported:
        check_output(path, [model])
    engine = open_engine(model, **options)
    with step(f"timing {model.name}"):
        number = number or _calls_per_repeat(engine)
        timing = engine.time(number=number, repeat=repeat)
        spans = engine.spans(repeat) if profile or exported else None
        layers = engine.profile_of(spans) if profile and spans is not None else []
        throughput = _throughput(engine, streams, seconds) if streams else None
    if spans is not None:
        if trace is not None:
            write_json(trace, trace_events(engine, spans))
        if export_layers is not None:
            write_json(export_layers, layer_times(engine, spans))
        if export_times is not None:
            write_json(export_times, run_times(spans))
    macs = sum(kernel.macs for kernel in engine.kernels)
    data: dict[str, Any] = {
        "model": str(model),
        "threads": engine.num_threads,
        "target": engine.target,
        "median_ms": timing.median * 1e3,
        "best_ms": timing.best * 1e3,
        "repeat": repeat,
        "number": number,
        "macs": macs,
        "gops": 2 * macs / timing.median / 1e9,
    }
    if throughput is not None:
        data["streams"] = {
            "count": throughput.streams,
            "requests_per_second": throughput.requests_per_second,
            "latency_ms": {f"p{percent}": throughput.percentile(percent) * 1e3 for percent in (50, 90, 99)},
        }
    if profile:
        data["fallback"] = engine.fallback
        data["layers"] = [_layer_data(layer) for layer in layers]
    if as_json:
        print_json(data)
        return
    console = out()
    work = f", {count_text(macs)} MAC, {data['gops']:.1f} GOP/s" if macs else ""
    threads = f"{engine.num_threads} thread{'s' if engine.num_threads > 1 else ''}"
    console.print(f"{model}: {timing}, {threads}{work}", markup=False)
    if throughput is not None:
        console.print(f"{throughput.streams} streams of {threads}: {throughput}", markup=False)
    if profile:
        _print_profile(console, layers)
        print_reasons(console, engine.fallback, [layer.kernel for layer in layers])


def _throughput(engine: Engine, streams: int, seconds: float) -> Throughput:
    from ..running.pool import Pool  # only here: it imports asyncio

    with Pool(engine, streams, engine.num_threads) as pool:
        return pool.throughput(seconds)


def _calls_per_repeat(engine: Engine) -> int:
    return max(1, min(1000, int(_SECONDS_PER_REPEAT / engine.time(number=1, repeat=3).best)))


def _layer_data(layer: LayerProfile) -> dict[str, Any]:
    kernel = layer.kernel
    return {
        "layer": kernel.layer,
        "sources": kernel.sources,
        "operators": kernel.operators,
        "implementation": kernel.implementation,
        "reason": kernel.reason,
        "ms": layer.seconds * 1e3,
        "macs": kernel.macs,
        "gops": layer.gops,
        "weight_bytes": kernel.weight_bytes,
        "data_bytes": kernel.data_bytes,
    }


_COLUMNS = (
    Column("layer"),
    Column("operators", drop=1),
    Column("implementation", drop=4),
    Column("time", number=True),
    Column("%", number=True),
    Column("MAC", number=True, drop=3),
    Column("GOP/s", number=True, drop=5),
    Column("bytes", number=True, drop=2),
)


def _print_profile(console: Console, layers: list[LayerProfile]) -> None:
    total = sum(layer.seconds for layer in layers) or 1.0
    rows = [
        (
            layers_text(layer.kernel),
            layer.kernel.operators.replace("+", " + "),
            layer.kernel.implementation,
            time_text(layer.seconds),
            f"{100 * layer.seconds / total:.1f}",
            count_text(layer.kernel.macs) if layer.kernel.macs else "",
            f"{layer.gops:.1f}" if layer.kernel.macs else "",
            bytes_text(layer.bytes),
        )
        for layer in layers
    ]
    print_table(console, _COLUMNS, rows)
