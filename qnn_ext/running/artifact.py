"""The `.qnn` file: a JSON description, initial states and, for each CPU it was compiled for, a library and its weights.
A model that was built for several shapes has a library for each of them, and one array of weights.

It is written whole or not at all, and only what this CPU needs is unpacked, see `container`; the whole description is
checked before anything relies on it, see `description`. A `.qnn` file holds machine code: load only files you trust, as
with any shared library, or verify who signed them.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import ArtifactError, TargetError
from ..files.container import Reader, Writer, parse_json
from ..files.reading import open_file
from ..lazily import np
from ..targets.families import backend_described
from .description import OTHERS, check, check_kernels, inputs_of, stored_bytes
from .kernels import Kernel, UnreadKernels
from .model import Layout, Model, Variant, begins_with_zeros

if TYPE_CHECKING:
    import tvm_ffi

    from ..files.signing import PrivateKey, PublicKey

_DESCRIPTION, _STATES = "qnn.json", "states.bin"
_SMALL = 1 << 20  # bytes up to which compression favours size over speed
_MOST_DESCRIPTION = 1 << 24  # bytes


@dataclass
class Compiled:
    """The code of a model for one target.

    weights:    constants stored outside the code; None if the code holds them all
    executable: what the library is linked from
    lowered:    the tvm.IRModule that the executable was made from
    library:    the library, if it has been linked
    again:      compiles the same code, for what a cache does not keep: executable and lowered
    module:     the code in this process, once an engine has run it
    """

    variant: Variant
    weights: np.ndarray | None
    executable: Any = None
    lowered: Any = None
    library: bytes | None = None
    again: Callable[[], Compiled] | None = None
    module: tvm_ffi.Module | None = None

    def _linkable(self) -> Any:
        """The executable. Raises ArtifactError if the build left it out."""
        executable = self.recalled().executable
        if executable is None:
            raise ArtifactError("this engine was built without machine code (code=False), only to be exported")
        return executable

    def recalled(self) -> Compiled:
        """This, with executable and lowered module, which are compiled again if it is from a cache."""
        if self.again is not None:
            origin = self.again()
            self.executable, self.lowered, self.again = origin.executable, origin.lowered, None
        return self

    def linked(self) -> bytes:
        """The library. Raises ArtifactError if there is no linker for it."""
        if self.library is not None:
            return self.library
        from ..targets.linking import export_library  # never needed to load

        with tempfile.TemporaryDirectory(prefix="qnn-ext-") as folder:
            library = Path(folder) / "model.so"
            code = export_library(self._linkable(), str(library), self.variant.architecture)
            if self.variant.program is not None:
                self.variant = replace(self.variant, code=code)
            return library.read_bytes()

    def code(self) -> tuple[tvm_ffi.Module, np.ndarray | None]:
        """What an engine and its clones run: the library if it is linked and can be loaded, otherwise code made in
        memory."""
        if self.module is None and self.library is not None:
            with contextlib.suppress(ArtifactError), _scratch() as folder:
                path = folder / _library_name(0)
                path.write_bytes(self.library)
                self.module = _loaded(path, self.variant.program)
        if self.module is None:
            self.module = self._linkable().jit()
        return self.module, self.weights


# ---- write -------------------------------------------------------------------------------------------------------

Part: TypeAlias = "tuple[Model, Sequence[Compiled]]"
"""A model for some shapes, and its code for each target: fastest first, since `load` takes the first that the CPU can
run. The parts of a file have the same targets, states and weights."""


def write(path: str | os.PathLike, parts: Sequence[Part], sign: PrivateKey | None = None) -> None:
    """Write a `.qnn` file, whole or not at all.

    sign: the private key to sign it with, see `signing`

    Raises ArtifactError when the file cannot be written, the key cannot be used, or no compiler is found to link for
    one of the CPUs.
    """
    from ..files.storage import replacing  # never needed to load

    kernels = _kernels_of(parts)  # before linking
    libraries = _linked(parts)
    description = _description(parts)  # before there is a file
    signer = None
    if sign is not None:
        from ..files.signing import signer as signer_with

        signer = signer_with(sign)
    with replacing(path, ArtifactError) as file, Writer(file) as writer:
        _fill(writer, description, kernels, parts, libraries)
        writer.finish(signer)


def to_bytes(parts: Sequence[Part]) -> bytes:
    """The content of a `.qnn` file, without packing. The libraries for CPUs are kept: an engine that has run none yet
    runs these, and machine code is generated only once. Raises ArtifactError as `write` does."""
    libraries = _linked(parts)
    for (_, variants), linked in zip(parts, libraries, strict=True):
        for compiled, library in zip(variants, linked, strict=True):
            if not backend_described(compiled.variant.target).grid:
                compiled.library = library
    content = io.BytesIO()
    with Writer(content, packs=False) as writer:
        _fill(writer, _description(parts), _kernels_of(parts), parts, libraries)
        writer.finish(None)
    return content.getvalue()


def _linked(parts: Sequence[Part]) -> list[list[bytes]]:
    return [[compiled.linked() for compiled in variants] for _, variants in parts]


def _fill(
    writer: Writer,
    description: bytes,
    kernels: Sequence[Sequence[bytes]],
    parts: Sequence[Part],
    libraries: Sequence[Sequence[bytes]],
) -> None:
    """Write all members."""
    model, variants = parts[0]
    writer.add_small(_DESCRIPTION, description)
    writer.add_large(_STATES, _states_of(model))
    for index, compiled in enumerate(variants):
        for number, (listed, linked) in enumerate(zip(kernels, libraries, strict=True)):
            _add(writer, _kernels_name(index, number), listed[index])
            _add(writer, _library_name(index, number), linked[index])
        if backend_described(compiled.variant.target).grid:
            _add_kernels(writer, index, compiled)
        if compiled.weights is not None:
            _add(writer, _weights_name(index), compiled.weights.data, of_words=True)


def from_bytes(content: bytes | memoryview) -> list[tuple[Model, Compiled]]:
    """The inverse of `to_bytes` for a single variant of each part. Raises ArtifactError."""
    file = Artifact(Reader(io.BytesIO(content)))
    return [(model, compiled) for (model, _), compiled in zip(file.parts, file.compiled(0), strict=True)]


def _states_of(model: Model) -> bytes:
    stored = [state.initial for state in model.states if not begins_with_zeros(state)]
    return b"".join(np.ascontiguousarray(initial).tobytes() for initial in stored)


def _described(parts: Sequence[Part]) -> dict[str, Any]:
    first, *others = (
        {**model.to_json(), "variants": [compiled.variant.to_json() for compiled in variants]}
        for model, variants in parts
    )
    return {**first, "others": [{key: other[key] for key in OTHERS} for other in others]} if others else first


def _description(parts: Sequence[Part]) -> bytes:
    """Of all but the kernels, checked."""
    description = _described(parts)
    check(description)
    return _json(description)


def _kernels_of(parts: Sequence[Part]) -> list[list[bytes]]:
    """The kernels of each part and variant, checked after what they belong to."""
    description = _described(parts)
    check(description)
    found = []
    for described, (_, variants) in zip((description, *description.get("others", [])), parts, strict=True):
        inputs = inputs_of({**description, **described})
        listed = [compiled.variant.kernels_to_json() for compiled in variants]
        for kernels, variant in zip(listed, described["variants"], strict=True):
            check_kernels(kernels, inputs, variant["program"], "kernels")
        found.append([_json(kernels) for kernels in listed])
    return found


def _json(description: Any) -> bytes:
    content = json.dumps(description, indent=1).encode()
    if len(content) > _MOST_DESCRIPTION:
        raise ArtifactError(
            f"the model's description takes {len(content)} bytes, more than the limit of {_MOST_DESCRIPTION}"
        )
    return content


def _add(writer: Writer, name: str, content: bytes | memoryview, of_words: bool = False) -> None:
    if len(content) <= _SMALL:
        writer.add_small(name, bytes(content), of_words)
    else:
        writer.add_large(name, content)


def _library_name(index: int, number: int = 0) -> str:
    return f"model{index}.{number}.so" if number else f"model{index}.so"


def _kernels_name(index: int, number: int = 0) -> str:
    return f"kernels{index}.{number}.json" if number else f"kernels{index}.json"


def _weights_name(index: int) -> str:
    return f"weights{index}.bin"


def _add_kernels(writer: Writer, index: int, compiled: Compiled) -> None:
    """Add a GPU's kernels as a binary, under the digest of the source that the library holds. Without nvcc and NVRTC
    here, the machine that loads the model compiles that source."""
    from ..targets import cuda_compiler

    source = cuda_compiler.source_of(compiled.executable.mod)
    if not source:  # a model that only reshapes
        return
    try:
        binary = cuda_compiler.binary(source, compiled.variant.target["arch"])
    except TargetError as error:
        warnings.warn(
            f"the file will hold its GPU kernels as source only, to be compiled where it is loaded: {error}",
            stacklevel=5,
        )
        return
    writer.add_large(f"{_kernels_prefix(index)}{cuda_compiler.digest(source)}", binary)


def _kernels_prefix(index: int) -> str:
    return f"kernels{index}-"


# ---- read --------------------------------------------------------------------------------------------------------


class Artifact:
    """An open `.qnn` file, its description checked. Methods raise ArtifactError, without the file's name."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.is_signed, self.manifest = reader.is_signed, reader.manifest
        self.description: dict[str, Any] = parse_json(reader.read(_DESCRIPTION, _MOST_DESCRIPTION), _DESCRIPTION)
        try:
            check(self.description)
        except ArtifactError as error:
            raise ArtifactError(f"the description is damaged: {error}") from None
        self._check_members()

    @property
    def _others(self) -> list[dict[str, Any]]:
        """The descriptions for other shapes."""
        return self.description.get("others", [])  # type: ignore[no-any-return]

    def _check_members(self) -> None:
        """Check that no member is missing or unknown, and that each has the size that the description gives."""
        sizes = {_DESCRIPTION: None, _STATES: sum(map(stored_bytes, self.description["states"]))}
        for index, variant in enumerate(self.description["variants"]):
            for number, described in enumerate((self.description, *self._others)):
                sizes[_library_name(index, number)] = None
                if "kernels" not in described["variants"][index]:
                    sizes[_kernels_name(index, number)] = None
            if variant["program"] is not None:
                sizes[_weights_name(index)] = variant["program"]["weights"]
        binaries = {name for name in self._reader.names() if self._is_binary(name)}
        found = set(self._reader.names()) - binaries
        if found != set(sizes):
            name = min(found ^ set(sizes))
            raise ArtifactError(f"damaged: {name} is {'unknown' if name in found else 'missing'}")
        for name, size in sizes.items():
            if size is not None and self._reader.size(name) != size:
                raise ArtifactError(f"damaged: {name} has {self._reader.size(name)} bytes, not {size}")

    def _is_binary(self, name: str) -> bool:
        match = re.fullmatch(r"kernels(\d{1,3})-[0-9a-f]{64}", name)
        return match is not None and int(match[1]) < len(self.description["variants"])

    @cached_property
    def variants(self) -> list[Variant]:
        """All that the file holds, the fastest first. NumPy is not needed for them."""
        return self._variants(0)

    def model(self) -> Model:
        """What is the same on every target, with the initial values of the states."""
        return Model.from_json(self.description, self._states())

    @cached_property
    def parts(self) -> list[tuple[Model, list[Variant]]]:
        """The model and all that the file holds, the fastest first, and the same for other shapes."""
        found = [(self.model(), self.variants)]
        for number, other in enumerate(self._others, 1):
            model = Model.from_json({**self.description, **other}, [state.initial for state in found[0][0].states])
            found.append((model, self._variants(number)))
        return found

    def _variants(self, number: int) -> list[Variant]:
        """Those of part `number`."""
        described = {**self.description, **([{}, *self._others][number])}
        return [
            Variant.from_json(variant, self._kernels(index, number, variant, inputs_of(described)))
            for index, variant in enumerate(described["variants"])
        ]

    def _kernels(self, index: int, number: int, variant: dict[str, Any], inputs: int) -> Sequence[Kernel]:
        if "kernels" in variant:
            return [Kernel(**kernel) for kernel in variant["kernels"]]
        name, program = _kernels_name(index, number), variant["program"]
        content = self._reader.unread(name, _MOST_DESCRIPTION)

        def read() -> list[dict[str, Any]]:
            kernels = parse_json(content(), name)
            try:
                check_kernels(kernels, inputs, program, "kernels")
            except ArtifactError as error:
                raise ArtifactError(f"{name} is damaged: {error}") from None
            return kernels  # type: ignore[no-any-return]

        return UnreadKernels(read)

    def _states(self) -> list[np.ndarray]:
        content = self._reader.read(_STATES)
        arrays, start = [], 0
        for state in self.description["states"]:
            end = start + stored_bytes(state)
            if end > start:
                values = np.frombuffer(content[start:end], state["dtype"]).reshape(state["shape"])
            else:
                values = np.zeros(state["shape"], state["dtype"])  # of which no page is in memory
            arrays.append(values)
            start = end
        return arrays

    def keep_kernels(self, index: int) -> None:
        """Have the binary of variant `index`'s kernels used instead of their source, if the file holds one."""
        prefix = _kernels_prefix(index)
        for name in self._reader.names():
            if name.startswith(prefix):
                from ..targets import cuda_compiler  # files for CPUs hold no such member

                cuda_compiler.keep(name.removeprefix(prefix), self._reader.read(name))

    def code(self, index: int) -> list[tuple[tvm_ffi.Module, np.ndarray | None]]:
        """The libraries of variant `index`, one for each part, and its weights if they are stored outside the code. The
        libraries are mapped from temporary files, unlinked at once where the system allows; nothing is ever in memory
        twice."""
        programs = [variants[index].program for _, variants in self.parts]
        weights = None if programs[0] is None else self._weights(index)
        return [(self._library(_library_name(index, number), one), weights) for number, one in enumerate(programs)]

    def _library(self, name: str, program: Layout | None) -> tvm_ffi.Module:
        with _scratch() as folder:
            library = folder / name
            with open(library, "wb") as file:
                for piece in self._reader.pieces(name):
                    file.write(piece)
            return _loaded(library, program)

    def compiled(self, index: int) -> list[Compiled]:
        """Variant `index` of each part, all of it in memory and nothing loaded."""
        variants = [variants[index] for _, variants in self.parts]
        weights = None if variants[0].program is None else self._weights(index)
        return [
            Compiled(variant, weights, library=self._reader.read(_library_name(index, number)))
            for number, variant in enumerate(variants)
        ]

    def _weights(self, index: int) -> np.ndarray:
        from .. import tvm_runtime  # only for what runs a model, not for what describes one

        name = _weights_name(index)
        mapped = self._reader.mapped(name)
        if mapped is not None:
            return np.frombuffer(mapped, np.uint8)
        try:
            weights = tvm_runtime.aligned_empty((self._reader.size(name),), np.dtype(np.uint8))
        except MemoryError:
            raise ArtifactError(
                f"its weights take {self._reader.size(name)} bytes, which is more memory than is free here"
            ) from None
        filled = 0
        for piece in self._reader.pieces(name):
            weights[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
            filled += len(piece)
        return weights


@contextlib.contextmanager
def opened(path: str | os.PathLike, verify: PublicKey | None = None) -> Iterator[Artifact]:
    """A `.qnn` file to read; errors about it that are raised inside the context get its name.

    verify: the public key that its signature must match, see `signing`; the whole file is then checked at once

    Raises ArtifactError.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ArtifactError(f"a compiled model is read from the path of its file, found {type(path).__name__}")
    source = Path(path)
    verifier = None
    if verify is not None:
        from ..files.signing import verifier as verifier_with

        verifier = verifier_with(verify)
    file = open_file(source, ArtifactError)
    try:
        with file:
            yield Artifact(Reader(file, verifier))
    except ArtifactError as error:
        raise ArtifactError(f"{source}: {error}") from error.__cause__
    except OSError as error:
        raise ArtifactError(f"{source}: cannot be read: {error.strerror or error}") from error


def content_of(path: Path, manifest: bytes) -> bytes:
    """The content of a `.qnn` file that was opened before and had this manifest then, which covers all of it. Raises
    ArtifactError unless it has that manifest still."""
    try:
        content = path.read_bytes()
        changed = Reader(io.BytesIO(content)).manifest != manifest
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read again: {error.strerror or error}") from error
    except ArtifactError:
        changed = True
    if changed:
        raise ArtifactError(f"{path}: was changed since the engine was loaded: load it again")
    return content


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A temporary folder for a library."""
    try:
        with tempfile.TemporaryDirectory(prefix="qnn-ext-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    except OSError as error:
        raise ArtifactError(f"its library cannot be unpacked: {error}") from error


def _loaded(library: Path, program: Layout | None) -> tvm_ffi.Module:
    """The library of a model that is one function, with this layout, or that the virtual machine runs."""
    from .. import tvm_runtime

    function = "vm_load_executable" if program is None else "program_memory"
    try:
        with tvm_runtime.quiet():
            module = tvm_runtime.load_module(library)
        module[function]
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()[-1:]), type(error).__name__)
        raise ArtifactError(f"the library cannot be loaded here: {reason}; compile the model again") from error
    if program is not None:
        _check_sizes(module, program)
    return module


def _check_sizes(module: tvm_ffi.Module, program: Layout) -> None:
    """Raise ArtifactError unless the code was made for as much memory as the description says it gets."""
    wanted = np.zeros(2, np.int64)
    module["program_memory"](ctypes.c_void_p(wanted.ctypes.data))
    for name, needed, size in zip(
        ("workspace", "weights"), wanted.tolist(), (program.workspace, program.weights), strict=True
    ):
        if needed != size:
            raise ArtifactError(
                f"the description does not match the code, which needs {needed} bytes of {name}, not {size}; "
                "compile the model again"
            )
