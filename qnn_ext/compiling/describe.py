"""Describes the kernels of a lowered module: the layer each one computes, its amount of work, its implementation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from tvm import IRModule, relax, tirx

from ..numerics.annotations import KernelFacts, facts_of
from ..op.loop import Loop
from ..passes.rewrite import bindings_of, op_name, operands
from ..running.kernels import Kernel


def kernels_of(mod: IRModule) -> list[Kernel]:
    """The kernels of a lowered module, in execution order."""
    return list(_kernels(mod, mod["main"], 1))


def _kernels(mod: IRModule, main: relax.Function, rounds: int) -> Iterator[Kernel]:
    """Those of a function that runs several times; work and traffic are those of all rounds."""
    for binding in bindings_of(main):
        value = binding.value
        loop = Loop.of(value)
        if loop is not None:
            yield from _kernels(mod, loop.body, rounds * (loop.trips if loop.condition is None else 1))
        if op_name(value) != "call_tir":
            continue
        function: tirx.PrimFunc = mod[value.args[0]]
        args = [arg for arg in operands(value) if hasattr(arg, "ty") and isinstance(arg.ty, relax.TensorType)]
        constants = [arg for arg in args if not isinstance(arg, relax.Var)]
        data = [arg.ty for arg in args if isinstance(arg, relax.Var)]
        data += list(binding.var.ty.fields) if isinstance(binding.var.ty, relax.TupleType) else [binding.var.ty]
        symbol = str(value.args[0].name_hint)
        facts = facts_of(function) or KernelFacts(binding.var.name, symbol, "relax")
        yield Kernel(
            symbol=symbol,
            layer=facts.layer,
            operators=facts.composite,
            implementation=facts.implementation,
            macs=facts.macs * rounds,
            weight_bytes=sum(_bytes(arg.ty) for arg in constants),
            data_bytes=sum(map(_bytes, data)) * rounds,
            workload=json.loads(facts.workload or "{}"),
            reason=facts.reason,
        )


def _bytes(ty: Any) -> int:
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        return 0
    return int(np.prod([int(dim) for dim in ty.shape], dtype=np.int64)) * np.dtype(str(ty.dtype)).itemsize
