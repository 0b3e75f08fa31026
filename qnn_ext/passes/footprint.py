"""The peak memory of a lowered module's tensors, calculated: for models that TVM's virtual machine runs, on CPUs and
GPUs. A model that is one program has its own memory plan, see `program.memory`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from tvm import IRModule, relax, tirx

from .rewrite import bindings_of, op_name


def peak(mod: IRModule) -> tuple[int, str]:
    """The largest number of bytes of tensors that are alive at the same time, and the name of the one computed then.
    Inputs and results are alive throughout; anything of unknown size counts as nothing."""
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
    alive = sum(_bytes(param.ty) for param in main.params)
    own = {binding.var for binding in bindings if sources[binding.var] == [binding.var]}
    most, name = alive, ""
    for index, binding in enumerate(bindings):
        alive += _bytes(binding.var.ty) if binding.var in own else 0
        if alive > most:
            most, name = alive, binding.var.name
        alive -= sum(_bytes(var.ty) for var in ends.get(index, []) if var in own)
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


def _bytes(ty: Any) -> int:
    if isinstance(ty, relax.TupleType):
        return sum(map(_bytes, ty.fields))
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return 0
    if not all(isinstance(dim, tirx.IntImm) for dim in ty.shape):
        return 0
    return math.prod(map(int, ty.shape)) * np.dtype(str(ty.dtype)).itemsize
