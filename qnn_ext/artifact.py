"""The `.qnn` file: a zip of the compiled library, initial states and a JSON description. Written whole or not at all.

A `.qnn` file holds machine code: load only files you trust, as with any shared library.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from .errors import ArtifactError
from .kernels import Kernel
from .module import FloatNote, State, TensorSpec
from .qparams import QParams

FORMAT = 1
_DESCRIPTION, _LIBRARY, _STATES = "qnn.json", "model.so", "states.npz"
_stderr_lock = threading.Lock()


def write(path: str | os.PathLike, description: dict[str, Any], executable: Any, states: tuple[State, ...]) -> None:
    """Write a `.qnn` file by way of a temporary file beside it, so that nothing half-written is ever seen.

    Raises ArtifactError when the place cannot be written or no C compiler is there to link with.
    """
    target = Path(path)
    if target.is_dir():
        raise ArtifactError(f"cannot write {target}: it is a directory")
    if target.exists() and not (target.is_file() and os.access(target, os.W_OK)):
        raise ArtifactError(f"cannot write {target}: it is read-only or no regular file")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent or ".")
    except OSError as error:
        raise ArtifactError(f"cannot write {target}: {error.strerror}") from error
    os.close(handle)
    try:
        with zipfile.ZipFile(name, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_DESCRIPTION, json.dumps({"format": FORMAT, **description}, indent=1))
            archive.writestr(_LIBRARY, _link(executable))
            archive.writestr(_STATES, _pack_states(states))
        os.chmod(name, 0o644)
        os.replace(name, target)
    except OSError as error:
        raise ArtifactError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        Path(name).unlink(missing_ok=True)


def _link(executable: Any) -> bytes:
    with tempfile.TemporaryDirectory(prefix="qnn-ext-") as folder:
        library = Path(folder) / _LIBRARY
        try:
            with _quiet():
                executable.export_library(str(library))
        except Exception as error:
            raise ArtifactError(
                f"linking the model needs a C compiler (gcc or clang) on PATH: {str(error).strip().splitlines()[-1]}"
            ) from error
        return library.read_bytes()


def _pack_states(states: tuple[State, ...]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **{str(index): state.initial for index, state in enumerate(states)})  # type: ignore[arg-type]
    return buffer.getvalue()


def read(path: str | os.PathLike) -> tuple[dict[str, Any], list[np.ndarray], bytes]:
    """The description, the initial states and the library of a `.qnn` file. Raises ArtifactError."""
    source = Path(path)
    if not source.is_file():
        raise ArtifactError(f"{source}: no such file")
    try:
        with zipfile.ZipFile(source) as archive:
            description = json.loads(archive.read(_DESCRIPTION))
            library = archive.read(_LIBRARY)
            with np.load(io.BytesIO(archive.read(_STATES)), allow_pickle=False) as stored:
                states = [stored[str(index)] for index in range(len(stored.files))]
    except (zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError, OSError, RuntimeError) as error:
        raise ArtifactError(f"{source}: not a .qnn file, or a damaged one ({error})") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise ArtifactError(f"{source}: written by another version of qnn_ext; compile the model again")
    return description, states, library


def load_library(library: bytes) -> tvm.runtime.Module:
    """The compiled library. It is mapped from a temporary file, which is unlinked at once where the system allows."""
    with tempfile.TemporaryDirectory(prefix="qnn-ext-") as folder:
        path = Path(folder) / _LIBRARY
        path.write_bytes(library)
        try:
            with _quiet():
                return tvm.runtime.load_module(str(path))
        except Exception as error:
            raise ArtifactError(
                f"the library does not load here: {str(error).strip().splitlines()[-1]}; compile the model again"
            ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the C++ side: TVM 0.27 logs "Scope Saving:" and "Scope Loaded:" as warnings whenever it writes or reads
    an executable, with no way to turn that off. Errors still arrive, as exceptions."""
    with _stderr_lock:  # file descriptors belong to all threads: the second to come would save the first one's sink
        saved = os.dup(2)
        try:
            with open(os.devnull, "w") as sink:
                os.dup2(sink.fileno(), 2)
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)


# ---- JSON forms --------------------------------------------------------------------------------------------------


def spec_to_json(spec: TensorSpec) -> dict[str, Any]:
    """A TensorSpec as JSON; float32 scales survive exactly as Python floats."""
    qparams = spec.qparams
    packed = qparams and {
        "scale": np.asarray(qparams.scale, np.float64).tolist(),
        "scale_dtype": str(qparams.scale.dtype),
        "zero_point": qparams.zero_point.tolist(),
        "dtype": qparams.dtype,
        "axis": qparams.axis,
    }
    return {
        "name": spec.name,
        "shape": list(spec.shape),
        "dtype": spec.dtype,
        "qparams": packed,
        "dynamic_batch": spec.dynamic_batch,
    }


def spec_from_json(data: dict[str, Any]) -> TensorSpec:
    """The TensorSpec of `spec_to_json`."""
    packed = data["qparams"]
    qparams = packed and QParams(
        np.asarray(packed["scale"], packed["scale_dtype"]), packed["zero_point"], packed["dtype"], packed["axis"]
    )
    return TensorSpec(data["name"], tuple(data["shape"]), data["dtype"], qparams, data["dynamic_batch"])


def kernels_to_json(kernels: list[Kernel]) -> list[dict[str, Any]]:
    """Kernels as JSON."""
    return [asdict(kernel) for kernel in kernels]


def notes_to_json(notes: tuple[FloatNote, ...]) -> list[dict[str, str]]:
    """Notes as JSON."""
    return [asdict(note) for note in notes]
