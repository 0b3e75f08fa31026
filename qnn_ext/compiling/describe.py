"""Describes the kernels of a lowered module: the layer each one computes, its amount of work, its implementation, and
how data flow from one to another."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import IRModule, relax, tirx

from ..numerics.annotations import KernelFacts, facts_of
from ..op.loop import Loop
from ..passes.rewrite import bindings_of, is_anonymous, op_name, operands
from ..running.kernels import Kernel


def kernels_of(mod: IRModule, live: Sequence[int] | None = None) -> list[Kernel]:
    """The kernels of a lowered module, in execution order.

    live: bytes in memory while each of them runs, if a program has planned them; otherwise they are counted here, from
          the tensors that are still read
    """
    reader = _Reader(mod)
    kernels = reader.kernels
    if live is None:
        live = _alive([_bytes(param.ty) for param in mod["main"].params], kernels, reader.results)
    return [replace(kernel, live_bytes=count) for kernel, count in zip(kernels, live, strict=True)]


class _Reader:
    """Walks over `main` and the bodies of its loops, and knows which kernels each variable comes from."""

    def __init__(self, mod: IRModule) -> None:
        self._mod = mod
        self.kernels: list[Kernel] = []
        main = mod["main"]
        self._origins: dict[Any, list[int]] = {param: [-1 - index] for index, param in enumerate(main.params)}
        self._read(main, 1)
        self.results = self._from([main.body.body])

    def _read(self, main: relax.Function, rounds: int) -> None:
        """Those of a function that runs several times; work and traffic are those of all rounds."""
        for binding in bindings_of(main):
            value = binding.value
            loop = Loop.of(value)
            if loop is not None:
                self._origins[binding.var] = self._loop(loop, rounds)
            elif op_name(value) == "call_tir":
                self._origins[binding.var] = [len(self.kernels)]
                self.kernels.append(self._kernel(binding, rounds))
            else:
                self._origins[binding.var] = self._from(operands(value))

    def _loop(self, loop: Loop, rounds: int) -> list[int]:
        """A state's first value and, in later rounds, what the body makes of it; the kernels read the first value."""
        outside = (loop.captured, loop.states, loop.sequences)
        for params, given in zip(loop.parameters, outside, strict=True):
            for param, one in zip(params, given, strict=True):
                self._origins[param] = self._from([one])
        self._read(loop.body, rounds * (loop.trips if loop.condition is None else 1))
        return self._from([loop.body.body.body])

    def _from(self, expressions: Iterable[Any]) -> list[int]:
        """The kernels and inputs that expressions come from, each once."""
        found: dict[int, None] = {}
        for expression in expressions:
            if expression in self._origins:
                found |= dict.fromkeys(self._origins[expression])
            elif isinstance(expression, (relax.Tuple, relax.TupleGetItem)):
                found |= dict.fromkeys(self._from(operands(expression)))
        return list(found)

    def _kernel(self, binding: relax.VarBinding, rounds: int) -> Kernel:
        value = binding.value
        function: tirx.PrimFunc = self._mod[value.args[0]]
        args = [arg for arg in operands(value) if hasattr(arg, "ty") and isinstance(arg.ty, relax.TensorType)]
        constants = [arg for arg in args if not isinstance(arg, relax.Var)]
        variables = [arg for arg in args if isinstance(arg, relax.Var)]
        ty = binding.var.ty
        results = list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]
        symbol, name = str(value.args[0].name_hint), str(binding.var.name)
        facts = facts_of(function) or KernelFacts(name, symbol, "relax", sources=() if is_anonymous(name) else (name,))
        return Kernel(
            symbol=symbol,
            layer=facts.layer,
            operators=facts.composite,
            implementation=facts.implementation,
            macs=facts.macs * rounds,
            weight_bytes=sum(_bytes(arg.ty) for arg in constants),
            data_bytes=sum(_bytes(one) for one in (*(arg.ty for arg in variables), *results)) * rounds,
            workload=json.loads(facts.workload or "{}"),
            reason=facts.reason,
            sources=list(facts.sources),
            reads=self._from(variables),
            results=[_described(one) for one in results if _is_static(one)],
        )


def _alive(inputs: Sequence[int], kernels: Sequence[Kernel], results: Iterable[int]) -> list[int]:
    """Bytes of the tensors that exist while each kernel runs: from the one that writes them to the last that reads
    them; the model's inputs and results throughout, or from the kernel that writes them on."""
    end = len(kernels)
    last = {index: index for index in range(end)}
    for index, kernel in enumerate(kernels):
        last |= {read: max(last.get(read, 0), index) for read in kernel.reads}
    last |= dict.fromkeys(results, end)
    change = np.zeros(end + 2, np.int64)
    for index, kernel in enumerate(kernels):
        size = sum(_size(result) for result in kernel.results)
        change[index] += size
        change[last[index] + 1] -= size
    return [int(count) + sum(inputs) for count in np.cumsum(change)[:end]]


def _size(result: dict[str, Any]) -> int:
    return int(np.prod(result["shape"], dtype=np.int64)) * np.dtype(result["dtype"]).itemsize


def _is_static(ty: Any) -> bool:
    shape = getattr(ty, "shape", None)
    return isinstance(shape, relax.ShapeExpr) and all(isinstance(dim, tirx.IntImm) for dim in shape)


def _described(ty: Any) -> dict[str, Any]:
    return {"shape": [int(dim) for dim in ty.shape], "dtype": str(ty.dtype)}


def _bytes(ty: Any) -> int:
    return _size(_described(ty)) if isinstance(ty, relax.TensorType) and _is_static(ty) else 0
