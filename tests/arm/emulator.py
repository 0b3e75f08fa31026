"""Runs code for ARM CPUs, 64-bit and 32-bit, under QEMU's user mode.

A function is linked with `main.c`, which needs no TVM runtime, and called on arrays from a file. `engines.py` runs
whole models this way, `count.py` counts instructions.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi.libinfo
from tvm.target import Target

from qnn_ext.running import workers
from qnn_ext.targets import families
from qnn_ext.targets.architectures import host_architecture
from qnn_ext.targets.backend import threads_of
from qnn_ext.targets.features import backend_of, has_feature
from qnn_ext.targets.names import target_architecture

HERE = Path(__file__).parent
TIMEOUT = 600.0  # seconds


class EmulationError(Exception):
    """The emulated program failed; the message is what it wrote."""


class IllegalInstruction(EmulationError):
    """The emulated CPU lacks an instruction in the program."""


@dataclass(frozen=True, eq=False)
class Architecture:
    """How programs for an architecture are built and run. `prefix`: of the cross compiler's programs; `cpus`: QEMU's
    names with the features (LLVM's names) that code for each may use, the plainest first."""

    name: str
    prefix: str
    emulator: str
    cpus: Mapping[str, frozenset[str] | None]

    @property
    def compiler(self) -> str:
        return f"{self.prefix}gcc"

    @property
    def root(self) -> str:
        """Where the shared libraries of the architecture are."""
        return f"/usr/{self.prefix.rstrip('-')}"


_V8_2 = frozenset({"dotprod", "fullfp16", "lse", "rdm", "rcpc"})
AARCH64 = Architecture(
    "aarch64",
    "aarch64-linux-gnu-",
    "qemu-aarch64",
    # None: all that QEMU knows
    {"cortex-a53": frozenset(), "cortex-a72": frozenset(), "cortex-a76": _V8_2, "neoverse-n1": _V8_2, "max": None},
)
_VFP4 = frozenset({"vfp4", "hwdiv-arm"})
ARM32 = Architecture(
    "arm",
    "arm-linux-gnueabihf-",
    "qemu-arm",
    {"cortex-a8": frozenset(), "cortex-a7": _VFP4, "cortex-a15": _VFP4, "max": None},
)
FEATURES = ("dotprod", "i8mm", "bf16", "sve", "fullfp16", "fp16fml", "lse", "rdm", "rcpc")
FEATURES_32 = ("vfp4", "hwdiv-arm", "fp-armv8", "dotprod", "i8mm", "fullfp16")


def emulates(target: Target) -> bool:
    """Whether code for the target runs on this machine under emulation."""
    return (
        backend_of(target) in (families.AARCH64, families.ARM32) and target_architecture(target) != host_architecture()
    )


def architecture(target: Target) -> Architecture:
    """The architecture of an ARM target."""
    return AARCH64 if backend_of(target) is families.AARCH64 else ARM32


def cpus_of(target: Target) -> list[str]:
    """QEMU's names of the CPUs that have every feature the target's code may use, the plainest first."""
    features = FEATURES if backend_of(target) is families.AARCH64 else FEATURES_32
    wanted = {feature for feature in features if has_feature(target, feature)}
    return [cpu for cpu, offered in architecture(target).cpus.items() if offered is None or wanted <= offered]


def plainest_cpu(target: Target) -> str:
    """QEMU's name of the plainest CPU with every feature the target's code may use: it must do without others."""
    return cpus_of(target)[0]


def require(target: Target) -> None:
    """Skip the test where the emulator or the cross compiler of the target's architecture is missing."""
    arch = architecture(target)
    if missing := [program for program in (arch.emulator, arch.compiler) if not shutil.which(program)]:
        pytest.skip(f"{' and '.join(missing)} not found: python -m scripts.emulators")


# ---- building ----------------------------------------------------------------------------------------------------


@cache
def scratch() -> Path:
    """This process's folder for what is compiled once; deleted when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="qnn-ext-arm-")
    _kept.append(folder)
    return Path(folder.name)


_kept: list[Any] = []


def command(*args: Any) -> None:
    """Run a program of this machine. Raises EmulationError."""
    done = subprocess.run([str(arg) for arg in args], capture_output=True, text=True, timeout=TIMEOUT)
    if done.returncode:
        raise EmulationError(f"{' '.join(map(str, args))}\n{done.stderr}")


def includes() -> list[str]:
    """Compiler options that find the headers of TVM and of its FFI."""
    folders = [Path(tvm.__file__).parent / "include", *map(Path, tvm_ffi.libinfo.include_paths())]
    return [f"-I{folder}" for folder in folders]


@cache
def _main_object(arch: Architecture) -> Path:
    path = scratch() / f"main-{arch.name}.o"
    layout = [f"-D{name}={getattr(workers, name)}" for name in ("OWNERS", "SLOTS", "SLOT", "STATE", "JOB")]
    command(arch.compiler, "-O2", "-pthread", *layout, *includes(), "-c", HERE / "main.c", "-o", path)
    return path


def link(executable: Any, function: str, arch: Architecture, folder: Path) -> Path:
    """A static program that calls the executable's function on arrays from a file."""
    code, program = folder / "code.o", folder / "program"
    executable.mod.write_to_file(str(code))
    entry = f"-Wl,--defsym=entry=__tvm_ffi_{function}"
    command(arch.compiler, "-static", "-pthread", _main_object(arch), code, entry, "-lm", "-o", program)
    return program


# ---- running -----------------------------------------------------------------------------------------------------

READ, FRESH, READ_POINTER, CHANGED_POINTER, INTEGER = range(5)  # as in main.c
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}  # NumPy's kinds -> DLPack's type codes


@dataclass(frozen=True)
class Argument:
    """An array that a function reads as a tensor (READ) or by address, fills, or changes; or a number. `shape`: the
    tensor's declared shape, if it is not the array's."""

    kind: int
    value: np.ndarray
    shape: tuple[int, ...] | None = None

    def form(self) -> list[int]:
        array, shape = self.value, self.shape or self.value.shape
        return [self.kind, _CODES[array.dtype.kind], 8 * array.dtype.itemsize, len(shape), *shape, array.nbytes]

    @property
    def returned(self) -> bool:
        return self.kind in (FRESH, CHANGED_POINTER)


def integer(value: int) -> Argument:
    """A number as an argument."""
    return Argument(INTEGER, np.asarray(value, np.int64))


@contextmanager
def request(arguments: Sequence[Argument]) -> Iterator[tuple[Path, Path]]:
    """The written files of a request, and those of its result."""
    with tempfile.TemporaryDirectory(dir=scratch()) as name:
        asked, result = Path(name) / "request", Path(name) / "result"
        with asked.open("wb") as file:
            words = [len(arguments), *(word for argument in arguments for word in argument.form())]
            file.write(np.asarray(words, "<i8").tobytes())
            for argument in arguments:
                if argument.kind != FRESH:
                    file.write(np.ascontiguousarray(argument.value).tobytes())
        yield asked, result


def call(
    program: Path, arguments: Sequence[Argument], arch: Architecture, cpu: str, tasks: int = 1
) -> list[np.ndarray]:
    """The arrays that the program fills or changes in one call on an emulated CPU."""
    with request(arguments) as (asked, result):

        def run(calls: int, options: Sequence[str]) -> None:
            run_program([program, asked, result, calls, tasks], arch, cpu, options)

        runners[-1](run, program, arch)
        data = result.read_bytes()
    arrays, start = [], 0
    for value in (argument.value for argument in arguments if argument.returned):
        arrays.append(np.frombuffer(data, value.dtype, value.size, start).reshape(value.shape))
        start += value.nbytes
    if start != len(data):
        raise EmulationError(f"the program wrote {len(data)} bytes instead of {start}")
    return arrays


Run = Callable[[int, Sequence[str]], None]
"""Calls the function a number of times in a new process, with options of QEMU."""


def _run_once(run: Run, program: Path, arch: Architecture) -> None:
    run(1, ())


runners: list[Callable[[Run, Path, Architecture], None]] = [_run_once]
"""The last of these commands runs programs."""


def run_program(command: Sequence[Any], arch: Architecture, cpu: str, options: Sequence[str] = ()) -> str:
    """Run a program on an emulated CPU; returns what it wrote to stdout. Raises EmulationError."""
    environment = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    done = subprocess.run(
        [arch.emulator, "-cpu", cpu, "-L", arch.root, *options, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env=environment,
    )
    if done.returncode:
        kind = IllegalInstruction if "Illegal instruction" in done.stderr or done.returncode == -4 else EmulationError
        raise kind(f"on {cpu} the program ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def run_function(
    executable: Any, target: Target, arguments: Sequence[Argument], cpu: str = "", function: str = "main"
) -> list[np.ndarray]:
    """The arrays that a function of a compiled module fills or changes. `cpu`: an emulated CPU, by default the plainest
    for the target.

    Raises EmulationError, also when the function wrote outside an array.
    """
    arch = architecture(target)
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:
        program = link(executable, function, arch, Path(folder))
        return call(program, arguments, arch, cpu or plainest_cpu(target), tasks=threads_of(target.attrs))


def run_kernel(
    executable: Any, target: Target, inputs: Sequence[np.ndarray], shape: Sequence[int], dtype: str, cpu: str = ""
) -> np.ndarray:
    """The output of `main(*inputs, output)` of a compiled module: `run_function` for a kernel."""
    arguments = [*(Argument(READ, array) for array in inputs), Argument(FRESH, np.empty(shape, dtype))]
    return run_function(executable, target, arguments, cpu)[0]
