"""Executed instructions, flash and RAM of models on emulated microcontrollers, beside TFLite Micro with CMSIS-NN.

    python -m benchmarks.micro [--models kws_ref_model ...] [--boards m4 m55] [--peer SOURCES] [--json FILE]

Each model is exported as a C library, linked, and run by the emulator with a plugin that counts instructions: those
of a program with one call minus those of one without, input and output included. SOURCES: see `peer`; without it
there are no rows of the peer. Flash is the whole program, the interpreter included; RAM is the arena with what the
program keeps besides, without the stack.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.console import Console
from rich.table import Table

import qnn_ext
from qnn_ext.files.storage import write_text
from tests.micro import boards
from tests.micro.boards import BOARDS, Board

from . import classes, peer

SHARED = Path(__file__).parents[3] / "shared" / "models" / "tflite"
MODELS = ("kws_ref_model", "vww_96_int8", "pretrainedResnet_quant", "ad01_int8", "micro_speech_quantized")
COUNTER = Path(boards.HERE).parent / "arm" / "count.c"


@dataclass(frozen=True)
class Row:
    """A model on a board.

    exact:   whether the results equal those of LiteRT's reference kernels
    classes: class of layer -> products, and instructions; empty for the peer
    """

    model: str
    board: str
    runtime: str
    instructions: int
    macs: int
    flash: int
    ram: int
    exact: bool
    classes: dict[str, tuple[int, int]] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--boards", nargs="+", default=["m4", "m55"], choices=list(BOARDS))
    parser.add_argument("--peer", type=Path, help="the folder with the sources of TFLite Micro and CMSIS-NN")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    out = Console()
    rows: list[Row] = []
    with TemporaryDirectory(prefix="qnn-ext-micro-") as name:
        plugin = Path(name) / "count.so"
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-DAPI=1", COUNTER, "-o", plugin], check=True)
        for board in options.boards:
            for model in options.models:
                measured = _measured(model, board, options.peer, Path(name), plugin)
                rows += measured
                out.print(_table(measured))
    out.print(_table(rows))
    out.print(_by_class(rows))
    if options.peer is None or peer.missing(options.peer):
        reason = "--peer was not given" if options.peer is None else peer.missing(options.peer)
        out.print(f"no rows of TFLite Micro: {reason}")
    if options.json:
        write_text(options.json, json.dumps([asdict(row) for row in rows], indent=1))


def _measured(model: str, board: str, sources: Path | None, folder: Path, plugin: Path) -> list[Row]:
    path = SHARED / f"{model}.tflite"
    module = qnn_ext.from_tflite(path, numerics="tflite")
    with np.load(SHARED / f"{model}.npz", allow_pickle=False) as arrays:
        inputs = [arrays[f"input0_{index}"] for index in range(len(module.inputs))]
        expected = arrays["ref0_0"]
    own = folder / f"{board}-{model}"
    kernels = qnn_ext.build(module, target=BOARDS[board].target, code=False).kernels
    macs = sum(kernel.macs for kernel in kernels)
    counts, programs, parts = [], [], []
    for calls in (0, 1):
        programs.append(boards.firmware(module, BOARDS[board], own / str(calls), calls))
        folder_of_calls = programs[-1].folder
        counts.append(_instructions(folder_of_calls, plugin, lambda: _run(programs[-1], inputs)))
        parts.append(classes.by_class(kernels, programs[-1].program, folder_of_calls / "counts"))
    exact = np.array_equal(programs[1]._output(0, 0), expected)
    shares = {
        name: (
            sum(kernel.macs for kernel in kernels if classes.class_of(kernel) == name),
            count - parts[0].get(name, 0),
        )
        for name, count in parts[1].items()
    }
    rows = [Row(model, board, "qnn_ext", counts[1] - counts[0], macs, *programs[1].sizes(), exact, shares)]
    if sources is not None and not peer.missing(sources):
        rows.append(_peer(path, board, sources, folder, plugin, inputs[0], expected, macs))
    return rows


def _run(program: boards.Firmware, inputs: list[np.ndarray], *options: str) -> None:
    for index, array in enumerate(inputs):
        (program.folder / f"input{index}_0").write_bytes(np.ascontiguousarray(array).tobytes())
    program.execute("-plugin", f"{program.folder.parents[1] / 'count.so'},out=counts", *options)


def _instructions(folder: Path, plugin: Path, run: Callable[[], None]) -> int:
    run()
    lines = (line.split() for line in (folder / "counts").read_text().splitlines())
    return sum(int(runs) * int(instructions) for _, runs, instructions, _ in lines)


def _peer(
    path: Path, board: str, sources: Path, folder: Path, plugin: Path, data: np.ndarray, expected: np.ndarray, macs: int
) -> Row:
    """The same model with TFLite Micro."""
    target, own = BOARDS[board], folder / f"peer-{board}-{path.stem}"
    own.mkdir()
    shared = sources / f"built-{board}"
    shared.mkdir(exist_ok=True)
    library = peer.compiled(sources, target, shared)
    counts, arena = [], 0
    for calls in (0, 1):
        program = peer.link(sources, target, shared, path, _operators(path), library, own, calls)
        (own / "input0_0").write_bytes(np.ascontiguousarray(data).tobytes())
        said = _emulated(target, program, "-plugin", f"{plugin},out=counts")
        arena = arena or int(said.split()[-1])
        counts.append(_instructions(own, plugin, lambda: None))
    listed = subprocess.run(["arm-none-eabi-size", program], capture_output=True, text=True, check=True).stdout
    text, initialized, zero = map(int, listed.splitlines()[1].split()[:3])
    found = np.frombuffer((own / "output0_0").read_bytes(), expected.dtype).reshape(expected.shape)
    ram = initialized + zero - peer.ARENA + arena
    exact = np.array_equal(found, expected)
    return Row(path.stem, board, "TFLite Micro", counts[1] - counts[0], macs, text + initialized, ram, exact)


def _emulated(board: Board, program: Path, *options: str) -> str:
    silent = ("-display", "none", "-monitor", "none", "-serial", "none", "-semihosting")
    command = [boards.EMULATOR, "-M", board.machine, *board.options, *silent, *options, "-kernel", program.name]
    done = subprocess.run(command, cwd=program.parent, capture_output=True, text=True, timeout=boards.TIMEOUT)
    if done.returncode:
        raise boards.BoardError(f"TFLite Micro ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def _operators(path: Path) -> list[str]:
    """The operators of a model. Raises KeyError for one that the peer is not built with."""
    from qnn_ext.frontends.tflite.reader import read_model

    (graph, *_) = read_model(path).subgraphs
    names = dict.fromkeys(operator.name for operator in graph.operators)
    return [name for name in names if peer.OPERATORS[name]]


def _table(rows: list[Row]) -> Table:
    table = Table("model", "board", "runtime", "instructions", "per MAC", "flash", "RAM", "exact")
    for row in rows:
        sizes = f"{row.flash:,}", f"{row.ram:,}"
        counts = f"{row.instructions:,}", f"{row.instructions / row.macs:.2f}"
        table.add_row(row.model, row.board, row.runtime, *counts, *sizes, "yes" if row.exact else "no")
    return table


def _by_class(rows: list[Row]) -> Table:
    """Our instructions by class of layer. limit: those of the innermost loops alone."""
    table = Table("model", "board", "layers", "products", "instructions", "per product", "limit")
    for row in rows:
        for name, (macs, count) in sorted(row.classes.items()):
            rates = (f"{count / macs:.2f}", f"{classes.LIMITS[row.board][name]:.2f}") if macs else ("", "")
            table.add_row(row.model, row.board, name, f"{macs:,}" if macs else "", f"{count:,}", *rates)
    return table


if __name__ == "__main__":
    main()
