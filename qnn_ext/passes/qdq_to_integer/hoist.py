"""Hoist: moves each quantize up over operators that only move values or keep their order.

    quantize(reshape(x)) = reshape(quantize(x))        quantize(max_pool(x)) = max_pool(quantize(x))
    quantize(relu(x)) = max(quantize(x), zero_point)   quantize(concat(a, b)) = concat(quantize(a), quantize(b))

All of these are exact, because quantize is monotone and elementwise. A value may be replaced by its integers only if
every reader quantizes it in the same way: `_demands` finds such values in a backward walk, then a forward walk rewrites
them. Both take time linear in the number of bindings.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import IRModule, relax

from ...op.base import OPS, call_attributes, constant, constant_value, module_of, shape_of
from ...op.cost import is_quick
from ...op.evaluate import interpret
from ...op.relax_table import traits_of
from ..layout.propagation import rebuild
from ..rewrite import Rebuild, consumers, emit_named, op_name, operands, substitute

# elements by which a folded constant may exceed its operands
_MOST_GROWTH = 4096


class Quantize:
    """A quantize to be moved: its parameters, and its application to another tensor."""

    def __init__(self, call: relax.Call) -> None:
        _, self.scale, self.zero_point = call.args[:]
        self.attributes = call_attributes(call)
        scale, zero_point = constant_value(self.scale), constant_value(self.zero_point)
        self.per_tensor = scale is not None and zero_point is not None and scale.size == 1 and zero_point.size == 1
        if self.per_tensor:
            self.key: Any = (scale.tobytes(), zero_point.tobytes(), tuple(self.attributes.items()))  # type: ignore[union-attr]
        else:
            self.key = call

    @property
    def out_dtype(self) -> str:
        return str(self.attributes["out_dtype"])

    def __call__(self, data: Any) -> relax.Call:
        return OPS["quantize"].call(data, self.scale, self.zero_point, **self.attributes)

    def value(self, array: np.ndarray | np.generic) -> np.ndarray:
        """The integers of a constant."""
        args = constant_value(self.scale), constant_value(self.zero_point)
        return np.asarray(OPS["quantize"].reference(array.astype(np.float32), *args, **self.attributes))

    def bounds(self, low: float, high: float) -> tuple[int, int]:
        """The integers that two real numbers are quantized to."""
        first, last = (int(self.value(np.float32(bound)).item()) for bound in (low, high))
        return first, last


# ---- operators that can work on integers instead -----------------------------------------------------------------


def _data_of(value: Any) -> list[Any] | None:
    """The data operands of an operator that quantize can be moved past, None for any other."""
    if isinstance(value, relax.TupleGetItem):
        return [value.tuple_value]
    traits = traits_of(value)
    if not traits.carries and traits.clips is None:
        return None
    data = traits.operands(value)
    return data if all(isinstance(item.ty, relax.TensorType) for item in data) else None


def _on_integers(call: relax.Call, data: list[Any], quantize: Quantize) -> Any:
    """The call on its data as integers."""
    traits = traits_of(call)
    if traits.clips is not None:
        return _clipped(data[0], *traits.clips(call), quantize)
    moved = traits.with_operands(call, data)
    if traits.fill is None or call.attrs.pad_mode != "constant":
        return moved
    fill = int(quantize.value(np.float32(float(getattr(call.attrs, traits.fill)))).item())
    return rebuild(moved, moved.args, **{traits.fill: float(fill)})


def _clipped(data: Any, low: float, high: float, quantize: Quantize) -> Any:
    bounds, limits = quantize.bounds(low, high), np.iinfo(quantize.out_dtype)
    return data if bounds == (limits.min, limits.max) else relax.op.clip(data, *bounds)


# ---- the two walks -----------------------------------------------------------------------------------------------


def hoist_quantize(mod: IRModule) -> IRModule:
    """`mod` with every per-tensor quantize as close to the computation before it as possible, and equal ones merged."""
    return _Hoist(mod["main"]).run()


class _Hoist:
    def __init__(self, function: relax.Function) -> None:
        self._new = Rebuild(function)
        self._wanted = _demands(function, self._new.bindings)
        self._builder, self._environment = self._new.builder, self._new.environment
        self._integers: dict[Any, dict[Any, Any]] = {}  # tensor -> key of a quantize -> its integers

    def run(self) -> IRModule:
        with self._new.main():
            for binding in self._new.bindings:
                self._visit(binding)
        return self._new.live_module()

    def _visit(self, binding: relax.VarBinding) -> None:
        value, var = binding.value, binding.var
        quantize = Quantize(value) if op_name(value) == "qnn.quantize" else None
        if quantize is not None and quantize.per_tensor:
            self._environment[var] = self._quantized(value.args[0], quantize, var.name)
            return
        wanted = self._wanted.get(var)
        data = None if wanted is None else self._data_of(value)
        if wanted is None or data is None:
            self._environment[var] = self._emit(substitute(value, self._environment), var.name)
            return
        parts = [self._quantized(item, wanted, var.name) for item in data]
        self._integers[var] = {wanted.key: self._emit(self._moved(value, parts, wanted), var.name)}

    def _emit(self, expr: Any, name: str) -> Any:
        return _folded(emit_named(self._builder, expr, name), expr)

    def _data_of(self, value: Any) -> list[Any] | None:
        """The operands to quantize instead of the result, None if the result has to be quantized."""
        if isinstance(value, relax.TupleGetItem) and value.tuple_value not in self._wanted:
            return None
        return _data_of(value)

    def _moved(self, value: Any, parts: list[Any], quantize: Quantize) -> Any:
        if isinstance(value, relax.TupleGetItem):
            return relax.TupleGetItem(parts[0], value.index)
        rest = substitute(value, self._environment)
        return _on_integers(rest, parts, quantize)

    def _quantized(self, tensor: Any, quantize: Quantize, name: str) -> Any:
        """The integers of a tensor: from moving its quantize past an operator, or else from a new quantize."""
        real = self._environment.get(tensor, tensor)
        array = constant_value(real)
        if array is not None:
            return constant(quantize.value(array))
        known = self._integers.setdefault(tensor, {})
        if quantize.key not in known:
            known[quantize.key] = emit_named(self._builder, quantize(real), name)
        return known[quantize.key]


def _demands(function: relax.Function, bindings: list[relax.VarBinding]) -> dict[Any, Quantize]:
    """Variable -> the quantize that all its readers apply to it, directly or after operators that move values."""
    readers = consumers(function, bindings)
    data = [set(_data_of(binding.value) or []) for binding in bindings]
    wanted: dict[Any, Quantize] = {}
    for binding in reversed(bindings):
        found: dict[Any, Quantize] = {}
        for index in readers[binding.var]:
            quantize = _demand(bindings[index], binding.var, data[index], wanted) if index < len(bindings) else None
            if quantize is None:
                break
            found[quantize.key] = quantize
        else:
            if len(found) == 1 and _has_integers(binding):
                (wanted[binding.var],) = found.values()
    return wanted


def _demand(reader: relax.VarBinding, var: Any, data: set[Any], wanted: dict[Any, Quantize]) -> Quantize | None:
    """How a reader of `var` quantizes it; `data`: what the reader moves."""
    value = reader.value
    if op_name(value) == "qnn.quantize":
        quantize = Quantize(value)
        return quantize if quantize.per_tensor and var.same_as(value.args[0]) else None
    return wanted.get(reader.var) if var in data else None


def _has_integers(binding: relax.VarBinding) -> bool:
    """Whether it binds a tensor, or a tuple from an operator that can work on integers."""
    if isinstance(binding.var.ty, relax.TupleType):
        return traits_of(binding.value).carries
    return isinstance(binding.var.ty, relax.TensorType)


def _folded(bound: Any, expr: Any) -> Any:
    """The value of a call whose operands are all constant, if it is not much bigger than they are."""
    name = op_name(expr)
    if not name or name == "qnn.dequantize" or not isinstance(bound.ty, relax.TensorType):
        return bound
    tensors = [arg for arg in operands(expr) if isinstance(getattr(arg, "ty", None), relax.TensorType)]
    arrays = [constant_value(arg) for arg in tensors]
    known = [array for array in arrays if array is not None]
    if not known or len(known) < len(arrays):
        return bound
    size = math.prod(shape_of(bound))
    if size > sum(array.size for array in known) + _MOST_GROWTH or not is_quick(expr, size, known):
        return bound
    return constant(evaluate(expr))


def evaluate(call: relax.Call) -> np.ndarray:
    """The value of a call of constants. Its tensors become parameters, so that equal calls compile once."""
    params: list[relax.Var] = []
    arrays: list[np.ndarray] = []

    def parameter(arg: Any) -> Any:
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([parameter(field) for field in arg.fields])
        array = constant_value(arg)
        if array is None or array.ndim == 0:  # scalars stay constants, as some operators require
            return arg
        params.append(relax.Var(f"p{len(params)}", arg.ty))
        arrays.append(array)
        return params[-1]

    of_parameters = relax.Call(call.op, [parameter(arg) for arg in call.args], call.attrs, call.ty_args)
    with np.errstate(all="ignore"):
        return np.asarray(interpret(module_of(of_parameters, params), arrays)[0])
