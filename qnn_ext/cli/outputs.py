"""Checks of the files that a command will write, made before its work: nothing valuable is replaced."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import ModelFormatError, QnnError
from ..files.storage import check_writable
from .formats import recognize


def check_output(path: Path, inputs: Sequence[Path | None], suffixes: Sequence[str] = ()) -> None:
    """Raise QnnError if a file cannot be written, has another suffix than these, or is one of the inputs."""
    if str(path) == "-":
        raise QnnError("results are written to files, not to the standard output: give a file name instead of -")
    if suffixes and path.suffix not in suffixes:
        raise QnnError(f"{path}: the name must end in {' or '.join(suffixes)}")
    check_writable(path)
    for other in inputs:
        if other is not None and path.exists() and other.exists() and path.samefile(other):
            raise QnnError(f"{path} is an input of this command and would be replaced: choose another name")


def check_compiled(path: Path, inputs: Sequence[Path | None]) -> None:
    """Raise QnnError if a compiled model cannot or must not be written there. Only a .qnn file is replaced by it."""
    check_output(path, inputs)
    if not path.exists() or not path.stat().st_size:
        return
    try:
        compiled = recognize(path) == "qnn"
    except ModelFormatError:
        compiled = False
    if not compiled:
        raise QnnError(f"{path} exists and is not a compiled model: choose another name, or remove it first")
