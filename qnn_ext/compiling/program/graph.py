"""Reads a lowered `main` as a list of kernel calls over storages, some of them in loops, which one compiled function
can run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import IRModule, ir, relax, tirx

from ...op.base import constant_value
from ...op.loop import Loop as Call
from ...passes.rewrite import bindings_of, op_name
from .moving import collecting, copying, filling
from .storage import Loop, Move, Storage, Where, aligned, path_of


@dataclass(frozen=True)
class Step:
    """One call of a kernel, with the storages it reads and those it writes, in the order of its parameters.

    loop: the innermost loop that it is in
    own:  whether the program itself adds it, to move a value; the other steps are the model's kernels
    """

    kernel: ir.GlobalVar
    reads: tuple[Storage, ...]
    writes: tuple[Storage, ...]
    loop: Loop | None = None
    own: bool = False


@dataclass
class Graph:
    """A model without other control flow than loops. Inputs and outputs include the states of a recurrent model.

    functions: those of the steps that are the program's own
    """

    inputs: list[Storage]
    outputs: list[Storage] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    functions: dict[ir.GlobalVar, tirx.PrimFunc] = field(default_factory=dict)

    @property
    def kernels(self) -> list[Step]:
        """The steps that are kernels of the model."""
        return [step for step in self.steps if not step.own]

    def storages(self) -> list[Storage]:
        """All storages once, in order of first use, and those that they are parts of."""
        found = [*self.inputs, *(s for step in self.steps for s in (*step.reads, *step.writes)), *self.outputs]
        return list(dict.fromkeys(link for storage in found for link in storage.chain))


def read_graph(mod: IRModule) -> Graph:
    """The graph of `main`. Raises NotStraightError if it contains anything besides kernel calls on static shapes,
    reshapes, tuples and loops.
    """
    graph = _Reader(mod).graph
    if not graph.kernels:
        raise NotStraightError("it calls no kernel")
    return graph


class NotStraightError(Exception):
    """`main` cannot be expressed as a list of kernel calls; the message is the reason, for the user."""


_FOREVER = 1 << 30
"""All tasks look at a loop's condition once more when it ends, while the first may already be at the next step."""

_RUN_TIME_SHAPE = "a shape is only known at run time"


class _Reader:
    def __init__(self, mod: IRModule) -> None:
        self._mod = mod
        self._values: dict[Any, Any] = {}
        self._loop: Loop | None = None
        main = mod["main"]
        self.graph = Graph([Storage(_size(param.ty)) for param in main.params])
        for param, storage in zip(main.params, self.graph.inputs, strict=True):
            self._values[param] = storage
            storage.used_at(-1)
        self._read(main)
        result = self._value(main.body.body)
        self.graph.outputs = list(result) if isinstance(result, tuple) else [result]
        for storage in self.graph.outputs:
            storage.used_at(len(self.graph.steps))

    def _read(self, function: relax.Function) -> None:
        for binding in bindings_of(function):
            if not isinstance(binding, relax.VarBinding):
                raise NotStraightError(_RUN_TIME_SHAPE)
            self._values[binding.var] = self._value(binding.value)

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
        loop = Call.of(expr)
        if loop is not None:
            return self._repeat(loop)
        raise NotStraightError(_kind(expr))

    def _call(self, call: relax.Call) -> Any:
        kernel = call.args[0]
        if len(call.args) != 2 or not isinstance(call.args[1], relax.Tuple):
            raise NotStraightError(_RUN_TIME_SHAPE)  # the shape is an additional argument
        reads = tuple(self._value(arg) for arg in call.args[1].fields)
        types = _types(call.ty_args[0])
        writes = tuple(Storage(_size(ty), loop=self._loop) for ty in types)
        function = self._mod[kernel]
        sizes = [_buffer_size(param) for param in function.params]
        if sizes != [storage.size for storage in (*reads, *writes)]:
            raise NotStraightError(f"'{kernel.name_hint}' reads part of a tensor")
        self._add(kernel, reads, writes)
        return writes if isinstance(call.ty_args[0], relax.TupleType) else writes[0]

    def _add(
        self, kernel: ir.GlobalVar, reads: tuple[Storage, ...], writes: tuple[Storage, ...], own: bool = False
    ) -> None:
        step = len(self.graph.steps)
        for storage in (*reads, *writes):
            storage.used_at(step)
            for link in storage.chain:
                for loop in path_of(self._loop)[len(path_of(link.loop)) :]:
                    loop.used.append(link)
        self.graph.steps.append(Step(kernel, reads, writes, self._loop, own))

    # ---- loops ---------------------------------------------------------------------------------------------------

    def _repeat(self, call: Call) -> tuple[Storage, ...]:
        """The results of a loop. A state has two places, which take turns: a round reads one and writes the other."""
        outer, loop = self._loop, Loop(call.trips, self._loop)
        states = [self._value(state) for state in call.states]
        pairs = [self._pair(state) for state in states]
        if call.condition is not None:
            loop.condition = self._pair(self._value(call.condition))
        captured, own, slices = call.parameters
        inside = dict(zip(captured, map(self._value, call.captured), strict=True))
        for param, state, pair in zip(own, states, pairs, strict=True):
            inside[param] = pair.part(state.size, 0, Move(loop, Where.OLD, aligned(state.size)), loop)
        for param, sequence, back in zip(slices, call.sequences, call.backwards_in, strict=True):
            whole, size = self._value(sequence), _size(param.ty)
            inside[param] = whole.part(size, 0, Move(loop, _direction(back), size), loop)
        condition, new_states, outputs = call.results
        sizes = [_size(output.ty) for output in outputs]
        stacked = [Storage(call.trips * size, loop=outer) for size in sizes]
        if loop.condition is not None:
            for whole in stacked:
                self._fill(whole)
        begin, self._loop = len(self.graph.steps), loop
        self._values |= inside
        self._read(call.body)
        for new, state, pair in zip(new_states, states, pairs, strict=True):
            self._assign(self._value(new), pair, Move(loop, Where.NEW, aligned(state.size)), state.size)
        for output, whole, size, back in zip(outputs, stacked, sizes, call.backwards_out, strict=True):
            self._assign(self._value(output), whole, Move(loop, _direction(back), size), size)
        if loop.condition is not None:
            self._assign(self._value(condition), loop.condition, Move(loop, Where.NEW, aligned(1)), 1)
            loop.condition.used_at(_FOREVER)
        self._loop = outer
        for storage in loop.used:
            storage.used_at(begin)
            storage.used_at(len(self.graph.steps) - 1)
        finals = zip(states, pairs, strict=True)
        return (*(self._final(loop, state.size, pair) for state, pair in finals), *stacked)

    def _pair(self, value: Storage) -> Storage:
        """The two places of a state, with its first value in the first one."""
        pair = Storage(2 * aligned(value.size), loop=self._loop)
        self._copy(value, pair.part(value.size, 0, loop=self._loop))
        return pair

    def _assign(self, value: Storage, whole: Storage, move: Move, size: int) -> None:
        """Let a part of `whole` be the result of a round: computed there if possible, otherwise copied."""
        if value.array is None and value.whole is None and value.loop is self._loop:
            value.become_part(whole, 0, move)
            self._keep(whole)
        else:
            self._copy(value, whole.part(size, 0, move, self._loop))

    def _keep(self, storage: Storage) -> None:
        """Keep a storage from outside as long as the loops last in which a part of it is written."""
        for loop in path_of(self._loop)[len(path_of(storage.loop)) :]:
            loop.used.append(storage)

    def _final(self, loop: Loop, size: int, pair: Storage) -> Storage:
        """A state after the last round."""
        if loop.condition is None:
            return pair.part(size, (loop.trips & 1) * aligned(size), loop=self._loop)
        result = Storage(size, loop=self._loop)
        last = pair.part(size, 0, Move(loop, Where.OLD, aligned(size)), self._loop)
        if size:
            self._add(self._own("loop_result", size, collecting), (last,), (result,), own=True)
        return result

    def _copy(self, source: Storage, target: Storage) -> None:
        if target.size:
            self._add(self._own("loop_copy", target.size, copying), (source,), (target,), own=True)

    def _fill(self, target: Storage) -> None:
        if target.size:
            self._add(self._own("loop_clear", target.size, filling), (), (target,), own=True)

    def _own(self, name: str, size: int, build: Callable[[int], tirx.PrimFunc]) -> ir.GlobalVar:
        """A function of the program's own for tensors of `size` bytes."""
        known = {var.name_hint: var for var in self.graph.functions}
        name = f"{name}_{size}"
        while any(var.name_hint == name for var in self._mod.get_global_vars()):
            name += "_"
        if name not in known:
            known[name] = ir.GlobalVar(name)
            self.graph.functions[known[name]] = build(size)
        return known[name]


def _direction(backwards: bool) -> Where:
    return Where.BACKWARDS if backwards else Where.FORWARDS


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
