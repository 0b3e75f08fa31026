"""export_c: writes the folder of a C library."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm.target import Target

from ..compiling.program.plain import data_object
from ..errors import ArtifactError, QnnError
from ..files.storage import replacing
from ..running.engine import Engine
from ..running.model import Variant
from ..targets import amx
from ..targets.architectures import host_architecture
from ..targets.families import backend_of_architecture
from ..version import VERSION
from .archiving import archive
from .interface import check_text, identifier, ports_of, state_bytes
from .library import ALIGNMENT, FORMAT, Library, library_of
from .rendering import render

EMBEDDED, FILE = "embedded", "file"
WEIGHTS = EMBEDDED, FILE
"""Where the weights of a C library are: in its object files, or in a file of their own."""


@dataclass(frozen=True)
class Exported:
    """What was written. files: their names; missing: why there is no library yet, only what `make` builds it from;
    empty if there is one."""

    folder: Path
    name: str
    files: tuple[str, ...]
    library: Library
    missing: str


def export_c(
    engine: Engine,
    folder: str | os.PathLike,
    name: str | None = None,
    weights: str = EMBEDDED,
    shared: bool = False,
    threads: int = 1,
) -> Exported:
    """Write an engine that was built in this process as a C library into a folder, which is made if there is none.

    name:    what the names of files and functions start with; by default the name of the model's file
    weights: "embedded" in the library, as constants, or in a "file" of their own, which a program maps into memory
    shared:  whether to link a shared library too, which the Python module in the folder loads
    threads: the most tasks that parallel parts are divided into, for threads that the calling program provides

    Raises ArtifactError for an engine that was loaded or a folder that cannot be written, and TargetError for a model
    that cannot be one function, and for targets of several architectures or of GPUs.
    """
    if weights not in WEIGHTS:
        raise QnnError(f"weights: must be {' or '.join(map(repr, WEIGHTS))}, found {weights!r}")
    if threads < 1:
        raise QnnError(f"threads: must be a positive number, found {threads}")
    stem = Path(engine.source_name).name.split(".")[0]
    name = identifier(stem if name is None else name)
    library = library_of(engine.model, _lowered(engine), name, threads, f"{name}_launch_")
    files = _files(library, weights == FILE)
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArtifactError(f"cannot write {folder}: {error.strerror or error}") from error
    for file, content in files.items():
        with replacing(folder / file, ArtifactError, durable=False) as stream:
            stream.write(content)
    objects = [file for file in files if file.endswith(".o")]
    made, missing = archive(folder, name, library.architecture, objects, shared, library.needs_libm, library.options)
    return Exported(folder, name, (*files, *made), library, missing)


def _lowered(engine: Engine) -> list[tuple[Variant, Any]]:
    """Each variant of an engine with its lowered module."""
    found = engine.lowered_variants
    if not found:
        raise ArtifactError(
            "this engine was loaded, and a .qnn file holds no code that a C library can be made of: build the model "
            "again from its original file"
        )
    return found


def _files(library: Library, apart: bool) -> dict[str, bytes]:
    """The content of all files of a library by name."""
    name = library.name
    files = {f"{one.prefix}.o": one.program.code for one in library.compiled}
    symbols = [f"{name}_weights{index}" for index in range(len(library.blobs))]
    weights_file = f"{name}.weights" if apart else ""
    if apart:
        files[weights_file] = library.file_head + b"".join(library.blobs)
        symbols = []
    else:
        files |= {f"{symbol}.o": _object(library, index, symbol) for index, symbol in enumerate(symbols)}
    context = _context(library, weights_file, symbols, [file for file in files if file.endswith(".o")])
    sources = {
        f"{name}.h": "library.h",
        f"{name}.c": "library.c",
        f"{name}.map": "library.map",
        f"{name}.hpp": "library.hpp",
        f"{name}.py": "library.py",
        "example.c": "example.c",
        "Makefile": "Makefile",
        "CMakeLists.txt": "CMakeLists.txt",
    }
    files |= {file: render(template, context).encode() for file, template in sources.items()}
    files[f"{name}.json"] = json.dumps(_manifest(library, weights_file), indent=1).encode()
    return files


def _object(library: Library, index: int, symbol: str) -> bytes:
    """The object file with one of the library's blobs."""
    with tempfile.TemporaryDirectory(prefix="qnn-ext-") as folder:
        path = Path(folder) / "weights"
        path.write_bytes(library.blobs[index])
        return data_object(path, symbol, Target(library.compiled[-1].variant.target))


_PLACES = ("inputs", "outputs", "before", "after", "initial")
_FIELDS = ("target", "prefix", "shared", "tasks", "features", "kept", "bits", *_PLACES)


def _context(library: Library, weights_file: str, symbols: Sequence[str], objects: Sequence[str]) -> dict[str, Any]:
    """What the templates are filled with."""
    model, name = library.model, library.name
    inputs, outputs = ports_of(model.inputs, model.results, name)
    variants = []
    for one in library.compiled:
        blob = library.blob_of(one)
        place = str(library.offsets[blob]) if weights_file else symbols[blob]
        row = {field: getattr(one, field) for field in _FIELDS}
        variants.append({**row, "weights": place, "status": one.status if model.checks else None})
    return {
        "asks": any(feature in amx.FEATURES for one in library.compiled for feature in one.variant.features),
        "name": name,
        "U": name.upper(),
        "source": re.sub(r"[^\w .+-]", "_", Path(model.source).name),  # it stands in comments
        "version": VERSION,
        "format": FORMAT,
        "checksum": library.checksum,
        "targets": " ".join(one.target for one in library.compiled),
        "alignment": ALIGNMENT,
        "workspace": library.workspace,
        "file": weights_file,
        "file_head": list(library.file_head[:48]),
        "weights_bytes": len(library.file_head) + sum(map(len, library.blobs)),
        "lent": backend_of_architecture(library.architecture).tight,
        "inputs": inputs,
        "outputs": outputs,
        "states": [{"name": state.name, "bytes": state_bytes(state)} for state in model.states],
        "checks": [check_text(check) for check in model.checks],
        "shared": library.shared,
        "tasks": library.tasks,
        "spare": library.spare,
        "aside": library.aside[:-1] if any(library.aside[:-1]) else [],
        "variants": variants,
        "symbols": symbols,
        "objects": objects,
        "dispatch": library.dispatch,
        "architecture": library.architecture,
        "options": " ".join(library.options),
        "libraries": "-lm" if library.needs_libm else "",
        **_tools(library.architecture),
    }


def _tools(architecture: str) -> dict[str, str]:
    """The programs that the Makefile uses unless it is told others."""
    gnu = backend_of_architecture(architecture).gnu
    if architecture == host_architecture() or not gnu:
        return {"compiler": "cc", "archiver": "ar"}
    return {"compiler": f"{gnu}-gcc", "archiver": f"{gnu}-ar"}


def _manifest(library: Library, weights_file: str) -> dict[str, Any]:
    """What the library is, for programs."""
    source = Path(library.model.source).name
    return {"name": library.name, "version": VERSION, "source": source, "file": weights_file, **library.summary()}
