"""Language models in 4 and 8 bits: tokens a second of qnn_ext and other runtimes, memory, load time.

    python -m benchmarks.llm [--networks 100m 500m] [--bits 4 8] [--threads 1 2] [--prompts 128 512] [--rounds 5]

Networks like Llama, with random weights made for the run, the same ones for every runtime: an ONNX model with
MatMulNBits (accuracy_level 4) and GroupQueryAttention, and a GGUF file in Q4_0 or Q8_0. Each runtime has a process of
its own; they take turns in an order drawn anew for each round, and medians count. llama.cpp needs the packages
llama-cpp-python and gguf; torchao, in bfloat16 with a static cache, eager and compiled, needs a C++ compiler for the
latter, which takes minutes before the first turn.

Printed: tokens a second for prompts and for tokens after them; the ratio of ours to the best other's; what share of the
read bandwidth, measured between the turns, our decoding reaches, counting weights, scales and cache once for each
token; file size, time to load, memory beyond the runtime's own, and how far logits are from ours.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from qnn_ext.processes.cores import default_threads

from ..results import Machine
from ..worker import WorkerError
from .files import File, write_files
from .measuring import STEPS, Phase, Row, measured
from .networks import NETWORKS, Network
from .runners import RUNTIMES, Runtime

OURS = "qnn_ext"
LENGTHS = 1, 128
"""Numbers of tokens that ours is compiled for."""


def tables(network: Network, bits: int, folder: Path, options: argparse.Namespace) -> Iterator[str]:
    """The lines of a network's tables."""
    runtimes = [one for one in RUNTIMES if one.key in options.runtimes and bits in one.bits]
    wanted = {one.file for one in runtimes if not _missing(one)}
    lengths = [length for length in LENGTHS if length < network.length]
    prompts = [length for length in options.prompts if length + STEPS <= network.length]
    phases = [Phase(kind, length) for length in prompts for kind in ("prefill", "decode")]
    for threads in options.threads:
        files = write_files(network, bits, lengths, wanted, threads, folder, options.verbose)
        yield f"\n## {network.name}, {bits} bits, {threads} thread{'s' if threads > 1 else ''}\n"
        yield f"{network.parameters / 1e6:.0f} million parameters.{_building(files.get('qnn'))}"
        rows, read = measured(_paths(runtimes, files), network, threads, phases, options.rounds, options.verbose)
        yield f"This machine reads {read / 1e9:.1f} GB/s.\n"
        yield from _speeds(runtimes, rows, phases)
        yield from _shares(rows.get(OURS, Row()), network, bits, phases, read)
        yield ""
        yield from _costs(runtimes, rows, files)


def _missing(runtime: Runtime) -> str:
    absent = [name for name in runtime.modules if find_spec(name) is None]
    return f"{absent[0]} is not installed" if absent else ""


def _paths(runtimes: Sequence[Runtime], files: Mapping[str, File | WorkerError]) -> dict[str, str | WorkerError]:
    paths: dict[str, str | WorkerError] = {}
    for runtime in runtimes:
        reason = _missing(runtime)
        file = WorkerError(reason) if reason else files[runtime.file]
        paths[runtime.key] = file.path if isinstance(file, File) else file
    return paths


def _building(file: File | WorkerError | None) -> str:
    if not isinstance(file, File):
        return ""
    peak = "" if file.peak_bytes is None else f", with at most {file.peak_bytes / 1e6:.0f} MB resident"
    return f" Ours took {file.seconds:.0f} s to import and build{peak}."


# ---- tables ------------------------------------------------------------------------------------------------------


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield "|---|" + "---:|" * (len(header) - 1)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _speeds(runtimes: Sequence[Runtime], rows: Mapping[str, Row], phases: Sequence[Phase]) -> Iterator[str]:
    lines = []
    for runtime in runtimes:
        row = rows[runtime.key]
        if row.failure:
            lines.append([runtime.title, row.failure, *[""] * (len(phases) - 1)])
        else:
            lines.append([runtime.title, *(_number(row.rate(phase)) for phase in phases)])
    if OURS in rows and not rows[OURS].failure:
        lines.append(["ours / best other", *(_ratio(rows, phase) for phase in phases)])
    yield from _table(["tokens a second", *map(str, phases)], lines)


def _ratio(rows: Mapping[str, Row], phase: Phase) -> str:
    ours = rows[OURS].rate(phase)
    others = [rate for key, row in rows.items() if key != OURS and (rate := row.rate(phase)) is not None]
    return f"**{ours / max(others):.2f}**" if ours is not None and others else ""


def _shares(row: Row, network: Network, bits: int, phases: Sequence[Phase], read: float) -> Iterator[str]:
    shares = [
        f"{network.read_bytes(bits, phase.length) * rate / read:.0%} after {phase.length} tokens"
        for phase in phases
        if phase.kind == "decode" and (rate := row.rate(phase)) is not None
    ]
    if shares:
        yield ""
        yield f"Share of the read bandwidth that our decoding reaches: {', '.join(shares)}."


def _costs(
    runtimes: Sequence[Runtime], rows: Mapping[str, Row], files: Mapping[str, File | WorkerError]
) -> Iterator[str]:
    ours = rows[OURS].ready if OURS in rows else None
    lines = []
    for runtime in runtimes:
        row, file = rows[runtime.key], files.get(runtime.file)
        if row.ready is None or not isinstance(file, File):
            continue
        away = "" if ours is None else f"{_distance(row.ready.logits, ours.logits):.1e}"
        memory = [_megabytes(row.ready.bytes), _megabytes(row.memory)]
        lines.append([runtime.title, _megabytes(file.bytes), f"{row.ready.seconds:.2f}", *memory, away])
    yield from _table(["", "file MB", "load s", "MB after a token", "MB at most", "logits from ours"], lines)


def _distance(logits: np.ndarray, ours: np.ndarray) -> float:
    """The norm of the difference, relative to ours."""
    return float(np.linalg.norm(logits - ours) / np.linalg.norm(ours))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _megabytes(value: int | None) -> str:
    return "" if value is None else f"{value / 1e6:.0f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=["100m", "500m"], metavar="NAME")
    parser.add_argument("--bits", type=int, nargs="+", choices=(4, 8), default=[4])
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, default_threads()}))
    parser.add_argument("--prompts", type=int, nargs="+", default=[128, 512], help="tokens of the prompts")
    parser.add_argument("--rounds", type=int, default=5)
    keys = [one.key for one in RUNTIMES]
    parser.add_argument("--runtimes", nargs="+", choices=keys, default=keys, metavar="NAME", help=", ".join(keys))
    parser.add_argument("--folder", type=Path, help="keep the files here")
    parser.add_argument("--verbose", action="store_true", help="show what the runtimes print")
    options = parser.parse_args(arguments)
    machine = Machine.here()
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    print(f"{machine.cpu}, {machine.cores} cores. {versions}.", flush=True)
    with tempfile.TemporaryDirectory(prefix="qnn-ext-llm-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in options.networks:
            for bits in options.bits:
                for line in tables(NETWORKS[name], bits, folder, options):
                    print(line, flush=True)


if __name__ == "__main__":
    main()
