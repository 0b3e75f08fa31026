"""The oracle: interprets a module op by op with the NumPy references. Slow, exact, independent of passes and kernels.

QNN operators run their NumPy reference. Of the ordinary Relax operators around them the common shape-moving and integer
ones run in NumPy here; all others are compiled one by one, unscheduled, as TVM defines them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import IRModule, ir, relax, tirx

from .module import QnnModule, check_inputs, run_by_sample
from .numerics import division, elementary, extremes, float_rows, reference
from .numerics.bounded import bounded
from .op.base import array_of, call_attributes, constant_value, definition_of, has_float_rows, shape_of


class Interpreter:
    """Runs `main` of a QnnModule and keeps its state between calls, as the Engine does."""

    def __init__(self, module: QnnModule) -> None:
        self.module = module
        self.reset_state()

    def reset_state(self) -> None:
        """Set every state back to its initial value."""
        self._states = [state.initial for state in self.module.states]

    def __call__(self, *inputs: np.ndarray) -> np.ndarray | list[np.ndarray]:
        outputs = list(self.run(inputs).values())
        return outputs[0] if len(outputs) == 1 else outputs

    def run(self, inputs: Mapping[str, np.ndarray] | Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name. Raises InputError when the inputs do not fit the model."""
        arrays = check_inputs(inputs, self.module.inputs)
        results = run_by_sample(self._run_once, arrays, self.module.inputs)
        return {spec.name: value for spec, value in zip(self.module.outputs, results, strict=True)}

    def _run_once(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        results = interpret(self.module.ir, [*arrays, *self._states])
        count = len(self.module.outputs)
        self._states = results[count:]
        return results[:count]


def interpret(mod: IRModule, inputs: Sequence[np.ndarray], function: str = "main") -> list[np.ndarray]:
    """All results of `mod[function]` on the inputs, in order, as arrays."""
    result = _run_function(mod, mod[function], list(inputs))
    return list(result) if isinstance(result, tuple) else [result]


def _run_function(mod: IRModule, function: relax.Function, inputs: list[Any]) -> Any:
    environment: dict[Any, Any] = dict(zip(function.params, inputs, strict=True))
    for block in function.body.blocks:
        for binding in block.bindings:
            environment[binding.var] = _evaluate(mod, binding.value, environment)
    return _evaluate(mod, function.body.body, environment)


def _evaluate(mod: IRModule, expr: Any, environment: Mapping[Any, Any]) -> Any:
    if isinstance(expr, relax.Var):
        return environment[expr]
    value = constant_value(expr)
    if value is not None:
        return value
    if isinstance(expr, relax.Tuple):
        return tuple(_evaluate(mod, field, environment) for field in expr.fields)
    if isinstance(expr, relax.TupleGetItem):
        return _evaluate(mod, expr.tuple_value, environment)[expr.index]
    if isinstance(expr, relax.ShapeExpr):
        return tuple(int(dim) for dim in expr.values)
    if isinstance(expr, (tirx.IntImm, tirx.FloatImm)):
        return expr.value
    if isinstance(expr, relax.Call):
        args = [_evaluate(mod, arg, environment) for arg in expr.args]
        return _evaluate_call(mod, expr, args)
    raise NotImplementedError(f"the interpreter does not know {type(expr).__name__}")


def _evaluate_call(mod: IRModule, call: relax.Call, args: list[Any]) -> Any:
    definition = definition_of(call)
    if definition is not None:
        return definition.reference(*args, **call_attributes(call))
    if isinstance(call.op, ir.GlobalVar):
        return _run_function(mod, mod[call.op], args)
    rule = _NUMPY_RULES.get(call.op.name)
    return rule(call, *args) if rule is not None else _evaluate_with_tvm(call, args)


# ---- ordinary Relax operators in NumPy ---------------------------------------------------------------------------


def _binary(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda call, a, b: np.asarray(function(a, b)).astype(np.asarray(a).dtype)


def _extreme(of_floats: Callable[..., np.ndarray], of_integers: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda call, a, b: np.asarray((of_floats if a.dtype.kind == "f" else of_integers)(a, b))


def _clip(call: relax.Call, data: np.ndarray, low: float, high: float) -> np.ndarray:
    kind = data.dtype.type
    if data.dtype.kind == "f":
        return extremes.clip(data, low, high)
    return np.clip(data, kind(low), kind(high))


def _divide(call: relax.Call, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(a / b)


def _division(name: str) -> Callable[..., np.ndarray]:
    """Of integers for every divisor; of floats as TVM computes it."""

    def divide(call: relax.Call, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if a.dtype.kind in "iu":
            return division.NUMPY[name](a, b)
        return _divide(call, a, b) if name == "divide" else _evaluate_with_tvm(call, [a, b])

    return divide


def _shift(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """By a negative amount or too many bits as bit after bit: to zero, or of a negative number to −1."""

    def shift(call: relax.Call, x: np.ndarray, n: np.ndarray) -> np.ndarray:
        bits = x.dtype.itemsize * 8
        inside = (n >= 0) & (n < bits)
        amount = np.where(inside, n, 0).astype(x.dtype)
        emptied = (
            np.zeros_like(x) if function is np.left_shift else np.where(x < 0, ~np.zeros_like(x), np.zeros_like(x))
        )
        return np.where(inside, function(x, amount), emptied)

    return shift


def _cast(call: relax.Call, data: np.ndarray) -> np.ndarray:
    dtype = str(call.ty.dtype)
    if data.dtype.kind == "f" and dtype.startswith(("int", "uint")):
        return reference.truncate(data, dtype)
    with np.errstate(over="ignore"):
        return data.astype(dtype)


def _reduction(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def reduce(call: relax.Call, data: np.ndarray) -> np.ndarray:
        axis = None if call.attrs.axis is None else tuple(int(axis) for axis in call.attrs.axis)
        return np.asarray(function(data, axis=axis, keepdims=bool(call.attrs.keepdims)))

    return reduce


def _extreme_position(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """The first position; floats, where NaN has no order, as TVM compares them."""

    def evaluate(call: relax.Call, data: np.ndarray) -> np.ndarray:
        if data.dtype.kind == "f":
            return np.maximum(_evaluate_with_tvm(call, [data]), 0)  # −1 where all are infinite
        axis = None if call.attrs.axis is None else int(call.attrs.axis)
        return np.asarray(function(data, axis=axis, keepdims=bool(call.attrs.keepdims)))

    return evaluate


def _permute(call: relax.Call, data: np.ndarray) -> np.ndarray:
    return data.transpose(None if call.attrs.axes is None else [int(axis) for axis in call.attrs.axes])


def _take(call: relax.Call, data: np.ndarray, indices: np.ndarray) -> np.ndarray:
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    size = data.size if axis is None else data.shape[axis]
    places = np.asarray(indices, np.int64)
    places = places % size if call.attrs.mode == "wrap" else np.clip(places, 0, size - 1)
    return np.take(data, places, axis)


def _elementary(name: str) -> Callable[..., np.ndarray]:
    function = getattr(elementary, name)

    def evaluate(call: relax.Call, data: np.ndarray) -> np.ndarray:
        return elementary.on_arrays(function, data) if data.dtype == np.float32 else _evaluate_with_tvm(call, [data])

    return evaluate


def _softmax(call: relax.Call, data: np.ndarray) -> np.ndarray:
    return float_rows.softmax(data, int(call.attrs.axis)) if has_float_rows(call) else _evaluate_with_tvm(call, [data])


def _layer_norm(call: relax.Call, data: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    if not has_float_rows(call):
        return _evaluate_with_tvm(call, [data, gamma, beta])
    return float_rows.layer_norm(data, gamma, beta, float(call.attrs.epsilon))


def _sum(call: relax.Call, data: np.ndarray) -> np.ndarray:
    """Of integers modulo their bits; of floats one after the other, each addition rounded, as unscheduled code adds."""
    axes = range(data.ndim) if call.attrs.axis is None else sorted(int(axis) % data.ndim for axis in call.attrs.axis)
    if data.dtype.kind in "iu":
        return np.asarray(np.sum(data, axis=tuple(axes), dtype=data.dtype)).reshape(shape_of(call))
    if data.dtype.kind != "f":
        return np.asarray(_evaluate_with_tvm(call, [data]))
    rows = np.moveaxis(data, tuple(axes), range(-len(axes), 0)).reshape(*shape_of(call), -1)
    from_zero = np.concatenate([np.zeros((*rows.shape[:-1], 1), rows.dtype), rows], axis=-1)
    with np.errstate(all="ignore"):
        return np.asarray(np.add.accumulate(from_zero, axis=-1)[..., -1])


def _strided_slice(call: relax.Call, data: np.ndarray, axes: Any, begin: Any, end: Any, *strides: Any) -> np.ndarray:
    """Bounds count and end as those of Python's slices; a negative end of a negative stride as well."""
    window = [slice(None)] * data.ndim
    for axis, *bounds in zip(axes, begin, end, *strides, strict=True):
        window[axis] = slice(*bounds)
    return data[tuple(window)].reshape(shape_of(call))


def _split(call: relax.Call, data: np.ndarray) -> tuple[np.ndarray, ...]:
    parts = call.attrs.indices_or_sections
    axis = int(call.attrs.axis)
    if isinstance(parts, tirx.IntImm):  # equal parts but for the last
        size = data.shape[axis]
        parts = range(-(-size // int(parts)), size, -(-size // int(parts)))
    return tuple(np.split(data, [int(part) for part in parts], axis))


def _pad(call: relax.Call, data: np.ndarray) -> np.ndarray:
    if call.attrs.pad_mode != "constant":
        return np.asarray(_evaluate_with_tvm(call, [data]))
    widths = np.array([int(width) for width in call.attrs.pad_width]).reshape(-1, 2)
    return np.pad(data, widths, constant_values=np.asarray(float(call.attrs.pad_value)).astype(data.dtype))


def _square_root(call: relax.Call, data: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.sqrt(data)


_NUMPY_RULES: dict[str, Callable[..., Any]] = {
    "relax.add": _binary(np.add),
    "relax.subtract": _binary(np.subtract),
    "relax.multiply": _binary(np.multiply),
    "relax.maximum": _extreme(extremes.maximum, np.maximum),
    "relax.minimum": _extreme(extremes.minimum, np.minimum),
    **{f"relax.{name}": _division(name) for name in division.NUMPY},
    "relax.left_shift": _shift(np.left_shift),
    "relax.right_shift": _shift(np.right_shift),
    "relax.nn.relu6": lambda call, data: np.clip(data, np.zeros((), data.dtype), np.asarray(6, data.dtype)),
    "relax.abs": lambda call, data: np.abs(data),
    "relax.equal": lambda call, a, b: np.equal(a, b),
    "relax.not_equal": lambda call, a, b: np.not_equal(a, b),
    "relax.less": lambda call, a, b: np.less(a, b),
    "relax.less_equal": lambda call, a, b: np.less_equal(a, b),
    "relax.greater": lambda call, a, b: np.greater(a, b),
    "relax.greater_equal": lambda call, a, b: np.greater_equal(a, b),
    "relax.logical_and": lambda call, a, b: np.logical_and(a, b),
    "relax.logical_or": lambda call, a, b: np.logical_or(a, b),
    "relax.logical_not": lambda call, data: np.logical_not(data),
    "relax.negative": lambda call, data: -data,
    "relax.sqrt": _square_root,
    "relax.floor": lambda call, data: np.floor(data),
    "relax.ceil": lambda call, data: np.ceil(data),
    "relax.sum": _sum,
    "relax.where": lambda call, condition, a, b: np.where(condition, a, b),
    "relax.max": _reduction(np.max),
    "relax.min": _reduction(np.min),
    "relax.argmax": _extreme_position(np.argmax),
    "relax.argmin": _extreme_position(np.argmin),
    "relax.clip": _clip,
    "relax.take": _take,
    "relax.astype": _cast,
    "relax.reshape": lambda call, data, shape: data.reshape(shape_of(call)),
    "relax.expand_dims": lambda call, data: data.reshape(shape_of(call)),
    "relax.squeeze": lambda call, data: data.reshape(shape_of(call)),
    "relax.permute_dims": _permute,
    "relax.strided_slice": _strided_slice,
    "relax.split": _split,
    "relax.nn.pad": _pad,
    "relax.tile": lambda call, data: np.tile(data, [int(count) for count in call.attrs.repeats]),
    "relax.flip": lambda call, data: np.flip(data, int(call.attrs.axis)),
    "relax.stack": lambda call, fields: np.stack(fields, axis=int(call.attrs.axis or 0)),
    "relax.broadcast_to": lambda call, data, shape: np.broadcast_to(data, shape_of(call)),
    "relax.shape_of": lambda call, data: data.shape,
    "relax.shape_to_tensor": lambda call, shape: np.asarray(shape, np.int64),
    "relax.concat": lambda call, fields: np.concatenate(fields, axis=int(call.attrs.axis)),
    **{f"relax.{name}": _elementary(name) for name in ("exp", "erf", "tanh", "sigmoid")},
    "relax.nn.softmax": _softmax,
    "relax.nn.layer_norm": _layer_norm,
    "relax.nn.relu": lambda call, x: _extreme(extremes.maximum, np.maximum)(call, x, np.zeros((), x.dtype)),
    **{f"relax.nn.{name}": _elementary(name) for name in ("silu", "gelu", "gelu_tanh")},
}


# ---- everything else through TVM ---------------------------------------------------------------------------------

_MOST_COMPILED = 256  # each holds one to two megabytes
_compiled: dict[tvm_ffi.StructuralKey, relax.VirtualMachine] = {}


def _evaluate_with_tvm(call: relax.Call, args: list[Any]) -> Any:
    """Compile the single call, unscheduled, and run it. Constants among the arguments stay constants: some
    legalizations need them."""
    module, runtime_args = _single_call_module(call, args)
    key = tvm_ffi.StructuralKey(module)  # type: ignore[call-arg]
    if key not in _compiled:
        if len(_compiled) >= _MOST_COMPILED:
            _compiled.pop(next(iter(_compiled)))
        from .codegen import PIPELINE  # at import it would bring in all kernels

        safe = bounded(relax.transform.LegalizeOps()(module))
        executable = tvm.compile(safe, target="llvm", tir_pipeline=PIPELINE)
        _compiled[key] = relax.VirtualMachine(executable, tvm.cpu())
    return _to_numpy(_compiled[key]["main"](*runtime_args))


def _single_call_module(call: relax.Call, args: list[Any]) -> tuple[IRModule, list[Any]]:
    parameters: list[relax.Var] = []
    runtime_args: list[Any] = []

    def replace(expr: Any, value: Any) -> Any:
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([replace(field, item) for field, item in zip(expr.fields, value, strict=True)])
        if not isinstance(expr, relax.Var):
            return expr
        if isinstance(value, tuple):  # a variable bound to a tuple of tensors
            return relax.Tuple([parameter(item) for item in value])
        return parameter(value)

    def parameter(value: np.ndarray) -> relax.Var:
        var = relax.Var(f"p{len(parameters)}", relax.TensorType(value.shape, str(value.dtype)))
        parameters.append(var)
        runtime_args.append(tvm.runtime.tensor(np.asarray(value, order="C")))
        return var

    new_args = [replace(expr, value) for expr, value in zip(call.args, args, strict=True)]
    builder = relax.BlockBuilder()
    with builder.function("main", parameters):
        result = builder.emit(relax.Call(call.op, new_args, call.attrs, call.ty_args))
        builder.emit_func_output(result)
    return builder.get(), runtime_args


def _to_numpy(result: Any) -> Any:
    if hasattr(result, "numpy"):
        return array_of(result)
    return tuple(_to_numpy(item) for item in result)
