"""Microcontrollers under QEMU: exported models, linked with `start.c` and `main.c`, run on files of this machine.

Nothing but the emulated core is emulated that the model could need: no operating system, no TVM.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qnn_ext

HERE = Path(__file__).parent
COMPILER, EMULATOR = "arm-none-eabi-gcc", "qemu-system-arm"
TIMEOUT = 300.0  # seconds


class BoardError(Exception):
    """The emulated program failed; the message is what it wrote."""


@dataclass(frozen=True)
class Board:
    """An emulated board. target: ours; cpu: GCC's name of the core; flash, ram: address and size; hard: whether floats
    are passed in registers; options: of the emulator."""

    target: str
    machine: str
    cpu: str
    flash: tuple[int, str]
    ram: tuple[int, str]
    hard: bool = False
    options: tuple[str, ...] = ()


_ZERO, _RAM = (0, "4M"), (0x20000000, "4M")
BOARDS = {
    # A Cortex-M0 with the memory of a larger chip: it has the instructions of a Cortex-M0+ and no others.
    "m0plus": Board(
        "cortex-m0plus",
        "microbit",
        "cortex-m0plus",
        (0, "4M"),
        (0x20000000, "2M"),
        options=("-global", "nrf51-soc.flash-size=0x400000", "-global", "nrf51-soc.sram-size=0x200000"),
    ),
    "m3": Board("cortex-m3", "mps2-an385", "cortex-m3", _ZERO, _RAM),
    "m4": Board("cortex-m4", "mps2-an386", "cortex-m4", _ZERO, _RAM, hard=True),
    "m7": Board("cortex-m7", "mps2-an500", "cortex-m7", _ZERO, _RAM, hard=True),
    "m33": Board("cortex-m33", "mps2-an505", "cortex-m33", (0x10000000, "4M"), (0x38000000, "4M"), hard=True),
    "m55": Board("cortex-m55", "mps3-an547", "cortex-m55", (0, "512K"), (0x20000000, "512K"), hard=True),
}


def require() -> None:
    """Skip the test where the emulator or the compiler is missing."""
    if missing := [program for program in (EMULATOR, COMPILER) if not shutil.which(program)]:
        pytest.skip(f"{' and '.join(missing)} not found: python -m scripts.emulators")


@dataclass(frozen=True)
class Firmware:
    """A linked program in a folder."""

    board: Board
    folder: Path
    engine: qnn_ext.Engine
    calls: int

    def link(self) -> None:
        """Link it anew."""
        link(self.board, self.folder, [HERE / "main.c"], [f"-D{one}" for one in self.definitions])

    @property
    def definitions(self) -> list[str]:
        """What main.c must know."""

        def sizes(specs: Sequence[Any]) -> str:
            return ",".join(str(int(np.prod(spec.shape)) * np.dtype(spec.dtype).itemsize) for spec in specs) or "0"

        engine = self.engine
        return [f"CALLS={self.calls}", f"INPUT_BYTES={sizes(engine.inputs)}", f"OUTPUT_BYTES={sizes(engine.outputs)}"]

    @property
    def program(self) -> Path:
        """The linked program."""
        return self.folder / "program.elf"

    def run(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """The outputs of one call."""
        return self.run_all([inputs])[0]

    def run_all(self, calls: Sequence[Sequence[np.ndarray]]) -> list[list[np.ndarray]]:
        """The outputs of each of several calls, one after the other. Raises BoardError."""
        assert len(calls) == self.calls
        for number, inputs in enumerate(calls):
            for index, array in enumerate(inputs):
                (self.folder / f"input{index}_{number}").write_bytes(np.ascontiguousarray(array).tobytes())
        self.execute()
        return [
            [self._output(index, number) for index in range(len(self.engine.outputs))] for number in range(self.calls)
        ]

    def _output(self, index: int, number: int) -> np.ndarray:
        spec = self.engine.outputs[index]
        size = int(np.prod(spec.shape))
        data = (self.folder / f"output{index}_{number}").read_bytes() if size else b""
        return np.frombuffer(data, spec.dtype).reshape(spec.shape)

    def execute(self, *options: str) -> str:
        """Run the program; returns what it said. Raises BoardError."""
        board = self.board
        silent = ("-display", "none", "-monitor", "none", "-serial", "none")
        command = [EMULATOR, "-M", board.machine, *board.options, *silent, "-semihosting", *options]
        done = subprocess.run(
            [*command, "-kernel", self.program.name], cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT
        )
        said = done.stdout + done.stderr
        if done.returncode:
            raise BoardError(f"on {board.machine} the program ended with {done.returncode}: {said.strip()}")
        return said

    def symbols(self) -> list[str]:
        """The names of everything in the program."""
        listed = subprocess.run(["arm-none-eabi-nm", self.program], capture_output=True, text=True, check=True).stdout
        return [line.split()[-1] for line in listed.splitlines()]

    def sizes(self) -> tuple[int, int]:
        """Bytes of flash and of RAM, without the stack."""
        listed = subprocess.run(["arm-none-eabi-size", self.program], capture_output=True, text=True, check=True).stdout
        text, data, bss = map(int, listed.splitlines()[1].split()[:3])
        return text + data, data + bss


def firmware(module: qnn_ext.QnnModule, board: Board, folder: Path, calls: int = 1) -> Firmware:
    """A model for a board, exported and linked. Raises BoardError."""
    engine = qnn_ext.build(module, target=board.target, code=False)
    engine.export_c(folder, name="model")
    made = Firmware(board, folder, engine, calls)
    made.link()
    return made


def link(board: Board, folder: Path, sources: Sequence[Path], options: Sequence[str] = ()) -> None:
    """Link sources and the model's library in a folder to `program.elf`. Raises BoardError."""
    machine = [f"-mcpu={board.cpu}", "-mthumb", f"-mfloat-abi={'hard' if board.hard else 'soft'}"]
    code = [*machine, "-std=gnu11", "-O2", "-ffreestanding", "-nostartfiles", f"-I{folder}", f"-I{HERE}", *options]
    files = [*map(str, sources), str(HERE / "start.c"), str(folder / "libmodel.a")]
    # newlib's files were compiled without a note on the stack, of which the linker would warn
    linked = f"-Wl,{places(board)},--gc-sections,--no-warn-mismatch,-z,noexecstack"
    command = [
        COMPILER,
        *code,
        *files,
        "-T",
        str(HERE / "start.ld"),
        linked,
        "-lm",
        "-lc",
        "-lgcc",
        "-o",
        str(folder / "program.elf"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    if done.returncode:
        raise BoardError(f"{' '.join(command)}\n{done.stderr}")


def places(board: Board) -> str:
    """What the linker is told of a board's memory, for `start.ld`."""
    memory = {"FLASH": board.flash[0], "FLASH_SIZE": board.flash[1], "RAM": board.ram[0], "RAM_SIZE": board.ram[1]}
    return ",".join(f"--defsym={name}={value}" for name, value in memory.items())


def scratch() -> tempfile.TemporaryDirectory:
    """A folder for a program."""
    return tempfile.TemporaryDirectory(prefix="qnn-ext-micro-")
