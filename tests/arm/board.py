"""A board without a board: Python for aarch64 on an emulated CPU, with the packages that a user installs there.

`scripts/emulators.py` unpacks both.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import qnn_ext
from scripts.emulators import ROOT, SITE, emulated_python

REPOSITORY = Path(qnn_ext.__file__).parents[1]
TIMEOUT = 600.0  # seconds


def require() -> None:
    """Skip the test where the emulated Python or one of its packages is missing."""
    if not shutil.which("qemu-aarch64"):
        pytest.skip("qemu-aarch64 not found: python -m scripts.emulators")
    if emulated_python() is None or not (SITE / "tvm").is_dir():
        pytest.skip("no Python for aarch64 in the virtual environment: python -m scripts.emulators")


def python(cpu: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Run the emulated Python on one of QEMU's CPUs."""
    require()
    path = os.pathsep.join([str(SITE), str(REPOSITORY)])
    environment = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    command = ["qemu-aarch64", "-cpu", cpu, "-L", str(ROOT), str(emulated_python()), *map(str, args)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)


def qnn_ext_command(cpu: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Run the command line `qnn-ext` on one of QEMU's CPUs."""
    return python(cpu, "-c", "from qnn_ext.cli import main; main()", *args)


def interpreter(cpu: str, path: Path) -> Path:
    """A program at `path` that is the emulated Python, for what Python starts again by itself."""
    path.write_text(f'#!/bin/sh\nexec {shutil.which("qemu-aarch64")} -cpu {cpu} -L {ROOT} {emulated_python()} "$@"\n')
    path.chmod(0o755)
    return path
