"""Bounded: no PrimFunc accesses memory outside its operands or ends the process, whatever values it is given.

    address that depends on data    clipped to its dimension for reads; writes outside are skipped
    integer division by data        division.py
    sums and products of data       wrapping.py
    shift by data                   if the amount is too large or negative, by all bits
    float that becomes an address   tir.truncate

It covers all code from ordinary Relax operators, by whichever legalization, so that no operator can be forgotten. Our
own kernels are exempt: they index tables, which have an entry for every 8- or 16-bit value, and boxes, by indices that
they counted themselves. Wherever safety can be proven, nothing is added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm import IRModule, tirx
from tvm.ir import TensorLoad
from tvm.sym import Analyzer

from . import division, tir, wrapping

Expr = Any


def bounded(mod: IRModule, excepted: str | None = None, widest: str = "int128") -> IRModule:
    """`mod` with every PrimFunc bounded, except those with the attribute `excepted`.

    widest: the widest integers that code can be generated for, as in wrapping.wrapped
    """

    def rewritten(function: Any) -> Any:
        if not isinstance(function, tirx.PrimFunc) or (excepted and function.attrs and excepted in function.attrs):
            return function
        return bound_function(function, widest)

    functions = {var: rewritten(function) for var, function in mod.functions_items()}
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def bound_function(function: tirx.PrimFunc, widest: str = "int128") -> tirx.PrimFunc:
    """One PrimFunc, bounded; unchanged if nothing in it depends on data."""
    bounds = _Bounds(function.body, widest)
    body = tvm_ffi.structural_map(function.body, bounds.rules())
    if bounds.clipped:  # an index computed from floats must be a number before it can be clipped
        body = tvm_ffi.structural_map(body, (tirx.Cast, _truncated))
    return function.with_body(body) if bounds.changed else function


class _Bounds:
    """The rules for one function's body."""

    def __init__(self, body: tirx.Stmt, widest: str) -> None:
        self._widest = widest
        self.clipped = self.changed = False
        self._analyzer = Analyzer()
        self._data_dependent = _data_dependent(body)

    def rules(self) -> list[tuple[type, Callable[[Any], Any]]]:
        divisions = [(kind, self._division) for kind in (*division.QUOTIENTS, *division.REMAINDERS)]
        shifts = [(kind, self._shift) for kind in (tirx.LShift, tirx.RShift)]
        sums = [(kind, self._sum) for kind in wrapping.KINDS]
        return [(TensorLoad, self._load), (tirx.BufferStore, self._store), *sums, *shifts, *divisions]

    def _load(self, load: TensorLoad) -> TensorLoad:
        shape = load.source.shape
        indices = [self._inside(index, size) for index, size in zip(load.indices, shape, strict=True)]
        if all(index is None for index in indices):
            return load
        self.clipped = self.changed = True
        kept = [old if new is None else new for old, new in zip(load.indices, indices, strict=True)]
        return tirx.BufferLoad(load.source, kept)

    def _store(self, store: tirx.BufferStore) -> tirx.Stmt:
        pairs = list(zip(store.indices, store.buffer.shape, strict=True))
        unknown = [(index, size) for index, size in pairs if self._inside(index, size) is not None]
        if not unknown:
            return store
        self.clipped = self.changed = True
        inside = [
            tirx.all(_wide(index) >= tirx.const(0, "int64"), _wide(index) < _wide(size)) for index, size in unknown
        ]
        kept = [index if (clipped := self._inside(index, size)) is None else clipped for index, size in pairs]
        return tirx.IfThenElse(tirx.all(*inside), tirx.BufferStore(store.buffer, store.value, kept), None)

    def _inside(self, index: Expr, size: Expr) -> Expr | None:
        """The index clipped to 0 … size − 1; None if it does not depend on data or is provably in this range."""
        if not self._depends(index):
            return None
        bound = self._analyzer.const_int_bound(index)
        if bound.min_value >= 0 and isinstance(size, tirx.IntImm) and bound.max_value < int(size):
            return None
        return tirx.max(tirx.min(_wide(index), _wide(size) - tirx.const(1, "int64")), tirx.const(0, "int64"))

    def _division(self, node: Expr) -> Expr:
        if not str(node.ty.dtype).startswith(("int", "uint")) or not self._depends(node.b):
            return node
        bound = self._analyzer.const_int_bound(node.b)
        if bound.min_value > 0:
            return node
        self.changed = True
        return division.divided(type(node), node.a, node.b)

    def _sum(self, node: Expr) -> Expr:
        if not self._depends(node):
            return node
        result = wrapping.wrapped(node, self._widest)
        self.changed |= result is not node
        return result

    def _shift(self, node: Expr) -> Expr:
        if not self._depends(node.b):
            return node
        bits = tvm_ffi.dtype(str(node.ty.dtype)).bits
        bound = self._analyzer.const_int_bound(node.b)
        if bound.min_value >= 0 and bound.max_value < bits:
            return node
        self.changed = True
        return _shifted(node, bits)

    def _depends(self, expr: Expr) -> bool:
        """Whether an expression depends on data."""
        return bool(_found(expr, TensorLoad)) or any(var in self._data_dependent for var in _found(expr, tirx.Var))


def _shifted(node: Expr, bits: int) -> Expr:
    """x << n or x >> n; a negative or too large n gives what shifting bit by bit would leave: 0, or −1 for a negative x
    shifted right."""
    dtype, amount_dtype = str(node.ty.dtype), str(node.b.ty.dtype)
    last = tirx.const(bits - 1, amount_dtype)

    def shifted(n: Expr) -> Expr:
        if isinstance(node, tirx.RShift) and dtype.startswith("int"):
            too_much = tirx.any(n < tirx.const(0, amount_dtype), n > last)
            return tirx.RShift(node.a, tirx.Select(too_much, last, n))
        in_order = tirx.all(n >= tirx.const(0, amount_dtype), n <= last)
        whole = type(node)(node.a, tirx.min(tirx.max(n, tirx.const(0, amount_dtype)), last))
        return tirx.Select(in_order, whole, tirx.const(0, dtype))

    return tir.shared(node.b, shifted)


def _truncated(cast: tirx.Cast) -> Expr:
    source, target = str(cast.value.ty.dtype), str(cast.ty.dtype)
    if not source.startswith(("float", "bfloat")) or not target.startswith(("int", "uint")):
        return cast
    return tir.truncate(cast.value, target)


def _data_dependent(body: tirx.Stmt) -> set[Any]:
    """The variables that depend on data: bound to a value computed from data, or counting up to one."""
    values: list[tuple[Any, Expr]] = []
    tvm_ffi.structural_walk(
        body,
        [
            (tirx.Bind, lambda node: values.append((node.var, node.value))),
            (tirx.Let, lambda node: values.append((node.var, node.value))),
            (tirx.For, lambda node: values.append((node.loop_var, node.min + node.extent))),
        ],
    )
    found: set[Any] = set()
    while True:
        more = {
            var
            for var, value in values
            if var not in found and (_found(value, TensorLoad) or any(v in found for v in _found(value, tirx.Var)))
        }
        if not more:
            return found
        found |= more


def _found(node: Any, kind: type) -> list[Any]:
    nodes: list[Any] = []
    tvm_ffi.structural_walk(node, (kind, nodes.append))
    return nodes


def _wide(value: Expr) -> Expr:
    return value.astype("int64") if str(value.ty.dtype) != "int64" else value
