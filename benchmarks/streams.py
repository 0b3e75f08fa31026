"""Requests a second of several engines side by side, against the same arrangement of other runtimes.

    python -m benchmarks.streams MODEL ... [--streams 2] [--rounds 9] [--busy 0] [--realtime]

Every stream always has a request. Ours: clones of one engine, of one thread each, which share code and weights; of two
threads each, more than there are cores on two; and one stream of one and of two threads. With `--busy`, so many
processes that never rest run beside. ONNX Runtime and LiteRT: a session for each
stream; OpenVINO: one model compiled for throughput, with a request for each stream. Each arrangement runs in its own
process; they take turns. Memory: the most that is resident while serving, and what of it the model adds.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .compiling import compile_model
from .disturbances import busy_processes
from .models import Model, find_models
from .runners import PEERS, Runner, timed
from .turns import Times, take_turns
from .worker import Task, Worker, WorkerError

OURS = "qnn_ext"
_SECONDS_PER_TURN = 1.0  # long enough for an engine to notice how busy the machine is


def open_streams(arrangement: str, path: str, streams: int) -> Runner:
    """Several runners of a model in this process as one. arrangement: "qnn_ext:THREADS" or a key of PEERS."""
    key, _, threads = arrangement.partition(":")
    if key == OURS:
        import qnn_ext

        engine = qnn_ext.load(path, num_threads=int(threads))
        runners = [_run(engine.clone()) for _ in range(streams)]
    elif key == "openvino":
        runners = _openvino(path, streams)
    else:
        peer = next(peer for peer in PEERS if peer.key == key)
        runners = [peer.open(path, 1) for _ in range(streams)]

    def outputs(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        results = [runner.outputs(inputs) for runner in runners]
        return results[0]

    return Runner(runners[0].name, outputs, lambda number: _side_by_side(runners, number))


def _run(engine: Any) -> Runner:
    """An engine as it serves requests: `Engine.time` would run the model more often than asked, to warm up."""
    held: list[np.ndarray] = []

    def outputs(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        held[:] = inputs
        return list(engine.run(held).values())

    return Runner("qnn_ext", outputs, timed(lambda: engine.run(held)))


def _side_by_side(runners: Sequence[Runner], number: int) -> float:
    """Seconds for each of `number` requests, spread evenly over the runners."""
    start = threading.Barrier(len(runners) + 1)
    share = max(1, number // len(runners))

    def serve(runner: Runner) -> None:
        start.wait()
        runner.seconds(share)

    threads = [threading.Thread(target=serve, args=(runner,)) for runner in runners]
    for thread in threads:
        thread.start()
    start.wait()
    begin = time.perf_counter()
    for thread in threads:
        thread.join()
    return (time.perf_counter() - begin) / (share * len(runners))


def _openvino(path: str, streams: int) -> list[Runner]:
    """Requests of one compiled model."""
    import openvino

    core = openvino.Core()
    model = core.read_model(path)
    settings = {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": streams, "INFERENCE_NUM_THREADS": streams}
    compiled: list[Any] = []

    def prepare(inputs: Sequence[np.ndarray]) -> None:
        if not compiled:
            model.reshape({port: value.shape for port, value in zip(model.inputs, inputs, strict=True)})
            compiled.append(core.compile_model(model, "CPU", {**settings, "INFERENCE_PRECISION_HINT": "f32"}))

    def runner() -> Runner:
        requests: list[Any] = []

        def outputs(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
            prepare(inputs)
            requests[:] = [compiled[0].create_infer_request()]
            for index, value in enumerate(inputs):
                requests[0].set_input_tensor(index, openvino.Tensor(np.ascontiguousarray(value)))
            requests[0].infer()
            return [np.array(tensor.data) for tensor in requests[0].output_tensors]

        return Runner("OpenVINO", outputs, timed(lambda: requests[0].infer(share_outputs=True)))

    return [runner() for _ in range(streams)]


# ---- the table ---------------------------------------------------------------------------------------------------


def rows(model: Model, streams: int, options: argparse.Namespace) -> list[str]:
    """A line for each arrangement."""
    with tempfile.TemporaryDirectory(prefix="qnn-ext-bench-") as folder:
        compiled = compile_model(model, [1, 2], Path(folder), 600)
        tasks = {
            f"{OURS}, {count} of {threads}": Task(
                f"streams:{OURS}:{threads}", compiled.builds[threads].path, count, compiled.inputs
            )
            for count, threads in ((streams, 1), (streams, 2), (1, 1), (1, 2))
        }
        for peer in PEERS:
            if model.format in peer.formats and not peer.missing:
                name = f"{peer.title}, {streams} of 1"
                tasks[name] = Task(f"streams:{peer.key}", str(model.path), streams, compiled.inputs)
        workers = {name: Worker(task, realtime=options.realtime) for name, task in tasks.items()}
        try:
            with busy_processes(options.busy):
                return _measured(model, workers, options.rounds)
        finally:
            for worker in workers.values():
                worker.close()


def _measured(model: Model, workers: dict[str, Worker], rounds: int) -> list[str]:
    ready, failures = {}, {}
    for name, worker in workers.items():
        try:
            ready[name] = worker.wait(180)
        except WorkerError as error:
            failures[name] = str(error)
    times, failed = take_turns({name: workers[name] for name in ready}, rounds, _SECONDS_PER_TURN)
    peers = [taken.median for name, taken in times.items() if not name.startswith(OURS)]
    lines = []
    for name, taken in times.items():
        peak, base = workers[name].ask("peak_bytes"), ready[name].base_bytes
        memory = "" if peak is None or base is None else f"{peak / 1e6:.0f} (+{(peak - base) / 1e6:.0f})"
        ratio = f"{min(peers) / taken.median:.2f}" if peers and name.startswith(OURS) else ""
        lines.append(_line(model, name, taken, ratio, memory))
    return lines + [
        f"| {model.path.name} | {name} | {reason} | | | |" for name, reason in {**failures, **failed}.items()
    ]


def _line(model: Model, name: str, taken: Times, ratio: str, memory: str) -> str:
    low, high = taken.quartiles
    spread = f"{100 * (high - low) / taken.median:.0f} %"
    return f"| {model.path.name} | {name} | {1 / taken.median:.1f} | {ratio} | {memory} | {spread} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--streams", type=int, nargs="+", default=[2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="processes that never rest, beside")
    parser.add_argument("--realtime", action="store_true", help="measure with real-time priority (needs root)")
    options = parser.parse_args(arguments)
    if options.busy and options.realtime:
        parser.error("--busy with --realtime: real-time priority keeps other processes off the cores")
    print("| model | streams of threads | requests / s | ours / best peer | MB | spread |")
    print("|---|---|---:|---:|---:|---:|")
    for model in find_models(options.models):
        for streams in options.streams:
            for line in rows(model, streams, options):
                print(line, flush=True)


if __name__ == "__main__":
    main()
