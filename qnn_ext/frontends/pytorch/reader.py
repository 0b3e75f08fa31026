"""Determines the kind of a PyTorch file from its content, before PyTorch opens it. Nothing is unpickled here.

`torch.jit.save` and `torch.export.save` write archives that PyTorch reads without Python's pickle; `torch.save` writes
pickles, which can run anything when opened and hold no graph anyway: they are refused, with advice on what to save
instead.
"""

from __future__ import annotations

import io
import os
import pickletools
import re
import zipfile
from dataclasses import dataclass
from typing import Any

from ...errors import ModelFormatError
from ...files.reading import read_bytes
from .common import import_torch
from .records import checked_names, open_archive

TORCHSCRIPT, PROGRAM = "TorchScript", "torch.export program"

HOW_TO = (
    "in the code that creates the model, write torch.jit.trace(model.eval(), example).save(path) for eager and FX "
    "models, or torch.export.save(torch.export.export(model, (example,)), path) for PT2E models"
)
# TorchScript functions that access files
_FILE_ACCESS = re.compile(rb"\b(?:aten\.save|torch\.save|from_file)\s*\(")
# the names that a pickle of tensors may refer to
_TENSOR_GLOBALS = re.compile(r"collections OrderedDict|torch\._utils _rebuild\w*|torch(\.\w+)* \w*Storage|torch \w+")


@dataclass(frozen=True)
class Archive:
    """A PyTorch file, classified by its content.

    kind:    TORCHSCRIPT or PROGRAM
    content: its bytes
    name:    where it came from, for messages
    """

    kind: str
    content: bytes
    name: str


def read_archive(source: str | os.PathLike | bytes) -> Archive:
    """The file's kind and bytes. Raises ModelFormatError when it is missing, damaged, or neither TorchScript nor a
    program: a pickled module, a state dictionary, a file of another framework."""
    content, name = read_file(source)
    if not content:
        raise ModelFormatError(f"{name}: the file is empty")
    if not content.startswith(b"PK\x03\x04"):
        raise ModelFormatError(f"{name}: {_no_archive(content)}")
    try:
        return Archive(_kind(content), content, name)
    except ModelFormatError as error:
        raise type(error)(f"{name}: {error}") from error


def _kind(content: bytes) -> str:
    """Which of the two kinds of archive this is. Raises ModelFormatError when it is neither, or damaged."""
    with open_archive(content) as archive:
        records = checked_names(archive)
        files = {record.partition("/")[2]: record for record in records}
        if "archive_format" in files or "serialized_exported_program.json" in files:
            return PROGRAM
        if any(file.startswith("code/") for file in files) and "constants.pkl" in files:
            _check_code(archive)
            return TORCHSCRIPT
        if "data.pkl" in files:
            raise ModelFormatError(_pickle_problem(archive.read(files["data.pkl"])))
    raise ModelFormatError(
        f"a zip archive without the records of a TorchScript or torch.export model "
        f"(it holds {', '.join(sorted(records)[:4]) or 'nothing'}); {HOW_TO}"
    )


def load_script(archive: Archive) -> Any:
    """The `torch.jit.ScriptModule` of a TorchScript archive, its weights packed for the current engine.

    Raises ModelFormatError when PyTorch cannot read it.
    """
    torch = import_torch()
    try:
        return torch.jit.load(io.BytesIO(archive.content), map_location="cpu")
    except Exception as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ModelFormatError(
            f"{archive.name}: PyTorch cannot read this TorchScript archive: {reason.strip()[:300]}; it may be "
            "damaged, from another PyTorch version, or use operators that an extension registers: in that case import "
            "the extension, load the file with torch.jit.load if you trust it, and pass the object"
        ) from error


def read_file(source: str | os.PathLike | bytes) -> tuple[bytes, str]:
    """The content of a file, or the given bytes, and a name for messages."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source), "the model given as bytes"
    return read_bytes(source, ModelFormatError), os.fspath(source)


def _check_code(archive: zipfile.ZipFile) -> None:
    for record in archive.namelist():
        if record.endswith(".py") and _FILE_ACCESS.search(archive.read(record)):
            raise ModelFormatError(f"the code in {record} reads or writes files, which no model needs to do")


def _no_archive(content: bytes) -> str:
    if content[4:8] == b"TFL3":
        return "this is a TFLite model; read it with from_tflite"
    if content[:1] == b"\x80" or content[:2] in (b"}q", b"(d", b"cc"):
        return _pickle_problem(content)
    return f"not a PyTorch archive: it does not begin like a zip file; {HOW_TO}"


def _pickle_problem(content: bytes) -> str:
    """The error for a pickle, which is read as a list of opcodes and never executed."""
    classes = []
    try:
        for opcode, argument, _ in pickletools.genops(content):
            if opcode.name == "GLOBAL":
                classes.append(str(argument))
            if opcode.name == "STOP" and classes:
                break
    except Exception:  # a damaged pickle: what was found so far decides
        pass
    foreign = [name for name in classes if not _TENSOR_GLOBALS.fullmatch(name)]
    if classes and not foreign:
        return f"weights only (a state dictionary written by torch.save), without a graph; {HOW_TO}"
    if foreign:
        owner = foreign[0].replace(" ", ".")
        return (
            f"a pickled Python object ({owner}) written by torch.save; it is not opened, as that could run any code; "
            f"{HOW_TO}"
        )
    return f"a pickle, which is not opened, as that could run any code; {HOW_TO}"
