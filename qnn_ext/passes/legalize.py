"""Legalize: gives each target the dtypes its instructions want. QNN operators in, QNN operators out, same results.

x86 with VNNI      uint8 activations × int8 weights: an int8 tensor q becomes the uint8 tensor q + 128 with zero point
                   z + 128
ARM, CUDA          int8 × int8: a uint8 tensor q becomes the int8 tensor q − 128 with zero point z − 128
x86 without VNNI   int16 × int16. The kernels widen while they pad and pack, so that feature maps and weights stay
                   8 bits wide in memory and nothing is left to do here

An activation is shifted from its producer to its consumers: the shift is part of constants that are there anyway and
costs nothing. Only where a tensor enters the model, or meets an operator whose arithmetic is not free of the offset,
the shift is an operation of its own. uint8 weights become int8, 128 lower. `topi_int8.wanted` says what a target wants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import IRModule, relax
from tvm.target import Target

from .. import op as qnn
from ..op.base import OPS, call_attributes, constant, constant_value, definition_of
from ..topi_int8.wanted import operand_dtypes
from .rewrite import Emit, bindings_of, emit_named, op_name, plain_attrs, rewrite, substitute

PRODUCTS = ("qnn.conv2d", "qnn.conv2d_transpose", "qnn.dense", "qnn.contrib_dense_pack", "qnn.batch_matmul")
OFFSET = 128
_OFFSETS = {"uint8": OFFSET, "int8": -OFFSET}  # what an 8-bit value of the other dtype gains when it becomes this
_OTHER = {"uint8": "int8", "int8": "uint8"}


def legalize(mod: IRModule, target: Target) -> IRModule:
    """`mod` in the dtypes that the target's kernels take."""
    wanted = operand_dtypes(target)
    return mod if wanted is None else _ShiftedActivations(rewrite(mod, _signed_weights), *wanted).run()


# ---- weights -----------------------------------------------------------------------------------------------------


def _with_weight(call: relax.Call, weight: np.ndarray, zero_point: np.ndarray) -> relax.Call:
    args = list(call.args)
    args[1], args[3] = constant(weight), constant(zero_point.astype(np.int32))
    return relax.Call(call.op, args, call.attrs, call.ty_args)


def _weight(expr: relax.Expr) -> tuple[np.ndarray, np.ndarray] | None:
    """Weight and its zero point, when `expr` is a product and both are constant."""
    if op_name(expr) not in PRODUCTS:
        return None
    weight, zero_point = constant_value(expr.args[1]), constant_value(expr.args[3])
    return None if weight is None or zero_point is None else (weight, zero_point)


def _signed_weights(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
    found = _weight(expr)
    if found is None or found[0].dtype != np.uint8:
        return None
    weight, zero_point = found
    return _with_weight(expr, (weight.astype(np.int16) - OFFSET).astype(np.int8), zero_point - OFFSET)


# ---- activations -------------------------------------------------------------------------------------------------

# operator -> ((data argument, its zero point argument), …), of which one of the other signedness may be shifted
_CONSUMES: dict[str, tuple[tuple[int, int], ...]] = {
    "qnn.dequantize": ((0, 2),),
    "qnn.requantize": ((0, 2),),
    "qnn.conv2d": ((0, 2),),
    "qnn.conv2d_transpose": ((0, 2),),
    "qnn.dense": ((0, 2),),
    "qnn.contrib_dense_pack": ((0, 2),),
    "qnn.batch_matmul": ((0, 2),),
    "qnn.add": ((0, 3), (1, 5)),
    "qnn.subtract": ((0, 3), (1, 5)),
    "qnn.mul": ((0, 3), (1, 5)),
    "qnn.qlinear_add": ((0, 2), (1, 3)),
    "qnn.qlinear_mul": ((0, 2), (1, 3)),
    "qnn.qlinear_avg_pool": ((0, 2),),
    **{f"qnn.{name}": ((0, 2),) for name in ("mean", "sum", "max", "min", "normalize", "pool_sum")},
}
# operator -> the zero point argument of its result
_PRODUCES: dict[str, int] = {
    "qnn.quantize": 2,
    "qnn.requantize": 4,
    "qnn.add": 7,
    "qnn.subtract": 7,
    "qnn.mul": 7,
    "qnn.qlinear_add": 7,
    "qnn.qlinear_mul": 6,
    **{f"qnn.{name}": 4 for name in ("mean", "sum", "max", "min")},
}
# operators that only move values; the number of leading data arguments
_MOVES: dict[str, int] = {
    "reshape": 1,
    "permute_dims": 1,
    "squeeze": 1,
    "expand_dims": 1,
    "broadcast_to": 1,
    "strided_slice": 1,
    "flip": 1,
    "tile": 1,
    "repeat": 1,
    "take": 1,
    "split": 1,
    "nn.max_pool2d": 1,  # pads with the dtype's minimum, which moves along
    "concat": 1,
    "maximum": 2,
    "minimum": 2,
}


class _ShiftedActivations:
    """Walks `main` once; `_twins` holds the twin of every 8-bit variable of the other signedness that has one.

    The twin of q is q + offset in the wanted dtype: +128 from int8 to uint8, −128 from uint8 to int8.
    """

    def __init__(self, mod: IRModule, data_dtype: str, weight_dtype: str) -> None:
        self._main = mod["main"]
        self._mod = mod
        self._builder = relax.BlockBuilder()
        self._dtype, self._weight_dtype = data_dtype, weight_dtype
        self._other = _OTHER[data_dtype]
        self._offset = _OFFSETS[data_dtype]
        self._values: dict[Any, Any] = {}  # original variable -> its value as it was
        self._twins: dict[Any, Any] = {}  # original variable -> its twin
        self._moved_at_run_time: dict[Any, Any] = {}  # zero point of run time -> that of the twin
        self._wanted: set[Any] = set()

    def run(self) -> IRModule:
        bindings = bindings_of(self._main)
        self._wanted = self._wanted_twins(bindings)
        if not self._wanted and not any(self._shifted_second_operand(binding.value) for binding in bindings):
            return self._mod
        with self._builder.function("main", list(self._main.params), attrs=plain_attrs(self._main)):
            with self._builder.dataflow():
                for binding in bindings:
                    self._visit(binding)
                body = substitute(self._main.body.body, self._original_environment(self._main.body.body))
                result = self._builder.emit_output(body)
            self._builder.emit_func_output(result)
        return relax.transform.DeadCodeElimination(["main"])(self._builder.get())

    def _wanted_twins(self, bindings: Sequence[relax.VarBinding]) -> set[Any]:
        """The variables of the other dtype that a product reads, directly or behind operators that only move values."""
        wanted: set[Any] = set()
        for binding in reversed(bindings):
            value, name = binding.value, op_name(binding.value)
            if name in PRODUCTS:
                operands = [value.args[data] for data, zero in self._consumes(name) if _movable(name, value.args[zero])]
                wanted.update(var for operand in operands for var in _variables(operand) if self._is_other(var))
            elif binding.var in wanted and (
                name in (*_MOVES, "clip", "nn.pad") or isinstance(value, relax.TupleGetItem)
            ):
                wanted.update(_variables(value))
        return wanted

    # ---- the two faces of a variable -----------------------------------------------------------------------------

    def _original(self, var: Any) -> Any:
        """The variable's value in its own dtype."""
        if var not in self._values and var in self._twins:
            shift = qnn.requantize(self._twins[var], 1.0, self._offset, 1.0, 0, out_dtype=self._other)
            self._values[var] = self._builder.emit(shift)
        return self._values.get(var, var)

    def _twin(self, var: Any) -> Any:
        """The twin of a variable or constant of the other dtype, made here if its producer did not make it."""
        value = constant_value(var)
        if value is not None:
            return constant(self._shifted(value))
        if var not in self._twins:
            shift = qnn.requantize(self._original(var), 1.0, 0, 1.0, self._offset, out_dtype=self._dtype)
            self._twins[var] = self._builder.emit(shift)
        return self._twins[var]

    def _shifted(self, value: np.ndarray) -> np.ndarray:
        return (value.astype(np.int16) + self._offset).astype(self._dtype)

    def _original_environment(self, expr: Any) -> dict[Any, Any]:
        return {var: self._original(var) for var in _variables(expr)}

    def _is_other(self, expr: Any) -> bool:
        return isinstance(expr.ty, relax.TensorType) and str(expr.ty.dtype) == self._other

    # ---- rules ---------------------------------------------------------------------------------------------------

    def _visit(self, binding: relax.VarBinding) -> None:
        value, var = binding.value, binding.var
        for rule in (self._move, self._lookup, self._clip, self._pad, self._qnn):
            result = rule(value, var in self._wanted)
            if result is not None:
                expr, shifted = result
                bound = emit_named(self._builder, expr, var.name)
                (self._twins if shifted else self._values)[var] = bound
                return
        self._values[var] = emit_named(self._builder, substitute(value, self._original_environment(value)), var.name)

    def _move(self, value: Any, wanted: bool) -> tuple[Any, bool] | None:
        """Operators that move values work on the twin, when all their data has one."""
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self._twins:
            return relax.TupleGetItem(self._twins[value.tuple_value], value.index), True
        count = _MOVES.get(op_name(value))
        if count is None:
            return None
        data = [
            field for arg in value.args[:count] for field in (arg.fields if isinstance(arg, relax.Tuple) else [arg])
        ]
        if not any(item in self._twins for item in data) or not all(self._is_other(item) for item in data):
            return None
        twins = {item: self._twin(item) for item in data}
        rest = {var: self._original(var) for arg in value.args[count:] for var in _variables(arg)}
        return _replace(value, {**rest, **twins}), True

    def _lookup(self, value: Any, wanted: bool) -> tuple[Any, bool] | None:
        """A table is indexed from the dtype's minimum, so the twin of its input hits the same entry."""
        if op_name(value) != "qnn.table":
            return None
        data, table = value.args
        data = self._twin(data) if data in self._twins else self._original(data)
        entries = constant_value(table)
        if wanted and entries is not None and str(entries.dtype) == self._other:
            return qnn.table(data, constant(self._shifted(entries))), True
        return qnn.table(data, self._original(table)), False

    def _clip(self, value: Any, wanted: bool) -> tuple[Any, bool] | None:
        if op_name(value) != "clip" or value.args[0] not in self._twins:
            return None
        low, high = (int(bound.value) + self._offset for bound in value.args[1:])
        return relax.op.clip(self._twins[value.args[0]], low, high), True

    def _pad(self, value: Any, wanted: bool) -> tuple[Any, bool] | None:
        if op_name(value) != "nn.pad" or value.args[0] not in self._twins or value.attrs.pad_mode != "constant":
            return None
        widths = [int(width) for width in value.attrs.pad_width]
        fill = int(value.attrs.pad_value) + self._offset
        return relax.op.nn.pad(self._twins[value.args[0]], widths, pad_mode="constant", pad_value=fill), True

    def _qnn(self, value: Any, wanted: bool) -> tuple[Any, bool] | None:
        """QNN operators carry their zero points as arguments: constant ones move by the offset with the data."""
        definition = definition_of(value)
        if definition is None:
            return None
        name, args, attributes = op_name(value), list(value.args), call_attributes(value)
        for data, zero_point in self._consumes(name):
            if not self._is_other(args[data]) or not self._prefers(name, args[data]):
                continue
            if not _movable(name, args[zero_point]):
                continue
            args[data] = self._twin(args[data])
            args[zero_point] = self._moved_zero_point(args[zero_point])
        if self._shifted_second_operand(value):
            offset = _OFFSETS[self._weight_dtype]
            shift = qnn.requantize(self._original(args[1]), 1.0, 0, 1.0, offset, out_dtype=self._weight_dtype)
            args[1], args[3] = self._builder.emit(shift), _moved(args[3], offset)
        shifted = wanted and self._yields_twin(name, args, attributes)
        if shifted:
            args[_PRODUCES[name]] = self._moved_zero_point(args[_PRODUCES[name]])
            attributes["out_dtype"] = self._dtype
        # what was replaced above is no variable of the original function, so `_original` leaves it as it is
        return OPS[definition.name].call(*map(self._original, args), **attributes), shifted

    def _consumes(self, name: str) -> tuple[tuple[int, int], ...]:
        """`_CONSUMES`, and a product's second operand of run time where it wants the dtype of the first."""
        both = name == "qnn.batch_matmul" and self._weight_dtype == self._dtype
        return ((0, 2), (1, 3)) if both else _CONSUMES.get(name, ())

    def _shifted_second_operand(self, value: Any) -> bool:
        """Whether a product of two operands of run time wants its second in another dtype than the first, and it is
        not in it: x86's vpdpbusd takes uint8 × int8."""
        if op_name(value) != "qnn.batch_matmul" or self._weight_dtype == self._dtype:
            return False
        return str(value.args[1].ty.dtype) == _OTHER[self._weight_dtype] and constant_value(value.args[3]) is not None

    def _prefers(self, name: str, data: Any) -> bool:
        """Products always want the twin; other operators take it where it exists."""
        return name in PRODUCTS or data in self._twins

    def _yields_twin(self, name: str, args: list[Any], attributes: dict[str, Any]) -> bool:
        """Whether adding the offset to the output zero point adds exactly as much to the result.

        Relay's float routes add the zero point before they round, where it can change the last bit.
        """
        if name not in _PRODUCES or attributes.get("out_dtype") != self._other:
            return False
        if name == "qnn.quantize":
            return True  # its rounding is over before the zero point comes
        in_float = attributes.get("compute_dtype") in ("float32", "float64")
        relay = in_float and attributes["rounding"] in ("UPWARD", "TONEAREST")
        return constant_value(args[_PRODUCES[name]]) is not None and not relay

    def _moved_zero_point(self, zero_point: Any) -> Any:
        """The zero point of the twin; one of run time is moved once for all who read it."""
        if constant_value(zero_point) is not None:
            return _moved(zero_point, self._offset)
        if zero_point not in self._moved_at_run_time:
            moved = relax.op.add(self._original(zero_point), constant(np.int32(self._offset)))
            self._moved_at_run_time[zero_point] = self._builder.emit(moved)
        return self._moved_at_run_time[zero_point]


def _movable(name: str, zero_point: Any) -> bool:
    """Whether an operand's zero point can move: a constant one, or one of run time where the operator takes it."""
    return constant_value(zero_point) is not None or name in ("qnn.dense", "qnn.conv2d")


def _moved(zero_point: Any, offset: int) -> Any:
    value = constant_value(zero_point)
    assert value is not None, "only constant zero points move"
    return constant(value + np.int32(offset))


def _variables(expr: Any) -> list[Any]:
    """The variables an expression reads."""
    if isinstance(expr, relax.Var):
        return [expr]
    if isinstance(expr, relax.Call):
        return [var for arg in expr.args for var in _variables(arg)]
    if isinstance(expr, relax.Tuple):
        return [var for field in expr.fields for var in _variables(field)]
    if isinstance(expr, relax.TupleGetItem):
        return _variables(expr.tuple_value)
    return []


def _replace(expr: relax.Call, environment: dict[Any, Any]) -> relax.Call:
    """`substitute`, but for constants too."""

    def swap(arg: Any) -> Any:
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([swap(field) for field in arg.fields])
        return environment.get(arg, arg)

    return relax.Call(expr.op, [swap(arg) for arg in expr.args], expr.attrs, expr.ty_args)
