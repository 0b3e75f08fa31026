"""From Relay's expressions to a QnnModule: every call is emitted as Relax and `R.qnn` operators, operands first."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

from tvm import relax, tirx

from ..errors import InputError, QnnError, ShapeError
from ..frontends.assembly import Assembly
from ..frontends.batch import with_open_batch
from ..frontends.building import blaming, distinct, reason
from ..limits import limited
from ..module import QnnModule, TensorSpec
from ..op.base import constant, shape_of
from . import expressions
from .absent import NotHonouredError
from .arrays import array_of
from .expressions import (
    Any_,
    Call,
    Constant,
    Expr,
    Function,
    FuncType,
    Op,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Var,
)
from .inference import inferred_shape
from .requantization import UNSET, resolve


@dataclass(frozen=True)
class Context:
    """What an operator's rule emits into.

    emit:          binds an expression, so that its type is known; computes it now if its operands are constant
    compute_dtype: of requantizations that name none
    """

    emit: Callable[[Any], Any]
    compute_dtype: str

    def rounding(self, rounding: str = UNSET, compute_dtype: str = UNSET) -> dict[str, str]:
        """The arguments `rounding` and `compute_dtype` of our operators."""
        return resolve(rounding, compute_dtype, self.compute_dtype)


OPERATORS: dict[str, Callable[..., Any]] = {}
"""Relay's name of an operator -> its rule (context, *operands, **attributes) -> expression, or a list for a tuple."""


def operator(name: str, operands: int = 1) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a rule, and makes it the function that builds calls of the operator: `rule(context, data, axis=1)`
    becomes `function(data, axis=1)`, whose first `operands` arguments are expressions and the others attributes."""

    def register(rule: Callable[..., Any]) -> Callable[..., Any]:
        OPERATORS[name] = rule
        parameters = list(inspect.signature(rule).parameters.values())[1:]
        signature = inspect.Signature(parameters)
        names = [parameter.name for parameter in parameters[:operands]]

        @wraps(rule)
        def build(*args: Any, **values: Any) -> Call:
            bound = signature.bind(*args, **values)
            bound.apply_defaults()
            attributes = dict(bound.arguments)
            return Call(Op(name), [attributes.pop(operand) for operand in names], **attributes)

        build.__signature__ = signature  # type: ignore[attr-defined]
        del build.__wrapped__  # type: ignore[attr-defined]
        return build

    return register


MODEL = "qnn_ext.model"
"""The operator whose one call stands for an imported model: attribute `module`, a QnnModule; operands, its inputs."""


def lower(
    function: Function,
    params: Mapping[str, Any] | None = None,
    compute_dtype: str = "int64",
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> QnnModule:
    """A function as a module.

    params:        values of parameters that are weights; other names are ignored, as Relay did
    compute_dtype: of requantizations that name none
    shapes:        parameter -> shape, where the function leaves dimensions open (relay.Any). Without, relay.Any as the
                   first dimension of every input stands for batches of any size

    Raises ShapeError, which names the operator, UnsupportedOperatorError, InputError for parameters that do not fit.
    """
    model = _imported(function)
    if model is not None and not params:
        return model
    if not shapes and _open_batch(function, params or {}):
        remedy = "relay.vm.compile compiles for each shape, or give relay.var a number in place of relay.Any"
        return with_open_batch(lambda size: _lowered(function, params, compute_dtype, _batches(function, size)), remedy)
    return _lowered(function, params, compute_dtype, shapes)


def _lowered(
    function: Function, params: Mapping[str, Any] | None, compute_dtype: str, shapes: Mapping[str, Sequence[int]] | None
) -> QnnModule:
    infer_parameters(function, params, shapes)
    return _Lowering(function, params or {}, compute_dtype, shapes or {}).run()


def _open_batch(function: Function, params: Mapping[str, Any]) -> bool:
    """Whether relay.Any is the first dimension of every input, and no other."""
    types = [param.type_annotation for param in function.params if param.name_hint not in params]
    shapes = [[isinstance(dim, Any_) for dim in given.shape] for given in types if given is not None]
    return bool(shapes) and all(dims[:1] == [True] and not any(dims[1:]) for dims in shapes)


def _batches(function: Function, size: int) -> dict[str, Sequence[int]]:
    """The shapes of the inputs for this number of samples."""
    names = distinct([param.name_hint for param in function.params])
    return {
        name: (size, *param.type_annotation.shape[1:])
        for param, name in zip(function.params, names, strict=True)
        if param.type_annotation and any(isinstance(dim, Any_) for dim in param.type_annotation.shape)
    }


def _imported(function: Function) -> QnnModule | None:
    """The imported model that a function consists of, unchanged."""
    body = function.body
    if not isinstance(body, Call) or body.op != Op(MODEL) or len(body.args) != len(function.params):
        return None
    same = all(arg is param for arg, param in zip(body.args, function.params, strict=True))
    return body.attrs.module if same else None


def infer_parameters(
    function: Function, params: Mapping[str, Any] | None = None, shapes: Mapping[str, Sequence[int]] | None = None
) -> None:
    """Give variables without a type the one that follows from the operators that read them, or from their value."""
    if any(param.type_annotation is None for param in function.params):
        _Inference(function, params or {}, "int64", shapes or {}).run()


class _Lowering:
    def __init__(
        self,
        function: Function,
        params: Mapping[str, Any],
        compute_dtype: str,
        shapes: Mapping[str, Sequence[int]],
    ) -> None:
        self.function, self.shapes = function, shapes
        self.params = {name: array_of(value) for name, value in params.items()}
        self.assembly = Assembly()
        self.context = Context(self._emit, compute_dtype)
        self.specs: list[TensorSpec] = []

    def _emit(self, expr: Any) -> Any:
        return self.assembly.emit(expr)

    def run(self) -> QnnModule:
        with limited(None):
            names = distinct([param.name_hint for param in self.function.params])
            values: dict[int, Any] = {
                id(param): self._parameter(param, name) for param, name in zip(self.function.params, names, strict=True)
            }
            ir = self.assembly.module(lambda: self._results(values))
        fields = ir["main"].ret_ty.fields
        outputs = tuple(
            TensorSpec(f"output_{index}", tuple(map(int, field.shape)), str(field.dtype))
            for index, field in enumerate(fields)
        )
        return QnnModule(ir, tuple(self.specs), outputs, source="relay")

    def _parameter(self, param: Var, name: str) -> Any:
        given = param.type_annotation
        if given is None:
            raise ShapeError(f"relay.var({name!r}) has no type: give it shape= and dtype=")
        shape: Sequence[Any] = self.shapes.get(name, given.shape)
        dtype = given.dtype
        if name in self.params:
            array = self.params[name]
            if array.dtype != dtype or not _fits(array.shape, given.shape):
                raise InputError(f"params: {name!r} must be {dtype} {given.shape}, found {array.dtype} {array.shape}")
            return constant(array)
        if any(isinstance(dim, Any_) for dim in shape):
            raise ShapeError(
                f"input {name!r} has an open dimension (relay.Any), of which a graph only takes the first of every "
                'input: compile with relay.vm.compile or relay.create_executor("vm", …), which fix shapes at the first '
                "call"
            )
        self.specs.append(TensorSpec(name, tuple(map(int, shape)), dtype))
        return self.assembly.input(name, [tirx.IntImm("int64", int(dim)) for dim in shape], dtype)

    def _operands(self, call: Call, values: dict[int, Any]) -> list[Any]:
        return [values[id(arg)] for arg in call.args]

    def _results(self, values: dict[int, Any]) -> list[Any]:
        return _flat(self._value(self.function.body, values))

    def _value(self, root: Expr, values: dict[int, Any]) -> Any:
        for expr in expressions.post_order(root):
            if id(expr) not in values:
                values[id(expr)] = self._lowered(expr, values)
        return values[id(root)]

    def _lowered(self, expr: Expr, values: dict[int, Any]) -> Any:
        if isinstance(expr, Constant):
            return constant(expr.data.numpy())
        if isinstance(expr, Tuple):
            return [values[id(field)] for field in expr.fields]
        if isinstance(expr, TupleGetItem):
            return self._item(values[id(expr.tuple_value)], expr)
        if isinstance(expr, Call):
            return self._call(expr, self._operands(expr, values))
        if isinstance(expr, Var):
            raise ShapeError(f"variable {expr.name_hint!r} is not a parameter of the function that reads it")
        raise NotHonouredError(
            f"a {type(expr).__name__} is no value that the façade computes: control flow comes in with imported models"
        )

    def _item(self, fields: Any, expr: TupleGetItem) -> Any:
        if not isinstance(fields, list):
            raise ShapeError(f"{expr!r}: the expression has one result and is no tuple")
        return fields[expr.index]

    def _call(self, call: Call, args: list[Any]) -> Any:
        if isinstance(call.op, Function):
            inner = dict(zip(map(id, call.op.params), args, strict=True))
            return self._value(call.op.body, inner)
        if not isinstance(call.op, Op) or call.op.name not in OPERATORS:
            name = call.op.name if isinstance(call.op, Op) else type(call.op).__name__
            raise NotHonouredError(f"relay.{name} is not part of qnn_ext's façade; see MIGRATION.md for what is")
        label = f"relay.{call.op.name}"
        self.assembly.layer = call.op.name
        with blaming(label, lambda text, error: _mismatch(text, error)):
            result = OPERATORS[call.op.name](self.context, *args, **vars(call.attrs))
            return [self._emit(item) for item in result] if isinstance(result, list) else self._emit(result)


class _Inference(_Lowering):
    """A lowering that only finds the types of variables."""

    def _parameter(self, param: Var, name: str) -> Any:
        if param.type_annotation is None and name in self.params:
            array = self.params[name]
            param.type_annotation = TensorType(array.shape, str(array.dtype))
        return param if param.type_annotation is None else super()._parameter(param, name)

    def _operands(self, call: Call, values: dict[int, Any]) -> list[Any]:
        for index, arg in enumerate(call.args):
            if isinstance(arg, Var) and arg.type_annotation is None and isinstance(call.op, Op):
                data = values[id(call.args[0])]
                if isinstance(data, Var):
                    continue  # `_parameter` of the lowering to come says what is missing
                with blaming(f"relay.{call.op.name}", lambda text, error: _mismatch(text, error)):
                    shape = inferred_shape(call.op.name, index, vars(call.attrs), shape_of(data))
                if shape is not None:
                    arg.type_annotation = TensorType(shape, str(data.ty.dtype))
                    values[id(arg)] = self._parameter(arg, arg.name_hint)
        operands = super()._operands(call, values)
        for operand in operands:
            if isinstance(operand, Var):
                super()._parameter(operand, operand.name_hint)
        return operands


def _flat(result: Any) -> list[Any]:
    """The tensors of a result, which may be a tuple of tuples, in order."""
    return [item for field in result for item in _flat(field)] if isinstance(result, list) else [result]


def _mismatch(label: str, error: Exception) -> QnnError:
    return ShapeError(f"{label}: operands and attributes do not match: {reason(error)}")


def _fits(shape: Sequence[int], declared: Sequence[Any]) -> bool:
    return len(shape) == len(declared) and all(
        isinstance(dim, Any_) or dim == size for dim, size in zip(declared, shape, strict=True)
    )


def _module_of(expr: Expr) -> QnnModule:
    return lower(expr if isinstance(expr, Function) else Function(expressions.free_vars(expr), expr))


def type_of(expr: Expr) -> TensorType | TupleType | FuncType:
    """The type of an expression, found by lowering what it is computed from."""
    if isinstance(expr, Var) and expr.type_annotation is not None:
        return expr.type_annotation
    types = [TensorType(spec.of_batch(Any_()), spec.dtype) for spec in _module_of(expr).outputs]
    single = len(types) == 1 and not isinstance(expr.body if isinstance(expr, Function) else expr, Tuple)
    result = types[0] if single else TupleType(types)
    return FuncType([param.type_annotation for param in expr.params], result) if isinstance(expr, Function) else result


expressions.on_lowering(type_of, lambda expr: _module_of(expr).script())


def split_results(context: Context, call: relax.Call) -> list[Any]:
    """The results of an operator that has several."""
    bound = context.emit(call)
    return [relax.TupleGetItem(bound, index) for index in range(len(bound.ty.fields))]


def named_operator(op_name: str) -> Op:
    """relay.op.get: an operator by its name. Raises ValueError if the façade does not have it."""
    if op_name not in OPERATORS:
        raise ValueError(f"there is no operator {op_name!r} in qnn_ext's façade; it has {', '.join(sorted(OPERATORS))}")
    return Op(op_name)
