"""Counts the instructions that emulated code executes: a measure independent of other load on the machine.

with counted() as counts:
    check(workload, target)  # or an engine of `emulated`
print(counts[0].total, counts[0].mnemonics.most_common(5))
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import pytest

from . import emulator
from .emulator import Architecture


@dataclass(frozen=True)
class Block:
    """Instructions that are contiguous and run in order."""

    address: int
    instructions: int
    code: bytes


@dataclass(frozen=True)
class Counts:
    """The instructions of one call of a function: those of a program with one call, minus those of one without.

    blocks: how often each block ran, in the order they first ran
    """

    arch: Architecture
    blocks: dict[Block, int]
    symbols: tuple[tuple[int, str], ...] = ()  # address and name of every function, sorted

    @property
    def total(self) -> int:
        """All instructions."""
        return sum(block.instructions * runs for block, runs in self.blocks.items())

    @property
    def functions(self) -> dict[str, int]:
        """Instructions of each function in the order they first ran."""
        found: dict[str, int] = {}
        for block, runs in self.blocks.items():
            name = self._function(block)
            found[name] = found.get(name, 0) + block.instructions * runs
        return found

    def _function(self, block: Block) -> str:
        index = bisect_right(self.symbols, (block.address, "\U0010ffff")) - 1
        return self.symbols[index][1] if index >= 0 else "?"

    @cached_property
    def mnemonics(self) -> Counter[str]:
        """How often each instruction was executed."""
        return self.mnemonics_of(lambda function: True)

    def mnemonics_of(self, chosen: Callable[[str], bool]) -> Counter[str]:
        """How often each instruction was executed in the functions with the chosen names."""
        # Thumb code, that of a 32-bit C library, is recognized by its two-byte instructions and left out
        blocks = [b for b in self.blocks if len(b.code) == 4 * b.instructions and chosen(self._function(b))]
        names = iter(disassembled(b"".join(block.code for block in blocks), self.arch))
        histogram: Counter[str] = Counter()
        for block in blocks:
            for _ in range(block.instructions):
                histogram[next(names)] += self.blocks[block]
        return histogram


@contextmanager
def counted() -> Iterator[list[Counts]]:
    """The counts of every function call that is emulated within."""
    found: list[Counts] = []

    def run_counted(run: emulator.Run, program: Path, arch: Architecture) -> None:
        idle, busy = (_blocks(partial(run, calls), arch) for calls in (0, 1))
        runs = {block: busy.get(block, 0) - idle.get(block, 0) for block in {**busy, **idle}}
        found.append(Counts(arch, {b: count for b, count in runs.items() if count}, _functions(program, arch)))

    emulator.runners.append(run_counted)
    try:
        yield found
    finally:
        emulator.runners.remove(run_counted)


def executed(command: Sequence[Any], arch: Architecture, cpu: str, options: Sequence[str] = ()) -> dict[Block, int]:
    """How often each block of instructions ran in an emulated program, including start and end."""
    return _blocks(lambda plugins: emulator.run_program(command, arch, cpu, [*plugins, *options]), arch)


def _blocks(run: Callable[[list[str]], Any], arch: Architecture) -> dict[Block, int]:
    with tempfile.TemporaryDirectory(dir=emulator.scratch()) as folder:
        out = Path(folder) / "counts"
        run(["-plugin", f"{plugin(arch)},out={out}"])
        found: dict[Block, int] = {}
        for line in out.read_text().splitlines():
            address, runs, instructions, code = line.split(" ")
            block = Block(int(address, 16), int(instructions), bytes.fromhex(code))
            found[block] = found.get(block, 0) + int(runs)
    return found


@cache
def plugin(arch: Architecture) -> Path:
    """The plugin, compiled for the emulator's version. Skips the test where the emulator takes no plugins, or without a
    compiler for this machine."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("counting instructions needs a C compiler (gcc)")
    text = subprocess.run([arch.emulator, "--help"], capture_output=True, text=True, check=False).stdout
    if "-plugin" not in text:
        pytest.skip(f"counting instructions needs an {arch.emulator} built with plugins")
    text = subprocess.run([arch.emulator, "--version"], capture_output=True, text=True, check=True).stdout
    version = tuple(int(part) for part in text.split("version ")[1].split()[0].split(".")[:2])
    api = 1 if version < (9, 0) else 2 if version < (9, 1) else 3
    path = emulator.scratch() / f"count-{arch.name}.so"
    emulator.command(compiler, "-O2", "-shared", "-fPIC", f"-DAPI={api}", emulator.HERE / "count.c", "-o", path)
    return path


def _functions(program: Path, arch: Architecture) -> tuple[tuple[int, str], ...]:
    listing = subprocess.run(
        [f"{arch.prefix}nm", "--defined-only", str(program)], capture_output=True, text=True, check=True
    ).stdout
    rows = (line.split() for line in listing.splitlines())
    functions = ((int(row[0], 16), row[2]) for row in rows if len(row) == 3 and row[1] in "tTwWiI")
    return tuple(sorted((address, name) for address, name in functions if name[0] != "$"))


def disassembled(code: bytes, arch: Architecture) -> list[str]:
    """The mnemonics of four-byte instructions."""
    with tempfile.NamedTemporaryFile(dir=emulator.scratch()) as file:
        file.write(code)
        file.flush()
        listing = subprocess.run(
            [f"{arch.prefix}objdump", "-D", "-b", "binary", "-m", arch.name, "--no-show-raw-insn", "-z", file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    lines = (line.split("\t") for line in listing.splitlines())
    return [fields[1].split()[0] for fields in lines if len(fields) > 1 and fields[0].endswith(":")]
