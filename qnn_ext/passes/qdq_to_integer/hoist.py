"""Hoist: moves each quantize up over operators that only move values or keep their order.

    quantize(reshape(x)) = reshape(quantize(x))        quantize(max_pool(x)) = max_pool(quantize(x))
    quantize(relu(x)) = max(quantize(x), zero_point)   quantize(concat(a, b)) = concat(quantize(a), quantize(b))

All exact, because quantize is monotone and works on each element by itself. Only a tensor whose every reader quantizes
it alike may be replaced so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import IRModule, relax

from ...op.base import OPS, call_attributes, constant, constant_value
from ..rewrite import bindings_of, consumers, emit_named, op_name, plain_attrs, substitute

# operator -> number of leading arguments that are data
MOVES: dict[str, int] = {
    "reshape": 1,
    "flatten": 1,
    "nn.batch_flatten": 1,
    "permute_dims": 1,
    "squeeze": 1,
    "expand_dims": 1,
    "broadcast_to": 1,
    "strided_slice": 1,
    "flip": 1,
    "tile": 1,
    "repeat": 1,
    "take": 1,
    "nn.pixel_shuffle": 1,
    "nn.max_pool1d": 1,
    "nn.max_pool2d": 1,
    "nn.max_pool3d": 1,
    "max": 1,
    "min": 1,
    "concat": 1,
    "stack": 1,
    "maximum": 2,
    "minimum": 2,
}


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

    def __call__(self, data: Any) -> relax.Call:
        return OPS["quantize"].call(data, self.scale, self.zero_point, **self.attributes)

    def value(self, array: np.ndarray) -> np.ndarray:
        """The integers of a constant."""
        args = constant_value(self.scale), constant_value(self.zero_point)
        return np.asarray(OPS["quantize"].reference(array.astype(np.float32), *args, **self.attributes))


def hoist_quantize(mod: IRModule) -> IRModule:
    """`mod` with every per-tensor quantize as close behind a computation as it can be, equal ones merged."""
    return _Hoist(mod["main"]).run()


class _Hoist:
    def __init__(self, function: relax.Function) -> None:
        self._function = function
        self._bindings = bindings_of(function)
        self._definitions = {binding.var: binding.value for binding in self._bindings}
        self._readers = consumers(function, self._bindings)
        self._builder = relax.BlockBuilder()
        self._environment: dict[Any, Any] = {}
        self._done: dict[Any, Any] = {}  # (tensor, parameters) -> its quantized variable

    def run(self) -> IRModule:
        function = self._function
        with self._builder.function("main", list(function.params), attrs=plain_attrs(function)):
            with self._builder.dataflow():
                for binding in self._bindings:
                    self._environment[binding.var] = self._bind(binding)
                result = self._builder.emit_output(substitute(function.body.body, self._environment))
            self._builder.emit_func_output(result)
        return relax.transform.DeadCodeElimination(["main"])(self._builder.get())

    def _bind(self, binding: relax.VarBinding) -> Any:
        if op_name(binding.value) == "qnn.quantize":
            quantize = Quantize(binding.value)
            if quantize.per_tensor:
                return self._push(binding.value.args[0], quantize, binding.var.name)
        value = substitute(binding.value, self._environment)
        return emit_named(self._builder, value, binding.var.name)

    def _push(self, tensor: Any, quantize: Quantize, name: str) -> Any:
        """quantize(tensor), moved up as far as it goes."""
        array = constant_value(tensor)
        if array is not None:
            return constant(quantize.value(array))
        key = (tensor, quantize.key)
        if key not in self._done:
            definition = self._definitions.get(tensor)
            moved = None
            if definition is not None and self._only_quantized(tensor, quantize):
                moved = self._over(definition, quantize)
            expr = quantize(self._environment.get(tensor, tensor)) if moved is None else moved
            self._done[key] = emit_named(self._builder, expr, name)
        return self._done[key]

    def _only_quantized(self, tensor: Any, quantize: Quantize) -> bool:
        """Whether all readers of `tensor` quantize it with these parameters, or are moves that end in such readers."""
        for index in self._readers[tensor]:
            if index >= len(self._bindings):
                return False
            reader = self._bindings[index]
            if op_name(reader.value) == "qnn.quantize":
                if Quantize(reader.value).key != quantize.key:
                    return False
            elif not (_is_movable(reader.value) and self._only_quantized(reader.var, quantize)):
                return False
        return True

    def _over(self, value: Any, quantize: Quantize) -> Any | None:
        """The operator on quantized data, or None when quantize has to stay behind it."""
        rule = _OVER.get(op_name(value))
        if rule is not None:
            return rule(value, lambda data: self._push(data, quantize, _name(data)), quantize)
        count = MOVES.get(op_name(value))
        if count is None:
            return None
        data = [self._push_fields(arg, quantize) for arg in value.args[:count]]
        rest = [substitute(arg, self._environment) for arg in value.args[count:]]
        return relax.Call(value.op, [*data, *rest], value.attrs, value.ty_args)

    def _push_fields(self, arg: Any, quantize: Quantize) -> Any:
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([self._push(field, quantize, _name(field)) for field in arg.fields])
        return self._push(arg, quantize, _name(arg))


def _name(expr: Any) -> str:
    return str(expr.name) if isinstance(expr, relax.Var) else "constant"


def _is_movable(value: Any) -> bool:
    return op_name(value) in MOVES or op_name(value) in _OVER


# ---- operators that need their bounds or fill values quantized ---------------------------------------------------

Push = Callable[[Any], Any]


def _relu(value: relax.Call, push: Push, quantize: Quantize) -> Any:
    return _clipped(push(value.args[0]), 0.0, np.inf, quantize)


def _clip(value: relax.Call, push: Push, quantize: Quantize) -> Any:
    low, high = (float(bound.value) for bound in value.args[1:])
    return _clipped(push(value.args[0]), low, high, quantize)


def _clipped(data: Any, low: float, high: float, quantize: Quantize) -> Any:
    bounds = [int(quantize.value(np.float32(bound)).item()) for bound in (low, high)]
    return relax.op.clip(data, *bounds)


def _pad(value: relax.Call, push: Push, quantize: Quantize) -> Any | None:
    if value.attrs.pad_mode != "constant":
        return relax.Call(value.op, [push(value.args[0])], value.attrs, value.ty_args)
    fill = int(quantize.value(np.float32(float(value.attrs.pad_value))).item())
    widths = [int(width) for width in value.attrs.pad_width]
    return relax.op.nn.pad(push(value.args[0]), widths, pad_mode="constant", pad_value=fill)


_OVER: dict[str, Callable[[relax.Call, Push, Quantize], Any]] = {
    "nn.relu": _relu,
    "nn.relu6": lambda value, push, quantize: _clipped(push(value.args[0]), 0.0, 6.0, quantize),
    "clip": _clip,
    "nn.pad": _pad,
}
