"""Hoist: moves each quantize up over operators that only move values or keep their order.

    quantize(reshape(x)) = reshape(quantize(x))        quantize(max_pool(x)) = max_pool(quantize(x))
    quantize(relu(x)) = max(quantize(x), zero_point)   quantize(concat(a, b)) = concat(quantize(a), quantize(b))

All exact, because quantize is monotone and works on each element by itself. A value may be replaced by its integers
only where every reader quantizes it alike: `_demands` finds these from the results backwards, then one walk forwards
rewrites. Both take time linear in the number of bindings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import IRModule, relax

from ...interpreter import interpret
from ...op.base import OPS, call_attributes, constant, constant_value, shape_of
from ...op.cost import is_quick
from ..rewrite import bindings_of, consumers, emit_named, op_name, operands, plain_attrs, substitute

# folded constants may be this much bigger than what they are made of
_MOST_GROWTH = 4096


class Quantize:
    """One quantize to be moved: its parameters, and how it applies to another tensor."""

    def __init__(self, call: relax.Call) -> None:
        self.scale, self.zero_point = call.args[1:]
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
        """The integers that two real numbers become."""
        first, last = (int(self.value(np.float32(bound)).item()) for bound in (low, high))
        return first, last


# ---- operators that can work on integers instead -----------------------------------------------------------------

# the value of a binding -> the operands that are its data, or None when this one cannot be moved over
DataOf = Callable[[Any], "list[Any] | None"]
# (call, its data as integers, the quantize) -> the call on integers
OnIntegers = Callable[[relax.Call, list[Any], Quantize], Any]


def _first(call: relax.Call) -> list[Any]:
    return [call.args[0]]


def _fields(call: relax.Call) -> list[Any] | None:
    return list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else None


def _nearest(call: relax.Call) -> list[Any] | None:
    return [call.args[0]] if call.attrs.method == "nearest_neighbor" else None


def _both(call: relax.Call) -> list[Any]:
    return list(call.args)


def _on_integers(call: relax.Call, data: list[Any], quantize: Quantize) -> Any:
    """The same call; `data` in place of the leading arguments, or of the fields of the first."""
    if isinstance(call.args[0], relax.Tuple):
        return relax.Call(call.op, [relax.Tuple(data), *call.args[1:]], call.attrs, call.ty_args)
    return relax.Call(call.op, [*data, *call.args[len(data) :]], call.attrs, call.ty_args)


def _relu(call: relax.Call, data: list[Any], quantize: Quantize) -> Any:
    return _clipped(data[0], 0.0, np.inf, quantize)


def _relu6(call: relax.Call, data: list[Any], quantize: Quantize) -> Any:
    return _clipped(data[0], 0.0, 6.0, quantize)


def _clip(call: relax.Call, data: list[Any], quantize: Quantize) -> Any:
    low, high = (float(bound.value) for bound in call.args[1:])
    return _clipped(data[0], low, high, quantize)


def _clipped(data: Any, low: float, high: float, quantize: Quantize) -> Any:
    bounds, limits = quantize.bounds(low, high), np.iinfo(quantize.out_dtype)
    return data if bounds == (limits.min, limits.max) else relax.op.clip(data, *bounds)


def _pad(call: relax.Call, data: list[Any], quantize: Quantize) -> Any:
    if call.attrs.pad_mode != "constant":
        return _on_integers(call, data, quantize)
    fill = int(quantize.value(np.float32(float(call.attrs.pad_value))).item())
    widths = [int(width) for width in call.attrs.pad_width]
    return relax.op.nn.pad(data[0], widths, pad_mode="constant", pad_value=fill)


def _where(call: relax.Call, data: list[Any], quantize: Quantize) -> Any:
    return relax.op.where(call.args[0], *data)


_UNARY_MOVES = (
    "reshape", "flatten", "nn.batch_flatten", "permute_dims", "squeeze", "expand_dims", "broadcast_to",
    "strided_slice", "flip", "tile", "repeat", "take", "gather_elements", "gather_nd", "split",
    "nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d", "max", "min",
)  # fmt: skip
_OVER: dict[str, tuple[DataOf, OnIntegers]] = {
    **dict.fromkeys(_UNARY_MOVES, (_first, _on_integers)),
    "concat": (_fields, _on_integers),
    "stack": (_fields, _on_integers),
    "image.resize2d": (_nearest, _on_integers),
    "maximum": (_both, _on_integers),
    "minimum": (_both, _on_integers),
    "where": (lambda call: [call.args[1], call.args[2]], _where),
    "nn.relu": (_first, _relu),
    "nn.relu6": (_first, _relu6),
    "clip": (_first, _clip),
    "nn.pad": (_first, _pad),
}


def _data_of(value: Any) -> list[Any] | None:
    """The data operands of an operator that can be moved over, None for any other."""
    if isinstance(value, relax.TupleGetItem):
        return [value.tuple_value]
    rule = _OVER.get(op_name(value))
    return None if rule is None else rule[0](value)


# ---- the two walks -----------------------------------------------------------------------------------------------


def hoist_quantize(mod: IRModule) -> IRModule:
    """`mod` with every per-tensor quantize as close behind a computation as it can be, equal ones merged."""
    return _Hoist(mod["main"]).run()


class _Hoist:
    def __init__(self, function: relax.Function) -> None:
        self._function = function
        self._bindings = bindings_of(function)
        self._wanted = _demands(function, self._bindings)
        self._builder = relax.BlockBuilder()
        self._environment: dict[Any, Any] = {}
        self._integers: dict[Any, dict[Any, Any]] = {}  # tensor -> key of a quantize -> its integers

    def run(self) -> IRModule:
        function = self._function
        with self._builder.function("main", list(function.params), attrs=plain_attrs(function)):
            with self._builder.dataflow():
                for binding in self._bindings:
                    self._visit(binding)
                result = self._builder.emit_output(substitute(function.body.body, self._environment))
            self._builder.emit_func_output(result)
        return relax.transform.DeadCodeElimination(["main"])(self._builder.get())

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
        """The operands to quantize instead of the result, None when the result has to be quantized."""
        if isinstance(value, relax.TupleGetItem) and value.tuple_value not in self._wanted:
            return None
        return _data_of(value)

    def _moved(self, value: Any, parts: list[Any], quantize: Quantize) -> Any:
        if isinstance(value, relax.TupleGetItem):
            return relax.TupleGetItem(parts[0], value.index)
        rest = substitute(value, self._environment)
        return _OVER[op_name(value)][1](rest, parts, quantize)

    def _quantized(self, tensor: Any, quantize: Quantize, name: str) -> Any:
        """The integers of a tensor: as they came over an operator, or by a quantize of their own."""
        real = self._environment.get(tensor, tensor)
        array = constant_value(real)
        if array is not None:
            return constant(quantize.value(array))
        known = self._integers.setdefault(tensor, {})
        if quantize.key not in known:
            known[quantize.key] = emit_named(self._builder, quantize(real), name)
        return known[quantize.key]


def _demands(function: relax.Function, bindings: list[relax.VarBinding]) -> dict[Any, Quantize]:
    """Variable -> the quantize that all its readers apply to it, directly or behind operators that move values."""
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
    """A float tensor, or a tuple of them whose maker can work on integers."""
    if isinstance(binding.var.ty, relax.TupleType):
        return op_name(binding.value) == "split"
    return isinstance(binding.var.ty, relax.TensorType)


def _folded(bound: Any, expr: Any) -> Any:
    """The value of a call whose operands are all constant, when it is not much bigger than they are."""
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
        if array is None or array.ndim == 0:  # scalars stay: some operators want them known
            return arg
        params.append(relax.Var(f"p{len(params)}", arg.ty))
        arrays.append(array)
        return params[-1]

    args = [parameter(arg) for arg in call.args]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        builder.emit_func_output(builder.emit(relax.Call(call.op, args, call.attrs, call.ty_args)))
    with np.errstate(all="ignore"):
        return np.asarray(interpret(builder.get(), arrays)[0])
