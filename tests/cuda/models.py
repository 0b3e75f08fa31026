"""Whole models on the emulated GPU: every launch of a built module, in order, as one program (see emulator.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax

from qnn_ext.compiling.build import lower_module
from qnn_ext.module import QnnModule
from qnn_ext.op.base import constant_value
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.targets.names import make_target

from .emulator import Array, Launch, execute
from .meaning import UNWRITTEN, host_program, lowered


def run_model(module: QnnModule, target: str, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Outputs of a module built for a GPU; states at their initial values come last among the inputs."""
    mod = lower_module(module.ir, make_target(target))
    return run_lowered(mod, target, [*inputs, *(np.asarray(state.initial) for state in module.states)])


def run_lowered(mod: tvm.IRModule, target: str, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """All outputs of `main`, including states."""
    source, functions = lowered(mod, make_target(target))
    hosts = {str(var.name_hint): function for var, function in functions.functions_items()}
    program = _Program(hosts)
    main = mod["main"]
    for parameter, value in zip(main.params, inputs, strict=True):
        program.names[parameter] = program.given(value)
    for binding in bindings_of(main):
        program.bind(binding.var, binding.value)
    names = [program.name(field) for field in _fields(program.resolved(main.body.body))]
    raw = dict(zip(dict.fromkeys(names), program.run(source, list(dict.fromkeys(names))), strict=True))
    types = main.ret_ty.fields if isinstance(main.ret_ty, relax.TupleType) else [main.ret_ty]
    return [
        np.frombuffer(raw[name], str(ty.dtype)).reshape([int(size) for size in ty.shape])
        for name, ty in zip(names, types, strict=True)
    ]


def _fields(expr: Any) -> list[Any]:
    return list(expr.fields) if isinstance(expr, relax.Tuple) else list(expr) if isinstance(expr, list) else [expr]


class _Program:
    """Arrays and launches of `main`, binding by binding."""

    def __init__(self, hosts: dict[str, Any]) -> None:
        self._hosts = hosts
        self._arrays: list[Array] = []
        self._values: list[np.ndarray] = []
        self._launches: list[Launch] = []
        self.names: dict[Any, str] = {}
        self._tuples: dict[Any, list[str]] = {}

    def given(self, value: np.ndarray) -> str:
        array = np.ascontiguousarray(value)
        self._arrays.append(Array(f"v{len(self._arrays)}", array.nbytes, True))
        self._values.append(array)
        return self._arrays[-1].name

    def _new(self, ty: Any) -> str:
        size = prod(int(extent) for extent in ty.shape) * np.dtype(str(ty.dtype)).itemsize
        return self.given(np.full(size, UNWRITTEN, np.uint8))

    def resolved(self, expr: Any) -> Any:
        return self._tuples.get(expr, expr)

    def name(self, expr: Any) -> str:
        if isinstance(expr, str):
            return expr
        if expr in self.names:
            return self.names[expr]
        value = constant_value(expr)
        assert value is not None, f"no array for {expr}"
        self.names[expr] = self.given(value)
        return self.names[expr]

    def bind(self, var: Any, value: Any) -> None:
        kind = op_name(value)
        if kind == "call_tir":
            self._call(var, value)
        elif kind == "reshape":
            self.names[var] = self.name(value.args[0])
        elif isinstance(value, relax.TupleGetItem):
            self.names[var] = self.name(_fields(self.resolved(value.tuple_value))[value.index])
        elif isinstance(value, relax.Tuple):
            self._tuples[var] = [self.name(field) for field in value.fields]
        elif value in self._tuples:
            self._tuples[var] = self._tuples[value]
        else:
            self.names[var] = self.name(value)

    def _call(self, var: Any, call: Any) -> None:
        types = var.ty.fields if isinstance(var.ty, relax.TupleType) else [var.ty]
        results = [self._new(ty) for ty in types]
        operands = [self.name(arg) for arg in call.args[1].fields]
        arrays, launches = host_program(self._hosts[str(call.args[0].name_hint)])
        known = dict(zip((a.name for a in arrays if a.is_parameter), [*operands, *results], strict=True))
        for array in arrays:
            if not array.is_parameter:
                known[array.name] = f"w{len(self._launches)}_{array.name}"
                self._arrays.append(replace(array, name=known[array.name]))
        for launch in launches:
            self._launches.append(replace(launch, arguments=tuple(known.get(a, a) for a in launch.arguments)))
        if isinstance(var.ty, relax.TupleType):
            self._tuples[var] = results
        else:
            self.names[var] = results[0]

    def run(self, source: str, outputs: list[str]) -> list[bytes]:
        return execute(source, self._arrays, self._launches, self._values, outputs)
