"""cache_dtype: states into which rows are written, such as key-value caches, hold these in 16 or 8 bits.

    state' = write_rows(state, rows, positions)     becomes, with what read state' as before,

float16:   state' = write_rows(state, float16(rows), positions);  float32(state')
int8:      s = max |row| / 127 for each row, 1 for a row of zeros
           state' = write_rows(state, rint(rows / s), positions);  scales' = write_rows(scales, s, positions)
           float32(state') · scales'

`passes.attention` makes attention that reads such a state one kernel, which converts what it reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax

from .. import op as qnn
from ..errors import QnnError
from ..module import QnnModule, State
from ..op.base import call_attributes, definition_of, shape_of
from ..op.compound import integer_rows, reshape
from ..op.write_rows import WRITE_ROWS
from ..qparams import CACHE_DTYPES
from .inline import inlined
from .rewrite import Emit, Rebuild, operands, plain_attrs


def with_cache_dtype(module: QnnModule, dtype: str) -> QnnModule:
    """The module whose caches hold rows as `dtype` says: "model" for those of the model.

    A cache is a state (…, T, D) in float32 that is only changed by `qnn.write_rows` along T. With int8 a state of
    scales (…, T, 1) follows it, with ".scale" behind its name. Values beyond ±65504 are infinite in float16.

    Raises QnnError for another dtype, or if there is no such state.
    """
    if dtype not in CACHE_DTYPES:
        raise QnnError(f"cache_dtype: must be one of {', '.join(map(repr, CACHE_DTYPES))}, found {dtype!r}")
    if dtype == "model":
        return module
    function = inlined(module.ir)["main"]
    bindings = {binding.var: binding.value for block in function.body.blocks for binding in block.bindings}
    count = len(module.states)
    results = _results(function, bindings)
    params = list(function.params)[len(function.params) - count :]
    caches = [_is_cache(*one, bindings) for one in zip(params, results[len(results) - count :], strict=True)]
    if not any(caches):
        raise QnnError(
            f"cache_dtype={dtype!r}: {module.source} has no state in float32 into which it writes rows, as a language "
            "model does into its key-value cache. Import it with its cache as states, or leave cache_dtype out"
        )
    changed = _Narrowing(dtype, function, bindings, [v for v, cache in zip(params, caches, strict=True) if cache])
    states = [
        new
        for state, cache in zip(module.states, caches, strict=True)
        for new in (changed.initial(state) if cache else [state])
    ]
    return replace(module, ir=changed.module(results, count), states=tuple(states))


def _results(function: relax.Function, bindings: dict[Any, Any]) -> list[Any]:
    body = function.body.body
    while isinstance(body, relax.Var):
        body = bindings[body]
    return list(body.fields)


def _is_cache(param: Any, result: Any, bindings: dict[Any, Any]) -> bool:
    """Whether a state's next value is it with rows written into it."""
    if str(param.ty.dtype) != "float32" or len(shape_of(param)) < 2 or result is param:
        return False
    while not result.same_as(param):
        value: Any = bindings.get(result)
        if definition_of(value) is not WRITE_ROWS or call_attributes(value)["axis"] != len(shape_of(param)) - 2:
            return False
        result = value.args[0]
    return True


@dataclass
class _Narrowing:
    """The rebuilding of a `main` whose parameters `caches` become narrow."""

    dtype: str
    function: relax.Function
    bindings: dict[Any, Any]
    caches: Sequence[Any]

    def initial(self, state: State) -> list[State]:
        """The states that stand for one."""
        if self.dtype == "float16":
            return [State(state.name, state.initial.astype(np.float16))]
        largest = np.abs(state.initial).max(axis=-1, keepdims=True)
        scale = np.where(largest == 0, np.float32(1), largest / np.float32(127))
        integers = np.rint(state.initial / scale).astype(np.int8)
        return [State(state.name, integers), State(f"{state.name}.scale", scale)]

    def module(self, results: Sequence[Any], states: int) -> Any:
        """The new module. results: of the function, with its states as the last ones"""
        params: list[Any] = []
        stored: dict[Any, tuple[Any, ...]] = {}  # a state of the old function, or one with rows written -> its parts
        for param in self.function.params:
            parts = self._params(param) if param in self.caches else (param,)
            params += parts
            if param in self.caches:
                stored[param] = parts
        readers = self._readers()
        new = Rebuild(self.function)
        with new.main(params, plain_attrs(self.function)):
            emit = new.builder.emit
            for var in self.caches:
                if readers[var]:
                    new.environment[var] = _real(stored[var], emit)
            for binding in new.bindings:
                value = binding.value
                if isinstance(value, relax.Tuple):  # of the results: put where it is used
                    continue
                if definition_of(value) is WRITE_ROWS and value.args[0] in stored:
                    stored[binding.var] = self._written(stored[value.args[0]], new.substituted(value), emit)
                    if readers[binding.var]:
                        new.environment[binding.var] = _real(stored[binding.var], emit)
                elif not (isinstance(value, relax.Var) and value.same_as(self.function.body.body)):
                    new.keep(binding)
            first = len(results) - states
            fields = [
                part
                for index, result in enumerate(results)
                for part in (stored[result] if index >= first and result in stored else [new.substituted(result)])
            ]
            new.result = relax.Tuple(fields)
        return new.module()

    def _params(self, param: Any) -> tuple[Any, ...]:
        shape = shape_of(param)
        narrow = relax.Var(param.name, relax.TensorType(shape, self.dtype))
        if self.dtype == "float16":
            return (narrow,)
        return narrow, relax.Var(f"{param.name}_scale", relax.TensorType([*shape[:-1], 1], "float32"))

    def _readers(self) -> Counter[Any]:
        """How often a variable's real values are read."""
        count: Counter[Any] = Counter()
        for value in self.bindings.values():
            if isinstance(value, (relax.Tuple, relax.Var)):
                continue
            read = list(operands(value))
            count.update(read[1:] if definition_of(value) is WRITE_ROWS else read)
        return count

    def _written(self, parts: tuple[Any, ...], call: Any, emit: Emit) -> tuple[Any, ...]:
        """The parts with the rows of a call of write_rows."""
        _, rows, positions = call.args
        attributes = call_attributes(call)
        if self.dtype == "float16":
            narrow: tuple[Any, ...] = (emit(relax.op.astype(rows, self.dtype)),)
        else:
            shape = shape_of(rows)
            integers, scale = integer_rows(rows, emit)
            narrow = reshape(integers, shape, emit), reshape(scale, (*shape[:-1], 1), emit)
        return tuple(
            emit(qnn.write_rows(part, new, positions, attributes["axis"], attributes["copies"]))
            for part, new in zip(parts, narrow, strict=True)
        )


def _real(parts: tuple[Any, ...], emit: Emit) -> Any:
    """What the parts of a cache stand for, in float32."""
    values, *scale = parts
    real = emit(relax.op.astype(values, "float32"))
    return emit(relax.op.multiply(real, scale[0])) if scale else real
