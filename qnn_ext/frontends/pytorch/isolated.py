"""PyTorch files, imported in a separate process: PyTorch's readers crash on some damaged files, and TorchScript is a
program that the import evaluates.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ... import errors
from ...errors import InputError, ModelFormatError, QnnError
from ...limits import current, over
from ...module import QnnModule
from ...processes.isolation import Bounds, Ended, call
from .common import import_torch
from .reader import PROGRAM, TORCHSCRIPT, Archive
from .transfer import pack, unpack, unpack_module

_COPIES = 20  # of a file's content that an import may need: read, unpacked, packed for PyTorch, converted, sent
_IMPORTERS = {
    TORCHSCRIPT: "qnn_ext.frontends.pytorch.torchscript.importer",
    PROGRAM: "qnn_ext.frontends.pytorch.exported.archive",
}


def import_file(archive: Archive, values: tuple[Any, Any, Any], engine: str | None) -> QnnModule:
    """The module of an archive.

    values: the user's example inputs, shapes and constants

    Raises what its import raises, ModelFormatError if that crashes, and LimitError if it
    exceeds its time or memory limit."""
    limits, threads = current(), import_torch().get_num_threads()
    memory = limits.memory + _COPIES * len(archive.content)
    header = {
        "kind": archive.kind,
        "name": archive.name,
        "engine": engine,
        "threads": threads,
        "limits": asdict(limits),
    }
    try:
        answer = call(
            "qnn_ext.frontends.pytorch.child:import_file",
            pack(header, [archive.content, _pickled(values)]),
            Bounds(limits.seconds, memory, answer=memory, threads=threads),
            preload=["qnn_ext.frontends.pytorch.child", _IMPORTERS[archive.kind]],
        )
    except Ended as end:
        raise _problem(end, archive.name) from None
    header, _ = unpack(answer)
    if "open" in header:
        name, dims = header["open"]
        raise errors.OpenShapeError(header["message"], name, tuple(dims))
    if "error" in header:
        raise getattr(errors, header["error"], QnnError)(header["message"])
    return unpack_module(answer)


def _pickled(values: tuple[Any, Any, Any]) -> bytes:
    """The user's own values, for the child."""
    example_inputs, shapes, constants = values
    shapes = dict(shapes) if isinstance(shapes, Mapping) else shapes
    try:
        return pickle.dumps((example_inputs, shapes, dict(constants)))
    except Exception as error:  # the classes of these values may raise anything
        raise InputError(
            f"example_inputs cannot be sent to the separate process that reads the file ({error}); give arrays, "
            "tensors, numbers, and tuples, lists or dictionaries of them"
        ) from error


def _problem(end: Ended, name: str) -> ModelFormatError:
    """The error for an import that ended without a result."""
    if end.kind in ("time", "memory"):
        limit = {"time": "seconds", "memory": "memory"}[end.kind]
        return over(limit, f"{name}: {end.doing or 'the import'}")
    doing = f" while {end.doing}" if end.doing else ""
    if end.kind == "crash":
        return ModelFormatError(
            f"{name}: PyTorch crashed{doing} ({end.what}): the file is damaged, from another PyTorch version, or "
            "malicious; export the model again"
        )
    lines = end.what.strip().splitlines() or ["no reason given"]
    return ModelFormatError(
        f"{name}: the import failed{doing}: {lines[-1]}; the file may be damaged, or this is a bug in qnn_ext"
    )
