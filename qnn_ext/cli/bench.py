"""`qnn-ext bench`: how long one call takes, and where the time goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from rich.console import Console

from ..module import TensorSpec, check_inputs, zeros
from ..racing.power import Meter, PowerError
from ..racing.race import drawn
from ..running.engine import Engine
from ..running.timing import LayerProfile, Timing, time_text
from .common import (
    FILE,
    build_options,
    bytes_text,
    cores_option,
    count_text,
    counted,
    json_option,
    normalize_option,
    open_engine,
    out,
    print_json,
    print_reasons,
    verify_option,
)
from .formats import recognize
from .inputs import calls_of
from .outputs import check_output
from .progress import Tell, stages, step
from .racing import compared, parse_peers, print_compared
from .tables import Column, layers_text, print_table
from .traces import layer_times, run_times, trace_events, write_json

if TYPE_CHECKING:
    from ..running.pool import Throughput

_SECONDS_PER_REPEAT = (
    0.02  # one repeat averages over the calls that fit in this time, so that clock resolution does not matter
)
_SECONDS_PER_STEP = 0.2  # after which --warm-up and --duration look at the clock
_PERCENTS = (50, 90, 99)


@click.command()
@click.argument("model", type=FILE)
@click.option(
    "-i",
    "--input",
    "inputs",
    multiple=True,
    metavar="[NAME=]FILE",
    help="What to time it on, as for `qnn-ext run`. Several samples take turns. Default: zeros; random values with "
    "--compare.",
)
@normalize_option("How pixels are converted to input values.")
@click.option("--repeat", type=click.IntRange(1), default=20, show_default=True, help="Number of measurements.")
@click.option("--number", type=click.IntRange(1), help="Calls per measurement. Default: as many as fit into 20 ms.")
@click.option("--warm-up", type=click.FloatRange(0), default=0.0, metavar="SECONDS", help="Run for so long first.")
@click.option(
    "--duration",
    type=click.FloatRange(0.01),
    metavar="SECONDS",
    help="Measure for so long, not --repeat times, and each call alone unless --number is given.",
)
@click.option("--profile", is_flag=True, help="Time each kernel as well.")
@click.option(
    "--compare",
    metavar="RUNTIMES",
    help="Time other runtimes in turns, each in a process of its own, and compare their outputs: litert, onnxruntime, "
    "openvino, or several with commas. Runs MODEL in them.",
)
@click.option("--power", is_flag=True, help="Energy of the processors for one call, where the system counts it (RAPL).")
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
@cores_option
@verify_option
@build_options
@json_option
def bench(
    model: Path,
    inputs: tuple[str, ...],
    normalize: str,
    repeat: int,
    number: int | None,
    warm_up: float,
    duration: float | None,
    profile: bool,
    compare: str | None,
    power: bool,
    streams: int | None,
    seconds: float,
    trace: Path | None,
    export_layers: Path | None,
    export_times: Path | None,
    cores: tuple[int, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Time MODEL (.qnn, or a model file, which is compiled first).

    GOP/s counts two operations per multiply-accumulate (MAC) of the integer kernels.

    \b
    Examples:
      qnn-ext bench mobilenet.qnn --threads 1
      qnn-ext bench mobilenet.qnn --input photo.jpg --warm-up 1 --duration 10
      qnn-ext bench mobilenet.tflite --profile
      qnn-ext bench mobilenet.tflite --compare litert,openvino
      qnn-ext bench mobilenet.qnn --threads 1 --streams 8
      qnn-ext bench mobilenet.qnn --cores 0-3
      qnn-ext bench mobilenet.qnn --trace trace.json
    """
    exported = [path for path in (trace, export_layers, export_times) if path is not None]
    for path in exported:
        check_output(path, [model])
    form = recognize(model)
    peers = [] if compare is None else parse_peers(compare, form)
    meter, unread = _meter(power)
    engine = open_engine(model, **options)
    samples = _samples(engine, inputs, normalize, bool(peers))
    with stages(f"timing {model.name}") as tell:
        number = number or (1 if duration is not None else _calls_per_repeat(engine, samples[0]))
        before = None if meter is None else meter.read()
        taken = _Taken(engine, samples, number)
        taken.run(repeat, warm_up, duration, tell)
        joules = None if meter is None or before is None else meter.since(before) / taken.calls
        timing = Timing(tuple(taken.seconds))
    with step(f"timing kernels of {model.name}"):
        spans = engine.spans(repeat, samples[0]) if profile or exported else None
        layers = engine.profile_of(spans) if profile and spans is not None else []
    throughput = None
    if streams:
        with step(f"serving requests for {seconds:g} s"):
            throughput = _throughput(engine, streams, seconds, samples[0])
    rows = compared(engine, model, form, peers, samples[0], repeat, duration, warm_up, meter) if peers else []
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
        "threads": engine.used_threads,
        "most_threads": engine.num_threads,
        "cores": list(cores) or None,
        "target": engine.target,
        "median_ms": timing.median * 1e3,
        "best_ms": timing.best * 1e3,
        "latency_ms": {f"p{percent}": value * 1e3 for percent, value in _percentiles(timing)},
        "repeat": len(timing.seconds),
        "number": number,
        "macs": macs,
        "gops": 2 * macs / timing.median / 1e9,
    }
    if power:
        data["joules"] = joules
        data["power_problem"] = unread
    if throughput is not None:
        data["streams"] = {
            "count": throughput.streams,
            "requests_per_second": throughput.requests_per_second,
            "latency_ms": {f"p{percent}": throughput.percentile(percent) * 1e3 for percent in _PERCENTS},
        }
    if peers:
        data["compared"] = rows
    if profile:
        data["fallback"] = engine.fallback
        data["layers"] = [_layer_data(layer) for layer in layers]
    if as_json:
        print_json(data)
        return
    console = out()
    _print_times(console, data, timing, engine, duration is not None)
    if throughput is not None:
        console.print(
            f"{counted(throughput.streams, 'stream')} of {counted(engine.used_threads, 'thread')}: {throughput}",
            markup=False,
        )
    if peers:
        print_compared(console, rows, engine.num_threads)
    if profile:
        _print_profile(console, layers)
        print_reasons(console, engine.fallback, [layer.kernel for layer in layers])


def _print_times(console: Console, data: dict[str, Any], timing: Timing, engine: Engine, alone: bool) -> None:
    work = f", {count_text(data['macs'])} MAC, {data['gops']:.1f} GOP/s" if data["macs"] else ""
    threads = counted(engine.used_threads, "thread")
    if engine.used_threads < engine.num_threads:
        threads += f" of {engine.num_threads} (more would not save enough)"
    if data["cores"]:
        threads += f" on {'core' if len(data['cores']) == 1 else 'cores'} {', '.join(map(str, data['cores']))}"
    console.print(f"{data['model']}: {timing}, {threads}{work}", markup=False)
    if alone:
        parts = ", ".join(f"{percent} % {time_text(value)}" for percent, value in _percentiles(timing))
        console.print(f"calls took at most: {parts}; {1 / float(np.mean(timing.seconds)):.1f} calls/s", markup=False)
    if data.get("joules") is not None:
        console.print(f"energy of the processors: {data['joules'] * 1e3:.3g} mJ a call", markup=False)
    if data.get("power_problem"):
        console.print(data["power_problem"], markup=False)


def _percentiles(timing: Timing) -> list[tuple[int, float]]:
    return [(percent, float(np.percentile(timing.seconds, percent))) for percent in _PERCENTS]


def _meter(wanted: bool) -> tuple[Meter | None, str]:
    """What reads the machine's energy, or why nothing does."""
    try:
        return (Meter() if wanted else None), ""
    except PowerError as error:
        return None, str(error)


def _samples(engine: Engine, inputs: tuple[str, ...], normalize: str, random: bool) -> list[list[np.ndarray]]:
    """The inputs of each call to time, in model order."""
    if inputs:
        found = [check_inputs(call.values, engine.inputs) for call in calls_of(engine, inputs, normalize)]
        return [[_first(value, spec) for value, spec in zip(one, engine.inputs, strict=True)] for one in found]
    return [drawn(engine.inputs) if random else zeros(engine.inputs)]


def _first(value: np.ndarray, spec: TensorSpec) -> np.ndarray:
    return value[:1] if spec.dynamic_batch else value


class _Taken:
    """The seconds per call that were measured, and how many calls were made for it."""

    def __init__(self, engine: Engine, samples: Sequence[Sequence[np.ndarray]], number: int) -> None:
        self._engine, self._samples, self._number = engine, samples, number
        self.seconds: list[float] = []
        self.calls = 0

    def run(self, repeat: int, warm_up: float, duration: float | None, tell: Tell) -> None:
        """Measure `repeat` times, or for `duration` seconds, after `warm_up` seconds that do not count."""
        self._for(warm_up, lambda share: tell("warming up", share * warm_up / (warm_up + (duration or 1.0))))
        self.seconds, self.calls = [], 0
        if duration is not None:
            self._for(duration, lambda share: tell("measuring", (warm_up + share * duration) / (warm_up + duration)))
            return
        for index in range(repeat if len(self._samples) > 1 else 1):
            self._measure(index, 1 if len(self._samples) > 1 else repeat)
            tell("measuring", (index + 1) / repeat)

    def _for(self, seconds: float, tell: Callable[[float], None]) -> None:
        started, index, count = time.monotonic(), 0, 1
        while (past := time.monotonic() - started) < seconds:
            tell(past / seconds)
            self._measure(index, count)
            rest = min(_SECONDS_PER_STEP, seconds - past)
            count = max(1, int(rest / max(1e-7, self.seconds[-1] * self._number)))
            index += 1

    def _measure(self, index: int, count: int) -> None:
        sample = self._samples[index % len(self._samples)]
        self.seconds += self._engine.time(self._number, count, sample).seconds
        self.calls += self._number * count + 1  # one first, which is not timed


def _throughput(engine: Engine, streams: int, seconds: float, sample: Sequence[np.ndarray]) -> Throughput:
    from ..running.pool import Pool  # only here: it imports asyncio

    with Pool(engine, streams, engine.num_threads) as pool:
        return pool.throughput(seconds, sample)


def _calls_per_repeat(engine: Engine, sample: Sequence[np.ndarray]) -> int:
    return max(1, min(1000, int(_SECONDS_PER_REPEAT / engine.time(1, 3, sample).best)))


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
