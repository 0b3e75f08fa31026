"""The `.qnn` file: a zip of a JSON description, initial states and a compiled library for each CPU it was built for.

It is written whole or not at all, and only the library that fits this CPU is unpacked.
A `.qnn` file holds machine code: load only files you trust, as with any shared library.
"""

from __future__ import annotations

import contextlib
import io
import json
import lzma
import os
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import tvm_runtime
from .errors import ArtifactError, TargetError
from .kernels import Kernel
from .module import FloatNote, State, TensorSpec
from .qparams import QParams

if TYPE_CHECKING:
    import tvm_ffi

FORMAT = 2
_DESCRIPTION, _STATES = "qnn.json", "states.npz"
_LZMA_LIMIT = 1 << 20  # bytes
_LZMA = {"id": lzma.FILTER_LZMA2, "preset": 9}
_DELTA_16 = {"id": lzma.FILTER_DELTA, "dist": 2}
_CHUNK = 1 << 18  # bytes that are unpacked at a time


@dataclass(frozen=True)
class Variant:
    """The model compiled for one CPU.

    executable: what the library is linked from
    weights:    constants that lie outside the code; None where it holds them all
    """

    description: dict[str, Any]
    executable: Any
    weights: np.ndarray | None


def write(
    path: str | os.PathLike, common: dict[str, Any], variants: Sequence[Variant], states: tuple[State, ...]
) -> None:
    """Write a `.qnn` file, whole or not at all.

    common: what holds for all variants. variants: the fastest first, for `load` takes the first that this CPU can run.

    Raises ArtifactError when the place cannot be written or no compiler is there to link with for one of the CPUs.
    """
    from .storage import replacing  # never needed to load

    description = {"format": FORMAT, **common, "variants": [variant.description for variant in variants]}
    with replacing(path, ArtifactError) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_DESCRIPTION, json.dumps(description, indent=1), zipfile.ZIP_LZMA)
        archive.writestr(_STATES, _pack_states(states))
        for index, variant in enumerate(variants):
            _add_library(archive, _library_name(index), variant)
            if variant.description["target"]["kind"] == "cuda":
                _add_kernels(archive, index, variant)
            if variant.weights is not None:
                _add_weights(archive, index, variant.weights.tobytes())


def _library_name(index: int) -> str:
    return f"model{index}.so"


def _weights_name(index: int, packed: bool) -> str:
    return f"weights{index}.{'xz' if packed else 'bin'}"


def _add_library(archive: zipfile.ZipFile, name: str, variant: Variant) -> None:
    from .linking import export_library  # never needed to load

    with tempfile.TemporaryDirectory(prefix="qnn-ext-") as folder:
        library = Path(folder) / name
        export_library(variant.executable, str(library), variant.description["architecture"])
        archive.write(library, name, _compression(library.stat().st_size))


def _add_kernels(archive: zipfile.ZipFile, index: int, variant: Variant) -> None:
    """A GPU's kernels as a binary, under the digest of the source that the library holds. Where neither nvcc nor NVRTC
    is here, the machine that loads the model compiles that source."""
    from . import cuda_compiler

    source = cuda_compiler.source_of(variant.executable.mod)
    if not source:  # a model that only reshapes
        return
    try:
        compiled = cuda_compiler.binary(source, variant.description["target"]["arch"])
    except TargetError as error:
        warnings.warn(f"the file holds no binary of its kernels: {error}", stacklevel=4)
        return
    archive.writestr(f"{_kernels_prefix(index)}{cuda_compiler.digest(source)}", compiled)


def _kernels_prefix(index: int) -> str:
    return f"kernels{index}-"


def keep_kernels(path: str | os.PathLike, index: int) -> None:
    """Have the binary of variant `index`'s kernels taken in place of their source, if the file holds one."""
    from . import cuda_compiler

    with _opened(Path(path)) as archive:
        for name in archive.namelist():
            if name.startswith(_kernels_prefix(index)):
                cuda_compiler.keep(name.removeprefix(_kernels_prefix(index)), archive.read(name))


def _compression(size: int) -> int:
    """LZMA makes code and tables a fifth smaller than deflate does, weights hardly, and takes ten times as long to
    unpack."""
    return zipfile.ZIP_LZMA if size <= _LZMA_LIMIT else zipfile.ZIP_DEFLATED


def _add_weights(archive: zipfile.ZipFile, index: int, data: bytes) -> None:
    """Few weights as xz data: of the values or, where tables of 16 bits prevail, of their differences, whichever is
    smaller."""
    packed = len(data) <= _LZMA_LIMIT
    if packed:
        data = min((lzma.compress(data, filters=filters) for filters in ([_LZMA], [_DELTA_16, _LZMA])), key=len)
    archive.writestr(_weights_name(index, packed), data, zipfile.ZIP_STORED if packed else zipfile.ZIP_DEFLATED)


def _pack_states(states: tuple[State, ...]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **{str(index): state.initial for index, state in enumerate(states)})  # type: ignore[arg-type]
    return buffer.getvalue()


def read(path: str | os.PathLike) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The description and the initial states of a `.qnn` file. Raises ArtifactError."""
    source = Path(path)
    with _opened(source) as archive:
        description = json.loads(archive.read(_DESCRIPTION))
        if not isinstance(description, dict) or description.get("format") != FORMAT:
            raise ArtifactError(f"{source}: written by another version of qnn_ext; compile the model again")
        with np.load(io.BytesIO(archive.read(_STATES)), allow_pickle=False) as stored:
            states = [stored[str(index)] for index in range(len(stored.files))]
    return description, states


def load_code(path: str | os.PathLike, index: int, with_weights: bool) -> tuple[tvm_ffi.Module, np.ndarray | None]:
    """The library of variant `index`, and its weights where it has them outside the code. The library is mapped from a
    temporary file, which is unlinked at once where the system allows; nothing is held twice at any time."""
    with tempfile.TemporaryDirectory(prefix="qnn-ext-") as folder:
        with _opened(Path(path)) as archive:
            library = archive.extract(_library_name(index), folder)
            weights = _read_weights(archive, index) if with_weights else None
        try:
            with tvm_runtime.quiet():
                return tvm_runtime.load_module(library), weights
        except Exception as error:
            raise ArtifactError(
                f"the library does not load here: {str(error).strip().splitlines()[-1]}; compile the model again"
            ) from error


def _read_weights(archive: zipfile.ZipFile, index: int) -> np.ndarray:
    packed = _weights_name(index, packed=True)
    if packed in archive.namelist():
        return tvm_runtime.tensor(np.frombuffer(lzma.decompress(archive.read(packed)), np.uint8))[1]
    info = archive.getinfo(_weights_name(index, packed=False))
    weights = tvm_runtime.aligned_empty((info.file_size,), np.dtype(np.uint8))
    filled = 0
    with archive.open(info) as member:
        while part := member.read(_CHUNK):
            weights[filled : filled + len(part)] = np.frombuffer(part, np.uint8)
            filled += len(part)
    return weights


@contextlib.contextmanager
def _opened(source: Path) -> Iterator[zipfile.ZipFile]:
    """The archive; what goes wrong while it is read tells of a damaged file."""
    if not source.is_file():
        raise ArtifactError(f"{source}: no such file")
    try:
        with zipfile.ZipFile(source) as archive:
            yield archive
    except (
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        KeyError,
        ValueError,
        EOFError,
        OSError,
        RuntimeError,
    ) as error:
        raise ArtifactError(f"{source}: not a .qnn file, or a damaged one ({error})") from error


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
