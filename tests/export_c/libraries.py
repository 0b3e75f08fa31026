"""C libraries for the tests: exported, compiled as a user would, and run here or on an emulated CPU."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from qnn_ext.export_c import Exported
from qnn_ext.module import TensorSpec
from qnn_ext.targets.architectures import host_architecture

HERE = Path(__file__).parent
TIMEOUT = 300.0  # seconds
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-pedantic")
GNU = {"aarch64": "aarch64-linux-gnu", "arm": "arm-linux-gnueabihf", "riscv64": "riscv64-linux-gnu"}
EMULATORS = {"x86_64": "qemu-x86_64", "aarch64": "qemu-aarch64", "arm": "qemu-arm", "riscv64": "qemu-riscv64"}


def compiler(architecture: str, language: str = "c") -> str:
    """The compiler for an architecture; skips the test without one."""
    name = {"c": "gcc", "c++": "g++"}[language]
    name = name if architecture == host_architecture() else f"{GNU[architecture]}-{name}"
    if not shutil.which(name):
        pytest.skip(f"{name} not found: python -m scripts.emulators")
    return name


def run(*command: object, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return subprocess.run(
        list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )


def checked(*command: object, folder: Path | None = None) -> str:
    """What a program wrote, which must not fail."""
    done = run(*command, folder=folder)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def emulated(architecture: str, cpu: str = "") -> list[str]:
    """How a command starts that runs a program on a CPU; nothing for this machine's own. Skips the test without the
    emulator."""
    if architecture == host_architecture() and not cpu:
        return []
    emulator = EMULATORS[architecture]
    if not shutil.which(emulator):
        pytest.skip(f"{emulator} not found: python -m scripts.emulators")
    root = [] if architecture == host_architecture() else ["-L", f"/usr/{GNU[architecture]}"]
    return [emulator, *(["-cpu", cpu] if cpu else []), *root]


class Harness:
    """A library linked with `harness.c`."""

    def __init__(self, exported: Exported, *options: str, threaded: bool = False) -> None:
        self._exported, self._folder = exported, exported.folder
        self._architecture = exported.library.architecture
        model, name = exported.library.model, exported.name
        sizes = (",".join(str(_bytes(spec)) for spec in specs) or "0" for specs in (model.inputs, model.outputs))
        defined = dict(zip(("INPUT_BYTES", "OUTPUT_BYTES"), sizes, strict=True))
        defined |= {"PREFIX": name, "UPPER": name.upper(), "HEADER": f'"{name}.h"'}
        weights = self._folder / f"{name}.weights"
        if weights.exists():
            defined["WEIGHTS"] = f'"{weights}"'
        flags = [f"-D{key}={value}" for key, value in defined.items()] + ["-DTHREADED"] * threaded
        sources = [HERE / "harness.c", self._folder / f"{name}.c"]
        objects = [self._folder / file for file in exported.files if file.endswith(".o") and file != f"{name}.o"]
        self._program = self._folder / "harness"
        math = ["-lm"] if exported.library.needs_libm else []
        checked(
            *(compiler(self._architecture), "-std=gnu11", "-O1", "-g", *WARNINGS, *options, "-pthread", *flags),
            *(f"-I{self._folder}", *sources, *objects, *math, "-o", self._program),
        )
        self.said = ""

    def __call__(
        self, calls: Sequence[Sequence[np.ndarray]], cpu: str = "", threads: int = 1
    ) -> list[list[np.ndarray]]:
        """The outputs of consecutive calls in one process."""
        inputs, outputs = self._folder / "inputs.bin", self._folder / "outputs.bin"
        inputs.write_bytes(b"".join(array.tobytes() for arrays in calls for array in arrays))
        command = [*emulated(self._architecture, cpu), self._program, inputs, outputs, len(calls), threads]
        self.said = checked(*command).strip()
        return _split(outputs.read_bytes(), self._exported.library.model.outputs, len(calls))


def _bytes(spec: TensorSpec) -> int:
    return int(np.prod(spec.shape, dtype=np.int64)) * np.dtype(spec.dtype).itemsize


def _split(data: bytes, specs: Sequence[TensorSpec], calls: int) -> list[list[np.ndarray]]:
    results, start = [], 0
    for _ in range(calls):
        row = []
        for spec in specs:
            size = _bytes(spec)
            row.append(np.frombuffer(data[start : start + size], spec.dtype).reshape(spec.shape))
            start += size
        results.append(row)
    assert start == len(data)
    return results


def example_outputs(exported: Exported, inputs: Sequence[np.ndarray], cpu: str = "") -> list[np.ndarray]:
    """What `make && ./example INPUT.bin… OUTPUT.bin…` writes."""
    folder, outputs = exported.folder, exported.library.model.outputs
    compiler(exported.library.architecture)
    checked("make", folder=folder)
    names = [f"input{index}.bin" for index in range(len(inputs))]
    for name, array in zip(names, inputs, strict=True):
        (folder / name).write_bytes(array.tobytes())
    results = [f"output{index}.bin" for index in range(len(outputs))]
    checked(*emulated(exported.library.architecture, cpu), "./example", *names, *results, folder=folder)
    return _split(b"".join((folder / name).read_bytes() for name in results), outputs, 1)[0]
