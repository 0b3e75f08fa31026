"""The peak memory of a lowered module's tensors, calculated: for models that TVM's virtual machine runs, on CPUs and
GPUs. A model that is one program has its own memory plan, see `program.memory`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from tvm import IRModule, relax, tirx

from .rewrite import bindings_of, op_name


def peak(mod: IRModule, least: int = 0) -> tuple[int, str]:
    """The largest number of bytes of tensors that are alive at the same time, and the name of the one computed then.
    Inputs and results are alive throughout; anything of unknown size counts as nothing.

    least: bytes that each value counts for at least: with 4, what 8-bit tensors would take in float32
    """
    main = mod["main"]
    bindings = bindings_of(main)
    sources: dict[Any, list[Any]] = {}  # variable -> the tensors whose memory it names or contains
    last: dict[Any, int] = {}
    for index, binding in enumerate(bindings):
        read = [source for var in _variables(binding.value) for source in sources.get(var, [var])]
        last.update(dict.fromkeys(read, index))
        sources[binding.var] = read if _is_view(binding.value) else [binding.var]
    held = {source for var in _variables(main.body.body) for source in sources.get(var, [var])}
    ends: dict[int, list[Any]] = {}
    for var, index in last.items():
        if var not in held:
            ends.setdefault(index, []).append(var)
    alive = sum(tensor_bytes(param.ty, least) for param in main.params)
    own = {binding.var for binding in bindings if sources[binding.var] == [binding.var]}
    most, name = alive, ""
    for index, binding in enumerate(bindings):
        alive += tensor_bytes(binding.var.ty, least) if binding.var in own else 0
        if alive > most:
            most, name = alive, binding.var.name
        alive -= sum(tensor_bytes(var.ty, least) for var in ends.get(index, []) if var in own)
    return most, name


def _variables(expr: Any) -> Iterator[Any]:
    if isinstance(expr, relax.Var):
        yield expr
    elif isinstance(expr, relax.Tuple):
        for field in expr.fields:
            yield from _variables(field)
    elif isinstance(expr, relax.TupleGetItem):
        yield from _variables(expr.tuple_value)
    elif isinstance(expr, relax.Call):
        for arg in expr.args:
            yield from _variables(arg)


def _is_view(expr: Any) -> bool:
    """Whether an expression computes nothing and only names existing memory."""
    return isinstance(expr, (relax.Var, relax.Tuple, relax.TupleGetItem)) or op_name(expr) == "reshape"


def tensor_bytes(ty: Any, least: int = 0) -> int:
    """Bytes of a tensor or of a tuple of them, with at least so many for each value; 0 if its shape is unknown."""
    if isinstance(ty, relax.TupleType):
        return sum(tensor_bytes(field, least) for field in ty.fields)
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return 0
    if not all(isinstance(dim, tirx.IntImm) for dim in ty.shape):
        return 0
    return math.prod(map(int, ty.shape)) * max(least, np.dtype(str(ty.dtype)).itemsize)
