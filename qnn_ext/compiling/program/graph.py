"""Reads a lowered `main` as a straight list of kernel calls over storages, which one compiled function can run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import IRModule, ir, relax, tirx

from ...op.base import constant_value
from ...passes.rewrite import bindings_of, op_name

ALIGNMENT = 64
"""Bytes: every storage starts at a cache line, which is also the size of the longest vector."""


@dataclass(eq=False)
class Storage:
    """Memory of one tensor; a reshape shares its operand's memory.

    size:        bytes from the first to the last
    array:       the values of a constant
    whole:       the storage that it is a part of, from byte `start` on
    first, last: the first and last step that uses it; inputs live from step -1, outputs until the number of steps
    offset:      bytes from the start of its region, set by planning
    """

    size: int
    array: np.ndarray | None = None
    whole: Storage | None = None
    start: int = 0
    first: int = 1 << 30
    last: int = -1
    offset: int = -1

    def used_at(self, step: int) -> None:
        self.first, self.last = min(self.first, step), max(self.last, step)
        if self.whole is not None:
            self.whole.used_at(step)

    def become_part(self, whole: Storage, start: int) -> None:
        """Become a part of `whole`, which then lives at least as long."""
        self.whole, self.start = whole, start
        whole.used_at(self.first)
        whole.used_at(self.last)

    @property
    def root(self) -> tuple[Storage, int]:
        """The outermost storage, and where in it this one starts."""
        if self.whole is None:
            return self, 0
        root, start = self.whole.root
        return root, start + self.start


@dataclass(frozen=True)
class Step:
    """One call of a kernel, with the storages it reads and those it writes, in the order of its parameters."""

    kernel: ir.GlobalVar
    reads: tuple[Storage, ...]
    writes: tuple[Storage, ...]


@dataclass
class Graph:
    """A model without control flow. Inputs and outputs include the states of a recurrent model."""

    inputs: list[Storage]
    outputs: list[Storage] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def storages(self) -> list[Storage]:
        """All storages once, in order of first use."""
        found = [*self.inputs, *(s for step in self.steps for s in (*step.reads, *step.writes)), *self.outputs]
        return list(dict.fromkeys(found))


def read_graph(mod: IRModule) -> Graph:
    """The graph of `main`. Raises NotStraightError if it contains anything besides kernel calls on static shapes,
    reshapes and tuples.
    """
    graph = _Reader(mod).graph
    if not graph.steps:
        raise NotStraightError("it calls no kernel")
    return graph


class NotStraightError(Exception):
    """`main` cannot be expressed as a list of kernel calls; the message is the reason, for the user."""


_RUN_TIME_SHAPE = "a shape is only known at run time"


class _Reader:
    def __init__(self, mod: IRModule) -> None:
        self._mod = mod
        self._values: dict[Any, Any] = {}
        main = mod["main"]
        self.graph = Graph([Storage(_size(param.ty)) for param in main.params])
        for param, storage in zip(main.params, self.graph.inputs, strict=True):
            self._values[param] = storage
            storage.used_at(-1)
        for binding in bindings_of(main):
            if not isinstance(binding, relax.VarBinding):
                raise NotStraightError(_RUN_TIME_SHAPE)
            self._values[binding.var] = self._value(binding.value)
        result = self._value(main.body.body)
        self.graph.outputs = list(result) if isinstance(result, tuple) else [result]
        for storage in self.graph.outputs:
            storage.used_at(len(self.graph.steps))

    def _value(self, expr: Any) -> Any:
        """A Storage, or a tuple of them."""
        if isinstance(expr, relax.Var):
            return self._values[expr]
        if isinstance(expr, relax.Tuple):
            return tuple(self._value(item) for item in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            return self._value(expr.tuple_value)[expr.index]
        array = constant_value(expr)
        if array is not None:
            return self._values.setdefault(expr, Storage(array.nbytes, array))
        if op_name(expr) == "reshape":
            return self._value(expr.args[0])
        if op_name(expr) == "call_tir":
            return self._call(expr)
        raise NotStraightError(_kind(expr))

    def _call(self, call: relax.Call) -> Any:
        kernel = call.args[0]
        if len(call.args) != 2 or not isinstance(call.args[1], relax.Tuple):
            raise NotStraightError(_RUN_TIME_SHAPE)  # the shape is an additional argument
        reads = tuple(self._value(arg) for arg in call.args[1].fields)
        types = _types(call.ty_args[0])
        writes = tuple(Storage(_size(ty)) for ty in types)
        function = self._mod[kernel]
        sizes = [_buffer_size(param) for param in function.params]
        if sizes != [storage.size for storage in (*reads, *writes)]:
            raise NotStraightError(f"'{kernel.name_hint}' reads part of a tensor")
        step = len(self.graph.steps)
        for storage in (*reads, *writes):
            storage.used_at(step)
        self.graph.steps.append(Step(kernel, reads, writes))
        return writes if isinstance(call.ty_args[0], relax.TupleType) else writes[0]


def _kind(expr: Any) -> str:
    """What an expression does that a program does not support."""
    if isinstance(expr, relax.If):
        return "control flow"
    name = op_name(expr)
    return f"{name} is a function of TVM's runtime" if name else f"{type(expr).__name__} is not a kernel call"


def _types(ty: Any) -> list[Any]:
    return list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]


def _size(ty: Any) -> int:
    """Bytes of a tensor type."""
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        raise NotStraightError(_RUN_TIME_SHAPE)
    return _bytes(ty.shape, str(ty.dtype))


def _buffer_size(param: tirx.Var) -> int:
    """Bytes of a kernel's parameter, which must be a compact buffer with offset 0."""
    ty = param.ty
    if not hasattr(ty, "elem_offset") or ty.strides or not _is_zero(ty.elem_offset):
        raise NotStraightError("a kernel's parameter is not a whole tensor")
    return _bytes(ty.shape, str(ty.dtype))


def _is_zero(offset: Any) -> bool:
    return offset is None or (isinstance(offset, tirx.IntImm) and int(offset) == 0)


def _bytes(shape: Any, dtype: str) -> int:
    if not all(isinstance(dim, (int, tirx.IntImm)) for dim in shape):
        raise NotStraightError(_RUN_TIME_SHAPE)
    return math.prod(int(dim) for dim in shape) * np.dtype(dtype).itemsize
