"""Limits for imports and builds: what would exhaust the machine is rejected before it is allocated.

`from_tflite`, `from_onnx`, `from_pytorch`, `from_mxnet` and `build` enter `limited(limits)`; code that runs within
calls the functions below, which use the limits of the current import or build. Outside of one, the defaults apply.
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

_CONVERSIONS = 4  # conversions of each of the file's weights (transposing, widening, packing) that do not count
MAX_RANK = 32  # of NumPy 1
_CONVERTED_BYTES = 4  # per element of a converted weight


def _limit(default: float, unit: str, of: str, most: float = math.inf) -> Any:
    return field(default=default, metadata={"unit": unit, "of": of, "most": most})


@dataclass(frozen=True)
class Limits:
    """What one import, or one build, may use. A model that exceeds a limit raises LimitError, which names the limit and
    how much is needed.

    The defaults are far above what published models need, and fixed, so that a file is accepted on every machine or on
    none. A server that accepts files from strangers should lower `seconds` and `memory`.

    elements:    elements of one tensor at run time. Default 2³¹ − 1, the most that 32-bit indices address
    folded:      elements of one constant that the import computes, from an attribute or from other constants. Twice the
                 total size of the file's own constants is always allowed. Default 2²⁴
    constants:   elements of all constants and states that the import creates, together; those of the file do not count.
                 Default 2²⁷: half a gigabyte of float32
    unrolled:    iterations of a loop that is written out: of those in TorchScript, over uneven windows of its adaptive
                 pooling, and of any loop for a GPU, or beside an operator that only TVM's virtual machine runs.
                 Default 1024
    expressions: calls in the module. Default 100,000
    evaluations: TorchScript operators that the import evaluates, those in a loop once per iteration, and TFLite's
                 subgraphs, once for each use. Default 1,000,000
    operands:    operands or results of one operator, and of the model; some passes compare them pairwise. Default 2048
    padding:     rows or columns by which a window may extend beyond its image. Default 2¹⁶
    workspace:   peak bytes of a compiled model's feature maps, checked by `build`. Default 16 GiB
    seconds:     wall-clock time of the import, including reading the file, and separately of the build for each target.
                 Default 600
    memory:      bytes by which the process may grow while the operators are converted, and separately while they are
                 compiled, not counting the model's own weights and their conversions. Default 4 GiB. Checked only where
                 the operating system reports it (Linux)

    Raises QnnError for a limit that is not a positive number, and for more elements than 32-bit indices address.
    """

    elements: int = _limit(2**31 - 1, "elements", "in one tensor", most=2**31 - 1)
    folded: int = _limit(2**24, "elements", "in one constant created at import", most=2**31 - 1)
    constants: int = _limit(2**27, "elements", "in all constants and states created at import")
    unrolled: int = _limit(1024, "steps", "in one unrolled loop")
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
        """Elements, of constants and of memory, that do not count: conversions of the file's own constants."""
        return _CONVERSIONS * self.own


_current: ContextVar[_Work | None] = ContextVar("qnn_ext_work", default=None)
_given: ContextVar[Limits | None] = ContextVar("qnn_ext_limits", default=None)


@contextmanager
def limited(limits: Limits | None) -> Iterator[None]:
    """A context in which these limits apply and the clock runs. None: those from `using`, or the defaults. Raises
    QnnError if `limits` is anything else."""
    from .tvm_runtime import set_up  # only here: options are read without it

    _check_type(limits)
    set_up()
    token = _current.set(_Work(limits or _given.get() or Limits()))
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def using(limits: Limits | None) -> Iterator[None]:
    """A context in which imports and builds without limits of their own use these, each with its own clock; None
    changes nothing. Raises QnnError if `limits` is anything else."""
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
    """The limits of the current import or build."""
    state = _current.get()
    return state.limits if state else _given.get() or Limits()


def begin_walk(elements: int) -> None:
    """Called when the file has been read and its operators are about to be converted or compiled: resets the counts.

    elements: those of the model's own constants, which do not count
    """
    state = _current.get()
    if state is not None:
        state.begin_walk(elements)


def add_own(elements: int) -> None:
    """Add elements of the file's own constants that were not known before."""
    state = _current.get()
    if state is not None:
        state.own += elements


# ---- checks ------------------------------------------------------------------------------------------------------


def check(name: str, needed: float, what: str = "the model") -> None:
    """Raises LimitError if `what` needs more than the limit `name` allows."""
    limit = getattr(current(), name)
    if needed > limit:
        raise exceeded(name, needed, what)


def exceeded(name: str, needed: float, what: str = "the model") -> LimitError:
    """The error for an exceeded limit: what is needed, what is allowed, how to allow more."""
    limit, meta = getattr(current(), name), _META[name]
    problem = f"{what} takes {needed:,} {meta['unit']}, and the limit is {limit:,} {meta['of']}"
    if needed > meta["most"]:
        return LimitError(f"{problem}; more than {meta['most']:,} cannot be computed: the file is damaged")
    return LimitError(f"{problem}; if the model is trusted, raise it: {_how(name, needed)}")


def _how(name: str, value: float) -> str:
    """How to set a limit, in Python and on the command line."""
    return f"limits=Limits({name}={value}), or --limit {name}={value}"


def check_elements(
    shape: Sequence[int], what: str = "the result", name: str = "elements", exempt: int = 0
) -> tuple[int, ...]:
    """`shape` as a tuple. Raises ModelFormatError for negative dimensions, LimitError if there are too many elements.

    name:   the limit that applies: "elements", or "folded" for constants that are computed now
    exempt: elements that are always allowed
    """
    check_rank(len(shape), what)
    if any(dim < 0 for dim in shape):
        raise ModelFormatError(
            f"{what} would have shape {tuple(shape)}: the inputs are too small, or the file is damaged"
        )
    count = math.prod(dim for dim in shape if dim)  # also if it is empty: NumPy and TVM multiply the other dimensions
    if count > exempt:
        check(name, count, f"{what} of shape {tuple(shape)}")
    return tuple(int(dim) for dim in shape)


def most_folded() -> int:
    """The most elements of a constant that the import computes from others. Without this limit, constants could double
    with every step that computes one from another."""
    state = _current.get()
    return max(current().folded, 2 * state.own if state else 0)


def check_rank(rank: int, what: str = "the result") -> None:
    """Raises UnsupportedOperatorError for more dimensions than an array can have."""
    if rank > MAX_RANK:
        raise UnsupportedOperatorError(f"{what} has {rank} dimensions; up to {MAX_RANK} are supported")


def charge(shape: Sequence[int], what: str = "the model") -> None:
    """Count a constant or state that the import creates. Raises LimitError if all of them together are too large."""
    count = math.prod(check_elements(shape, what))
    state = _current.get()
    if state is None:
        return
    state.constants += count
    check("constants", state.constants - state.exempt, what)


def count_expression() -> None:
    """Count a call in the module, and check the clock. Raises LimitError."""
    _count("expressions", "the model")


def count_evaluation() -> None:
    """Count an operator that is evaluated at import, and check the clock. Raises LimitError."""
    _count("evaluations", "the import")


def _count(name: str, what: str) -> None:
    """Add one to the current import's or build's count for a limit."""
    state = _current.get()
    if state is None:
        return
    count = getattr(state, name) + 1
    setattr(state, name, count)
    if count > getattr(state.limits, name):
        raise over(name, what)
    checkpoint()


def checkpoint() -> None:
    """Raises LimitError if the import or build has taken too long or too much memory. To be called between small
    steps."""
    state = _current.get()
    if state is None:
        return
    if time.monotonic() - state.started > state.limits.seconds:
        raise over("seconds", "the work on the model")
    check("memory", _resident() - state.resident - _CONVERTED_BYTES * state.exempt, "the work on the model")


def over(name: str, what: str) -> LimitError:
    """The error for an exceeded limit if it is not known how much would be needed."""
    limit = getattr(current(), name)
    text = f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"
    return LimitError(
        f"{what} takes over {text} {_META[name]['unit']}; if the model is trusted, allow more: {_how(name, 10 * limit)}"
    )


def _resident() -> int:
    """Resident bytes of this process; 0 if the operating system does not report them in this way."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
