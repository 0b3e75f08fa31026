"""The built-in seed files of each format: the bundled models and small ones around one operator each.

A child process writes them, since the frameworks behind some of them take seconds to import and are not needed in the
parent.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ..formats import INSIDE

ROOT = Path(__file__).parents[3]
DATA = ROOT / "qnn_ext" / "data"


def write_in_child(name: str, folder: Path) -> None:
    """Write the seeds of a format, or of "module:attribute" the module's function `seeds`, into a folder."""
    subprocess.run(
        [sys.executable, "-m", __name__ + ".write", name, str(folder)],
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )


def seeds(name: str) -> Iterator[tuple[str, bytes]]:
    """File names and contents."""
    module = name.partition(":")[0] if ":" in name else f"{__name__}.{name.removesuffix(INSIDE)}"
    yield from importlib.import_module(module).seeds()


def bundled(pattern: str) -> Iterator[tuple[str, bytes]]:
    """Models that come with qnn_ext."""
    for path in sorted(DATA.glob(pattern)):
        yield path.name, path.read_bytes()
