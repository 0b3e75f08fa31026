"""What a child process does for `isolated`: read a PyTorch file and import it. The request comes from this package and
holds the user's own example inputs; only the file in it is untrusted."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

from ...entry_points import load_plugins
from ...errors import InputError, OpenShapeError, QnnError
from ...limits import Limits, limited
from ...module import QnnModule
from ...processes.isolation import working_on
from . import reader
from .common import import_torch
from .transfer import pack, pack_module, unpack

load_plugins()  # now, as the processes of single calls may read no files


def import_file(request: bytearray) -> list[Any]:
    """The module as a message, or the reason there is none: {"error": class, "message": text}, and the sizes left
    open if that is it. Raises MemoryError."""
    torch = import_torch()
    header, (content, values) = unpack(request)
    if torch.get_num_threads() != header["threads"]:
        torch.set_num_threads(header["threads"])  # PyTorch's sums depend on it
    try:
        archive = reader.Archive(header["kind"], bytes(content), header["name"])
        with limited(Limits(**header["limits"])):
            example_inputs, shapes, constants = _unpickled(values)
            module = import_archive(archive, example_inputs, shapes, header["engine"], constants)
    except QnnError as error:
        if any(map(_is_lack_of_memory, _causes(error))):
            raise MemoryError from error
        reason: dict[str, Any] = {"error": type(error).__name__, "message": str(error)}
        if isinstance(error, OpenShapeError):
            reason["open"] = [error.name, error.dims]
        return pack(reason, [])
    return pack_module(module)


def _unpickled(values: memoryview) -> tuple[Any, Any, Any]:
    """The user's example inputs, shapes and constants."""
    try:
        example_inputs, shapes, constants = pickle.loads(values)
    except (ImportError, AttributeError) as error:  # its class is only known to the other process
        raise InputError(
            f"example_inputs contains types unknown to the separate process that reads the file ({error}); give "
            "arrays, tensors, numbers, and tuples, lists or dictionaries of them"
        ) from error
    return example_inputs, shapes, constants


def import_archive(
    archive: reader.Archive, example_inputs: Any, shapes: Any, engine: str | None, constants: Any = None
) -> QnnModule:
    """The module of an archive, imported in this process."""
    if archive.kind == reader.PROGRAM:
        from .exported import from_exported_program, load_program

        working_on("reading the program")
        program = load_program(archive.content, archive.name)
        return from_exported_program(program, archive.name, shapes, example_inputs, constants)
    from .torchscript import from_script_module
    from .torchscript.engines import quantized_engine, resolve_engine

    engine = resolve_engine(engine)
    working_on("reading the archive")
    with quantized_engine(engine):
        module = reader.load_script(archive)
    size = len(archive.content)  # packed weights do not state how many elements they have
    return from_script_module(module, example_inputs, shapes, engine, archive.name, size, constants)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_lack_of_memory(error: BaseException) -> bool:
    """Whether Python, PyTorch or the C++ library reports an allocation failure."""
    text = str(error)
    return isinstance(error, MemoryError) or "bad_alloc" in text or "can't allocate memory" in text
