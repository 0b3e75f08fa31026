"""A model's code and weights for each target of a C library, and where its tensors are."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from tvm.target import Target

from ..compiling.program import NotStraightError
from ..compiling.program.plain import PlainProgram, compile_plain
from ..compiling.program.storage import ALIGNMENT, aligned
from ..compiling.watch import timed
from ..errors import QnnError, TargetError
from ..running.model import Model, Variant, target_name
from ..targets.elf import Object
from ..targets.families import backend_of_architecture
from ..targets.frames import CodeSize, code_size
from ..targets.instruction_sets import X86_64_BITS, X86_64_KEPT
from ..targets.microcontrollers import compiler_options
from .interface import spec_bytes, state_bytes

FORMAT = 1
"""The version of a C library's interface, of its file of weights and of its manifest."""

HEAD = 64
"""Bytes before the weights in a file: kind, format, bytes of all, checksum; the rest is zero."""


@dataclass(frozen=True)
class Place:
    """Where a tensor is: among the weights, or in the workspace."""

    in_weights: int
    offset: int

    @property
    def place(self) -> str:
        return f"{{{self.in_weights}, {self.offset}}}"


@dataclass(frozen=True)
class Compiled:
    """A model compiled for one target, for the library called `name`."""

    variant: Variant
    model: Model
    program: PlainProgram
    name: str
    prefix: str

    @property
    def target(self) -> str:
        return target_name(self.variant.target)

    @cached_property
    def object(self) -> Object:
        """The object file with the code."""
        return Object(self.program.code)

    @cached_property
    def size(self) -> CodeSize:
        """What the code takes; kernels by the names of their layers."""
        layers = {kernel.symbol: kernel.layer for kernel in self.variant.kernels}

        def layer(function: str) -> str:
            name = re.sub(r"(_part\d+)?(_compute_)?(\.\d+)?$", "", function)
            return layers.get(name, function)

        size = code_size([self.object], [f"{self.prefix}_run"])
        *callers, kernel = (*size.chain,) if len(size.chain) > 1 else (*size.chain, "")
        chain = (*callers, *([layer(kernel)] if kernel else []))
        return replace(size, kernel=layer(size.kernel), chain=(f"{self.name}_run", *chain))

    @property
    def workspace(self) -> int:
        return self.program.layout.workspace

    @property
    def shared(self) -> bool:
        return self.program.shared

    @property
    def tasks(self) -> int:
        return self.program.layout.tasks

    @cached_property
    def data(self) -> bytes:
        """The weights, then the states' first values."""
        parts = [self.program.weights.tobytes()]
        parts += [np.ascontiguousarray(state.initial).tobytes() for state in self.model.states]
        return b"".join(part + bytes(aligned(len(part)) - len(part)) for part in parts)

    @property
    def initial(self) -> int:
        """Where the states' first values are in `data`."""
        return aligned(self.program.weights.size)

    # ---- where tensors are ---------------------------------------------------------------------------------------

    @property
    def inputs(self) -> list[int]:
        return list(self.program.layout.inputs[: len(self.model.inputs)])

    @property
    def before(self) -> list[int]:
        """The states before a call."""
        return list(self.program.layout.inputs[len(self.model.inputs) :])

    @property
    def outputs(self) -> list[Place]:
        return self._given[: len(self.model.results)]

    @property
    def after(self) -> list[Place]:
        """The states after a call."""
        return self._given[len(self.model.results) :][: len(self.model.states)]

    @property
    def status(self) -> Place:
        """Which check failed."""
        return self._given[-1]

    @property
    def _given(self) -> list[Place]:
        return [Place(*pair) for pair in self.program.layout.outputs]

    @property
    def states_cross(self) -> bool:
        """Whether a state's new value may be where another one's is to be written."""
        sizes = [state_bytes(state) for state in self.model.states]
        written = [(place, place + size) for place, size in zip(self.before, sizes, strict=True)]
        read = [(p.offset, p.offset + size) for p, size in zip(self.after, sizes, strict=True)]
        return any(
            not place.in_weights and a < d and c < b
            for i, (place, (a, b)) in enumerate(zip(self.after, read, strict=True))
            for j, (c, d) in enumerate(written)
            if i != j or a != c
        )

    @property
    def overwritten(self) -> set[int]:
        """The outputs that are where new values of states are to be written, such as a state's old value."""
        sizes = [state_bytes(state) for state in self.model.states]
        states = zip(self.before, self.after, sizes, strict=True)
        written = [(a, a + size) for a, new, size in states if new != Place(0, a)]
        return {
            index
            for index, (place, spec) in enumerate(zip(self.outputs, self.model.results, strict=True))
            if not place.in_weights
            and any(place.offset < end and start < place.offset + spec_bytes(spec) for start, end in written)
        }

    # ---- what the CPU must have ----------------------------------------------------------------------------------

    @property
    def features(self) -> list[tuple[int, int, int, int, str]]:
        """cpuid's bits of the instruction sets that the code may use, on x86-64."""
        if self.variant.architecture != "x86_64":
            return []
        return [(*X86_64_BITS[name], name) for name in self.variant.features]

    @property
    def kept(self) -> int:
        """Which parts of registers the system must keep: bits of XCR0."""
        parts = 0
        for name, bits in X86_64_KEPT.items():
            parts |= bits if any(feature.startswith(name) for feature in self.variant.features) else 0
        return parts

    @property
    def bits(self) -> tuple[int, int]:
        """AT_HWCAP and AT_HWCAP2, on ARM."""
        backend = backend_of_architecture(self.variant.architecture)
        found = 0
        for feature in self.variant.features:
            flag = backend.instruction_sets[feature]
            if flag in backend.hardware_bits and feature not in backend.needs:
                found |= 1 << backend.hardware_bits[flag]
        return found & (2**64 - 1), found >> 64


@dataclass(frozen=True)
class Library:
    """All targets of a C library, fastest first."""

    name: str
    model: Model
    compiled: tuple[Compiled, ...]

    @property
    def architecture(self) -> str:
        return self.compiled[0].variant.architecture

    @property
    def blobs(self) -> list[bytes]:
        """The data of all targets, each once."""
        return list(dict.fromkeys(one.data for one in self.compiled))

    def blob_of(self, one: Compiled) -> int:
        return self.blobs.index(one.data)

    @property
    def offsets(self) -> list[int]:
        """Where each of `blobs` is in a file of weights."""
        sizes = [HEAD, *map(len, self.blobs)]
        return np.cumsum(sizes)[:-1].tolist()

    @property
    def shared(self) -> bool:
        return any(one.shared for one in self.compiled)

    @property
    def tasks(self) -> int:
        return max(one.tasks for one in self.compiled)

    @property
    def spare(self) -> int:
        """Where in the workspace the states wait while they are exchanged; 0 if they need not."""
        return max(one.workspace for one in self.compiled) if any(one.states_cross for one in self.compiled) else 0

    @property
    def aside(self) -> list[int]:
        """Where in the workspace each output stays that new values of states would overwrite, 0 for the others; then
        where the workspace ends."""
        overwritten = set().union(*(one.overwritten for one in self.compiled))
        places, end = [], self._end_of_states
        for index, spec in enumerate(self.model.results):
            places.append(end if index in overwritten else 0)
            end += aligned(spec_bytes(spec)) if index in overwritten else 0
        return [*places, end]

    @property
    def workspace(self) -> int:
        """Bytes of the workspace, for any of the targets."""
        return self.aside[-1]

    @property
    def _end_of_states(self) -> int:
        largest = max(one.workspace for one in self.compiled)
        return aligned(largest + sum(map(state_bytes, self.model.states))) if self.spare else largest

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the model's description, its code and its data."""
        digest = hashlib.sha256(json.dumps(self.model.to_json(), sort_keys=True).encode())
        for one in self.compiled:
            digest.update(one.program.code)
        for blob in self.blobs:
            digest.update(blob)
        return digest.hexdigest()

    @property
    def options(self) -> list[str]:
        """What C compilers must be told for its target: the core, or on systems that share libraries to allow that."""
        backend = backend_of_architecture(self.architecture)
        return ["-fPIC"] if backend.concurrent else compiler_options(self.compiled[0].variant.target)

    @property
    def needs_libm(self) -> bool:
        """Whether the code calls functions of C's mathematical library."""
        return any(name in _LIBM for one in self.compiled for name in one.object.undefined)

    def summary(self) -> dict[str, Any]:
        """What the library is, as JSON values."""
        return {
            "format": FORMAT,
            "checksum": self.checksum,
            "workspace": self.workspace,
            "alignment": ALIGNMENT,
            "needs_libm": self.needs_libm,
            "variants": [
                {
                    "target": one.variant.target,
                    "architecture": one.variant.architecture,
                    "features": one.variant.features,
                    "memory": {"weights": len(one.data), "feature_maps": one.workspace},
                    "code": asdict(one.size),
                }
                for one in self.compiled
            ],
        }

    @property
    def file_head(self) -> bytes:
        """The start of the file of weights."""
        size = HEAD + sum(map(len, self.blobs))
        head = struct.pack("<4sIQ32s", b"QNNW", FORMAT, size, bytes.fromhex(self.checksum))
        return head + bytes(HEAD - len(head))

    @property
    def dispatch(self) -> str:
        """How the code finds out what the CPU can run; empty if there is nothing to find out."""
        if any(one.features for one in self.compiled):
            return "x86_64"
        return "hwcap" if any(any(one.bits) for one in self.compiled) else ""


def library_of(model: Model, lowered: Sequence[tuple[Variant, Any]], name: str, threads: int, launch: str) -> Library:
    """Compile a model for each of its variants, from their lowered modules. Raises TargetError for what cannot be a C
    library."""
    architectures = sorted({variant.architecture for variant, _ in lowered})
    if len(architectures) > 1:
        raise TargetError(
            f"a C library is for one architecture, and these targets are of {' and '.join(architectures)}: export one "
            "folder for each"
        )
    compiled: list[Compiled] = []
    for variant, module in lowered:
        _check(variant)
        prefix = f"{name}_{_suffix(target_name(variant.target))}"
        while prefix in (one.prefix for one in compiled):
            prefix += "_"
        target = Target(variant.target)
        try:
            lent = len(model.inputs) if backend_of_architecture(variant.architecture).tight else 0
            states = len(model.states)
            program = timed(
                "machine code",
                lambda: compile_plain(module, target, prefix, launch, threads, lent, states),  # noqa: B023
            )
        except NotStraightError as error:
            raise TargetError(_not_one_function(str(error))) from None
        compiled.append(Compiled(variant, model, program, name, prefix))
        _check_needs(compiled[-1], launch)
    return Library(name, model, tuple(compiled))


def _check(variant: Variant) -> None:
    """Raise TargetError for a target that no C library can be for, or a model that cannot be one function."""
    if variant.target.get("kind", "llvm") != "llvm":
        raise TargetError(f"a C library is for CPUs, not for {target_name(variant.target)}")
    triple = str(variant.target.get("mtriple", ""))
    if any(system in triple for system in ("windows", "darwin", "apple", "macos")):
        raise TargetError(f"a C library holds ELF objects, as Linux and bare machines have, not those of {triple}")
    if variant.fallback:
        raise TargetError(_not_one_function(variant.fallback))


_FUNCTIONS = """trunc floor ceil round roundeven rint nearbyint lrint lround fma fmin fmax fmod exp exp2 log log2 log10
pow sin cos tan tanh sinh cosh asin acos atan atan2 erf sqrt expm1 log1p"""
_LIBM = frozenset(name + suffix for name in _FUNCTIONS.split() for suffix in ("", "f"))
_LIBC = frozenset(("memcpy", "memset", "memmove"))


def _check_needs(one: Compiled, launch: str) -> None:
    """Raise QnnError for code that needs more than C's memory and mathematical functions and those of compilers."""
    strange = [
        name
        for name in one.object.undefined
        if name not in (*_LIBM, *_LIBC, launch) and (not name.startswith("__") or name.startswith("__tvm"))
    ]
    if strange or one.object.has_variables:
        what = f"calls {', '.join(strange)}" if strange else "has variables"
        raise QnnError(f"the code for {one.target} {what}, which a C library must not: please report this model")


def _not_one_function(reason: str) -> str:
    return f"the model cannot be one C function: {reason}. Save it as a .qnn file, which TVM's virtual machine runs"


def _suffix(target: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in target)


__all__ = ["ALIGNMENT", "FORMAT", "HEAD", "Compiled", "Library", "Place", "library_of"]
