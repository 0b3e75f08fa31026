"""Fold: simplifies the constant parts of a float model before its ranges are measured.

constants     operators on constants are computed; those that change nothing are removed
batch norm    becomes one multiplication and addition per channel: γ·(x − μ) / √(σ² + ε) + β
affine        (x·W + b)·m + a = x·(W·m) + (b·m + a): linear operators after a product go into weight and bias,
              a factor before it into the weight
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import IRModule, relax

from ..module import QnnModule
from ..op.arguments import data_of, factors_of, with_data
from ..op.base import constant, constant_value, normalize_axis, shape_of
from ..op.cost import is_quick
from ..op.relax_table import traits_of
from ..passes.bodies import everywhere
from ..passes.qdq_to_integer.hoist import evaluate
from ..passes.rewrite import Emit, Rebuild, consumers, emit_named, op_name, operands, rewrite
from .config import QConfig

_AFFINE = ("add", "subtract", "multiply", "divide")
# a constant may have this many more elements than the constants it is computed from
_MOST_GROWTH = 4096


def fold(module: QnnModule, config: QConfig | None = None) -> QnnModule:
    """`module` (float32) with constants folded and every linear operator after a product merged into it.

    The results are the module's up to float32 rounding. Names of layers and tensors are kept. The configuration is not
    used: the argument only gives all stages the same signature.
    """

    def change(mod: IRModule) -> IRModule:
        return _Affine(rewrite(_without_batch_norm(mod), _simplified)).run()

    return replace(module, ir=everywhere(module.ir, change))


# ---- constants ---------------------------------------------------------------------------------------------------


def _simplified(value: relax.Expr, emit: Emit) -> relax.Expr | None:
    """The value of a call on constants, or the operand of one that changes nothing."""
    if not isinstance(value, relax.Call):
        return None
    folded = _computed(value)
    return _unchanged(value) if folded is None else folded


def _computed(call: relax.Call) -> relax.Expr | None:
    tensors = [arg for arg in operands(call) if isinstance(getattr(arg, "ty", None), relax.TensorType)]
    if not op_name(call) or op_name(call).startswith("qnn.") or not tensors:
        return None
    arrays = [array for array in map(constant_value, tensors) if array is not None]
    if len(arrays) < len(tensors):
        return None
    ty, size = _type(call), sum(array.size for array in arrays)
    if not isinstance(ty, relax.TensorType):
        return None
    result = math.prod(int(n) for n in ty.shape)
    if result > size + _MOST_GROWTH or not is_quick(call, result, arrays):
        return None
    return constant(evaluate(call))


def _unchanged(call: relax.Call) -> relax.Expr | None:
    if not call.args:
        return None
    name, data = op_name(call), data_of(call)
    if traits_of(call).reshapes or name == "broadcast_to":
        return data if _typed(call) == _typed(data) else None
    if traits_of(call).permutes:
        axes = call.attrs.axes
        return data if axes is not None and [int(axis) for axis in axes] == sorted(map(int, axes)) else None
    if name == "astype":
        return data if str(call.attrs.dtype) == str(data.ty.dtype) else None
    if name in _AFFINE:
        return _neutral(call, name)
    return None


def _neutral(call: relax.Call, name: str) -> relax.Expr | None:
    """The x in x·1, x / 1, x + 0 and x − 0."""
    x1, x2 = call.args
    for known, other in ((x1, x2), (x2, x1)) if name in ("add", "multiply") else ((x2, x1),):
        array = constant_value(known)
        if array is None or array.dtype != np.float32 or not isinstance(other, relax.Var):
            continue
        neutral = 1.0 if name in ("multiply", "divide") else 0.0
        if (array == neutral).all() and np.broadcast_shapes(array.shape, shape_of(other)) == shape_of(other):
            return other
    return None


def _type(expr: Any) -> Any:
    """The type of an expression, inferred where it was just built."""
    return expr.ty if isinstance(expr.ty, relax.TensorType) else relax.BlockBuilder().normalize(expr).ty


def _typed(expr: Any) -> tuple[Any, ...]:
    ty = _type(expr)
    return tuple(str(dim) for dim in ty.shape), str(ty.dtype)


# ---- batch norm --------------------------------------------------------------------------------------------------


def _without_batch_norm(mod: IRModule) -> IRModule:
    """The module with every nn.batch_norm with constant parameters as a multiplication and an addition."""
    results: dict[Any, list[Any]] = {}

    def rule(value: relax.Expr, emit: Emit) -> relax.Expr | None:
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in results:
            return results[value.tuple_value][value.index]
        if op_name(value) != "nn.batch_norm":
            return None
        data, *parameters = value.args
        vectors = [constant_value(parameter) for parameter in parameters]
        if any(vector is None for vector in vectors):
            return None
        shape = [1] * len(shape_of(data))
        shape[normalize_axis(int(value.attrs.axis), len(shape))] = -1
        gamma, beta, mean, variance = (np.asarray(vector, np.float64).reshape(shape) for vector in vectors)
        gamma = gamma if value.attrs.scale else np.ones_like(gamma)
        beta = beta if value.attrs.center else np.zeros_like(beta)
        factor = gamma / np.sqrt(variance + float(value.attrs.epsilon))
        scaled = emit(relax.op.multiply(data, constant(factor.astype(np.float32))))
        real = emit(relax.op.add(scaled, constant((beta - mean * factor).astype(np.float32))))
        _, _, *statistics = parameters
        results_of_call = [real, *statistics]
        var = emit(relax.Tuple(results_of_call))
        results[var] = results_of_call
        return var

    return rewrite(mod, rule)


# ---- what is linear behind a product -----------------------------------------------------------------------------


@dataclass
class _Linear:
    """x·(W·factor) + offset, where factor and offset are scalars or per output channel, in float64."""

    factor: np.ndarray
    offset: np.ndarray
    end: int  # the last binding it stands for
    steps: list[int]


class _Affine:
    """One walk that emits each product once, with all linear operators around it merged."""

    def __init__(self, mod: IRModule) -> None:
        self._new = Rebuild(mod["main"])
        self._bindings = self._new.bindings
        self._readers = consumers(self._new.function, self._bindings)
        self._index = {binding.var: index for index, binding in enumerate(self._bindings)}

    def run(self) -> IRModule:
        """The module; linear operators that are no longer read are removed."""
        new, done = self._new, set()
        with new.main():
            for index, binding in enumerate(self._bindings):
                if index in done:
                    continue
                linear = self._linear(index)
                if linear is None:
                    new.keep(binding)
                else:
                    self._emit(index, self._in_front(new.substituted(binding.value), binding.value), linear)
                    done.update(linear.steps)
        return new.live_module()

    def _linear(self, index: int) -> _Linear | None:
        """The linear operators after the binding, if it is a product with a constant weight."""
        call = self._bindings[index].value
        if traits_of(call).product is None:
            return None
        _, weight = factors_of(call)
        if constant_value(weight) is None or str(weight.ty.dtype) != "float32" or len(shape_of(weight)) < 2:
            return None
        shape = shape_of(self._bindings[index].var)
        axis = output_axis(call, len(shape))
        found = _Linear(np.ones(1), np.zeros(1), index, [])
        while (step := self._step(found.end, shape, axis)) is not None:
            name, values, reader = step
            if name in ("multiply", "divide"):
                factor = values if name == "multiply" else 1.0 / values
                found.factor, found.offset = found.factor * factor, found.offset * factor
            else:
                found.offset = found.offset + (values if name == "add" else -values)
            found.end = reader
            found.steps.append(reader)
        return found

    def _step(self, index: int, shape: Sequence[int], axis: int) -> tuple[str, np.ndarray, int] | None:
        """The only reader of a binding, if it is linear per channel: its operator, constant and index."""
        var, readers = self._bindings[index].var, self._readers[self._bindings[index].var]
        if len(readers) != 1 or readers[0] >= len(self._bindings):
            return None
        call = self._bindings[readers[0]].value
        name = op_name(call)
        if name not in _AFFINE:
            return None
        x1, x2 = call.args
        first = var.same_as(x1)
        if not first and name in ("subtract", "divide"):
            return None
        array = constant_value(x2 if first else x1)
        values = None if array is None else _per_channel(array, shape, axis)
        return None if values is None or not np.isfinite(values).all() else (name, values, readers[0])

    def _in_front(self, call: relax.Call, old: relax.Call) -> tuple[relax.Call, float]:
        """The product with its data before a factor that only it reads, and that factor."""
        scaled = data_of(old)
        source = self._index.get(scaled)
        before: Any = None if source is None else self._bindings[source].value
        if op_name(before) not in ("multiply", "divide") or len(self._readers[scaled]) != 1:
            return call, 1.0
        x1, x2 = before.args
        behind = constant_value(x2) is not None
        data, array = (x1, constant_value(x2)) if behind else (x2, constant_value(x1))
        if array is None or array.size != 1 or (op_name(before) == "divide" and not behind):
            return call, 1.0
        if shape_of(data) != shape_of(scaled) or not isinstance(data, relax.Var):
            return call, 1.0
        factor = float(array.reshape(()))
        product = with_data(call, self._new.substituted(data))
        return product, 1.0 / factor if op_name(before) == "divide" else factor

    def _emit(self, index: int, product: tuple[relax.Call, float], linear: _Linear) -> None:
        call, front = product
        binding, last = self._bindings[index], self._bindings[linear.end]
        data, matrix = factors_of(call)
        weight = constant_value(matrix)
        assert weight is not None
        factor = linear.factor * front
        if (factor != 1.0).any():
            call = with_data(call, data, constant(_scaled(weight, factor, call)))
        result = emit_named(self._new.builder, call, binding.var.name)
        if linear.steps and not (linear.offset == 0).all():
            shape = [1] * len(shape_of(binding.var))
            shape[output_axis(call, len(shape))] = linear.offset.size
            offset = constant(linear.offset.astype(np.float32).reshape(shape))
            result = emit_named(self._new.builder, relax.op.add(result, offset), last.var.name)
        self._new.environment[last.var] = result


def output_axis(call: relax.Call, ndim: int) -> int:
    """The axis of the output channels in a product's result of `ndim` dimensions."""
    layout = getattr(call.attrs, "data_layout", None)
    return ndim - 1 if layout is None else str(layout).index("C")


def _per_channel(array: np.ndarray, shape: Sequence[int], axis: int) -> np.ndarray | None:
    """A scalar as one value, a constant that varies only along the channels as a vector; None for any other."""
    full = (1,) * (len(shape) - array.ndim) + array.shape
    if len(full) != len(shape) or any(n != 1 and (i != axis or n != shape[i]) for i, n in enumerate(full)):
        return None
    return array.reshape(-1).astype(np.float64)


def _scaled(weight: np.ndarray, factor: np.ndarray, call: relax.Call) -> np.ndarray:
    """The weight with each output channel multiplied by its factor."""
    if factor.size == 1:
        return (weight * factor.reshape(())).astype(np.float32)
    layout = getattr(call.attrs, "kernel_layout", None)
    axis = weight.ndim - 1 if layout is None else str(layout).index("O")
    groups = int(getattr(call.attrs, "groups", 1))
    if op_name(call).endswith("_transpose") and groups > 1:  # O / groups channels for each group of inputs
        inputs = str(layout).index("I")
        parts = np.split(weight, groups, axis=inputs)
        factors = np.split(factor, groups)
        return np.concatenate([_along(p, f, axis) for p, f in zip(parts, factors, strict=True)], axis=inputs)
    return _along(weight, factor, axis)


def _along(weight: np.ndarray, factor: np.ndarray, axis: int) -> np.ndarray:
    shape = [1] * weight.ndim
    shape[axis] = -1
    return (weight * factor.reshape(shape)).astype(np.float32)
