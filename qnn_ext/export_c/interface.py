"""What the interface of a C library says of a model: identifiers, and the constants of its inputs and outputs."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ..errors import QnnError
from ..module import DIVISOR, Check, State, TensorSpec
from ..qparams import QParams

TYPES = {
    "bool": "uint8_t",
    "float16": "uint16_t",
    "bfloat16": "uint16_t",
    "float32": "float",
    "float64": "double",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
"""The C type of a dtype's elements; half precision has none, and is its bits."""

_KEYWORDS = """alignas alignof and asm async auto await bool break case catch char class const constexpr continue
decltype default delete do double else enum explicit export extern false float for friend goto if inline int long
mutable namespace new noexcept not nullptr operator or private protected public register restrict return short signed
sizeof static struct switch template this throw true try typedef typeid typename union unsigned using virtual void
volatile while xor"""
_WORDS = frozenset((*_KEYWORDS.split(), *map(str.lower, keyword.kwlist)))
"""What cannot be a name in C, C++ or Python."""


@dataclass(frozen=True)
class Port:
    """An input or an output. kind: "input" or "output"; field: of the struct; method: of C++'s class; macro: how its
    constants' names start."""

    spec: TensorSpec
    kind: str
    index: int
    field: str
    method: str
    macro: str

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def dtype(self) -> str:
        return self.spec.dtype

    @property
    def type(self) -> str:
        """The C type of an element."""
        return TYPES[self.spec.dtype]

    @property
    def text(self) -> str:
        """For a comment. What has "<=" is a size known only at run time, in the last output."""
        dims = ", ".join(map(str, self.spec.dims)).replace("≤", "<=")
        return f"{_in_comment(self.name)}, {self.dtype} [{dims}]"

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * itemsize(self.dtype)

    @property
    def scales(self) -> list[str]:
        """One, or those along `axis`, as C writes them; none if the values are not quantized."""
        return [] if self._qparams is None else [c_float(value) for value in np.ravel(self._qparams.scale)]

    @property
    def zero_points(self) -> list[int]:
        return [] if self._qparams is None else np.ravel(self._qparams.zero_point).tolist()

    @property
    def axis(self) -> int | None:
        return None if self._qparams is None else self._qparams.axis

    @property
    def python(self) -> str:
        """Name, shape, dtype and quantization as Python writes them."""
        dtype = "uint16" if self.dtype == "bfloat16" else self.dtype
        values: list[Any] = [self.name, self.shape, dtype]
        if self._qparams is not None:
            values += [self._qparams.scale.astype(np.float64).tolist(), self._qparams.zero_point.tolist(), self.axis]
        return ", ".join(map(repr, values))

    @property
    def _qparams(self) -> QParams | None:
        return self.spec.qparams


def ports_of(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], name: str) -> tuple[list[Port], list[Port]]:
    """The inputs and the outputs. Raises QnnError for a dtype that C has no type for."""
    found: dict[str, list[Port]] = {"input": [], "output": []}
    methods: list[str] = list(_METHODS)
    for kind, specs in (("input", inputs), ("output", outputs)):
        fields = fields_of([spec.name for spec in specs], kind, ())
        names = fields_of([spec.name for spec in specs], kind, methods)
        methods += names
        for index, (spec, field, method) in enumerate(zip(specs, fields, names, strict=True)):
            if spec.dtype not in TYPES:
                raise QnnError(f"{kind} {spec.name!r}: C has no type for {spec.dtype}")
            found[kind].append(Port(spec, kind, index, field, method, f"{name.upper()}_{kind.upper()}{index}"))
    return found["input"], found["output"]


_METHODS = ("run", "reset", "target", "model", "error", "memory", "allocate", "check", "release", "memory_")
"""What C++'s class has already."""


def fields_of(names: Iterable[str], kind: str, taken: Sequence[str]) -> list[str]:
    """A C identifier for each name, as similar as can be: all different, and none of those that are taken."""
    fields: list[str] = []
    for index, name in enumerate(names):
        stem = re.sub(r"\W+", "_", re.sub(r":0$", "", name), flags=re.ASCII).strip("_").lower()
        field = stem if stem and not stem[0].isdigit() and stem not in _WORDS else f"{kind}{index}"
        while field in fields or field in taken:
            field += "_"
        fields.append(field)
    return fields


def identifier(name: str) -> str:
    """A model's name as what the names of its C functions start with. Raises QnnError if none is left."""
    stem = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").lower()
    stem = re.sub(r"__+", "_", stem)
    if stem[:1].isdigit() or stem in _WORDS:
        stem = "model_" + stem
    if not stem:
        raise QnnError(f"{name!r} is no name for a C library: give one of letters, digits and _")
    return stem


def check_text(check: Check) -> str:
    """What it means that a check failed."""
    if check.kind == DIVISOR:
        return f"{check.label}: integer division by zero, for these inputs"
    return f"{check.label}: an index is out of range {check.low} ... {check.high}, for these inputs"


def state_bytes(state: State) -> int:
    return int(np.asarray(state.initial).nbytes)


def spec_bytes(spec: TensorSpec) -> int:
    """Bytes of a tensor."""
    return prod(spec.shape) * itemsize(spec.dtype)


def itemsize(dtype: str) -> int:
    """Bytes of an element."""
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def c_string(text: str) -> str:
    """A string literal: anything but plain characters as octal numbers, which end after three digits."""
    parts = []
    for byte in text.encode():
        char = chr(byte)
        plain = 32 <= byte < 127 and char not in '"\\?'
        parts.append(char if plain else f"\\{byte:03o}")
    return '"' + "".join(parts) + '"'


def c_float(value: Any) -> str:
    """A float literal of the same value: of type float for float32."""
    if np.asarray(value).dtype == np.float64:
        return repr(float(value))
    text = np.format_float_scientific(np.float32(value), unique=True, trim="0")
    return f"{text}f"


def _in_comment(text: str) -> str:
    """A name that cannot end a comment."""
    return "".join(c if c.isprintable() else "?" for c in text).replace("*/", "* /").replace("/*", "/ *").rstrip("\\")
