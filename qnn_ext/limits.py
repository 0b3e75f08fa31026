"""How much an import or a build may compute and keep: what would exhaust the machine is refused before it is allocated.

`from_tflite`, `from_onnx`, `from_pytorch`, `from_mxnet` and `build` enter `limited(limits)`; whatever runs within asks
the functions below, which know the limits of the work at hand. Outside of it the defaults hold.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from typing import Any

from .errors import LimitError, ModelFormatError, QnnError, UnsupportedOperatorError

_CONVERSIONS = 4  # how often a weight of the file may be converted (transposed, widened, packed) beyond the limits
MAX_RANK = 32  # of NumPy 1
_CONVERTED_BYTES = 4  # of an element of a converted weight


def _limit(default: float, unit: str, of: str, most: float = math.inf) -> Any:
    return field(default=default, metadata={"unit": unit, "of": of, "most": most})


@dataclass(frozen=True)
class Limits:
    """What one import, or one build, may take. A model beyond a limit raises LimitError, which names the limit and what
    is needed.

    The defaults are far above what published models need, and fixed, so that a file is accepted on every machine or on
    none. A server that takes files of strangers should lower `seconds` and `memory`.

    elements:    elements of one tensor at run time. Default 2³¹ − 1, the most that 32-bit indices address
    folded:      elements of one constant that the import computes, from an attribute or from other constants. Twice as
                 many as the file's own constants have together are allowed in any case. Default 2²⁴
    constants:   elements of all constants and states that the import makes, together; those of the file do not count.
                 Default 2²⁷: half a gigabyte of float32
    unrolled:    time steps of a recurrent layer and rounds of a loop, each of which becomes some twenty expressions.
                 Default 1024
    expressions: calls in the module. Default 100,000
    evaluations: operators of TorchScript that the import evaluates, those in a loop in every round. Default 1,000,000
    operands:    operands or results of one operator, and of the model; some passes compare them with each other.
                 Default 2048
    padding:     rows or columns that a window may reach beyond its image. Default 2¹⁶
    workspace:   bytes that the feature maps of a compiled model take at a time, checked by `build`. Default 16 GiB
    seconds:     wall-clock time of the import, reading the file included, and again of the build for each target.
                 Default 600
    memory:      bytes by which the process may grow while the operators are converted, and again while they are
                 compiled, the model's own weights and their conversions not counted. Default 4 GiB. Checked where the
                 operating system tells it (Linux)

    Raises QnnError for a limit that is no positive number, and for more elements than 32-bit indices address.
    """

    elements: int = _limit(2**31 - 1, "elements", "in one tensor", most=2**31 - 1)
    folded: int = _limit(2**24, "elements", "in one constant made at import", most=2**31 - 1)
    constants: int = _limit(2**27, "elements", "in all constants and states made at import")
    unrolled: int = _limit(1024, "steps", "to unroll")
    expressions: int = _limit(100_000, "expressions", "in one module")
    evaluations: int = _limit(1_000_000, "operators", "to evaluate")
    operands: int = _limit(2048, "operands or results", "of one operator")
    padding: int = _limit(2**16, "rows or columns", "of padding around an image", most=2**31 - 1)
    workspace: int = _limit(2**34, "bytes", "for the feature maps of a compiled model")
    seconds: float = _limit(600.0, "seconds", "for one import or build")
    memory: int = _limit(4 * 2**30, "bytes", "of memory for one import or build")

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            kinds = (int, float) if limit.name == "seconds" else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0:
                raise QnnError(f"limit {limit.name}: must be a positive number, found {value!r}")
            if value > limit.metadata["most"]:
                raise QnnError(f"limit {limit.name}: can be at most {limit.metadata['most']:,}, found {value:,}")


_META = {limit.name: limit.metadata for limit in fields(Limits)}


class _Work:
    """What one import or build has used so far."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.started = time.monotonic()
        self.begin_walk(0)

    def begin_walk(self, elements: int) -> None:
        self.constants = 0
        self.expressions = 0
        self.evaluations = 0
        self.own = elements
        self.resident = _resident()

    @property
    def exempt(self) -> int:
        """Elements of constants, and of memory, that do not count: conversions of the file's own constants."""
        return _CONVERSIONS * self.own


_current: ContextVar[_Work | None] = ContextVar("qnn_ext_work", default=None)
_given: ContextVar[Limits | None] = ContextVar("qnn_ext_limits", default=None)


@contextmanager
def limited(limits: Limits | None) -> Iterator[None]:
    """Within, these limits hold, and the clock runs. None: those that `using` gives, or the defaults. Raises QnnError
    when `limits` is something else."""
    _check_type(limits)
    token = _current.set(_Work(limits or _given.get() or Limits()))
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def using(limits: Limits | None) -> Iterator[None]:
    """Imports and builds within that are given no limits take these, each with a clock of its own; None changes
    nothing. Raises QnnError when `limits` is something else."""
    _check_type(limits)
    token = _given.set(limits or _given.get())
    try:
        yield
    finally:
        _given.reset(token)


def _check_type(limits: Limits | None) -> None:
    if limits is not None and not isinstance(limits, Limits):
        raise QnnError(f"limits must be a qnn_ext.Limits, found {type(limits).__name__}")


def current() -> Limits:
    """The limits of the import or build at hand."""
    state = _current.get()
    return state.limits if state else _given.get() or Limits()


def begin_walk(elements: int) -> None:
    """The file has been read, and its operators are converted or compiled now: what counts begins at zero.

    elements: of the model's own constants, which do not count
    """
    state = _current.get()
    if state is not None:
        state.begin_walk(elements)


def add_own(elements: int) -> None:
    """More of the file's own constants have come to light."""
    state = _current.get()
    if state is not None:
        state.own += elements


# ---- checks ------------------------------------------------------------------------------------------------------


def check(name: str, needed: float, what: str = "the model") -> None:
    """Raises LimitError when `what` needs more than the limit `name` allows."""
    limit = getattr(current(), name)
    if needed > limit:
        raise exceeded(name, needed, what)


def exceeded(name: str, needed: float, what: str = "the model") -> LimitError:
    """The error for a limit that is hit: what is needed, what is allowed, how to allow more."""
    limit, meta = getattr(current(), name), _META[name]
    problem = f"{what} takes {needed:,} {meta['unit']}, and the limit is {limit:,} {meta['of']}"
    if needed > meta["most"]:
        return LimitError(f"{problem}; more than {meta['most']:,} cannot be computed: the file is damaged")
    return LimitError(f"{problem}; if the model is trusted, raise it: {_how(name, needed)}")


def _how(name: str, value: float) -> str:
    """How a limit is set, in Python and on the command line."""
    return f"limits=Limits({name}={value}), or --limit {name}={value}"


def check_elements(
    shape: Sequence[int], what: str = "the result", name: str = "elements", exempt: int = 0
) -> tuple[int, ...]:
    """`shape` as a tuple. Raises ModelFormatError when a dimension is negative, LimitError when there are too many
    elements.

    name:   the limit that holds: "elements", or "folded" for constants that are made now
    exempt: elements that are allowed in any case
    """
    check_rank(len(shape), what)
    if any(dim < 0 for dim in shape):
        raise ModelFormatError(f"{what} would have shape {tuple(shape)}: the file is damaged")
    count = math.prod(shape)
    if count > exempt:
        check(name, count, f"{what} of shape {tuple(shape)}")
    return tuple(int(dim) for dim in shape)


def most_folded() -> int:
    """Elements that a constant may have which the import computes from others. What is computed from constants step by
    step would otherwise double with each."""
    state = _current.get()
    return max(current().folded, 2 * state.own if state else 0)


def check_rank(rank: int, what: str = "the result") -> None:
    """Raises UnsupportedOperatorError for more dimensions than arrays can have."""
    if rank > MAX_RANK:
        raise UnsupportedOperatorError(f"{what} has {rank} dimensions; up to {MAX_RANK} are supported")


def charge(shape: Sequence[int], what: str = "the model") -> None:
    """Count a constant or state that the import makes. Raises LimitError when all together are too many."""
    count = math.prod(check_elements(shape, what))
    state = _current.get()
    if state is None:
        return
    state.constants += count
    check("constants", state.constants - state.exempt, what)


def count_expression() -> None:
    """Count a call in the module, and look at the clock. Raises LimitError."""
    _count("expressions", "the model")


def count_evaluation() -> None:
    """Count an operator that is evaluated at import, and look at the clock. Raises LimitError."""
    _count("evaluations", "the import")


def _count(name: str, what: str) -> None:
    """One more of what a limit counts, under whose name the work at hand keeps it."""
    state = _current.get()
    if state is None:
        return
    count = getattr(state, name) + 1
    setattr(state, name, count)
    if count > getattr(state.limits, name):
        raise over(name, what)
    checkpoint()


def checkpoint() -> None:
    """Raises LimitError when the import or build has taken too long or too much memory. To be called between small
    steps."""
    state = _current.get()
    if state is None:
        return
    if time.monotonic() - state.started > state.limits.seconds:
        raise over("seconds", "the work on the model")
    check("memory", _resident() - state.resident - _CONVERTED_BYTES * state.exempt, "the work on the model")


def over(name: str, what: str) -> LimitError:
    """The error for a limit that is hit when it is not known how much would be needed."""
    limit = getattr(current(), name)
    text = f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"
    return LimitError(
        f"{what} takes over {text} {_META[name]['unit']}; if the model is trusted, allow more: {_how(name, 10 * limit)}"
    )


def _resident() -> int:
    """Bytes of this process in memory; 0 where the operating system does not tell in this way."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
