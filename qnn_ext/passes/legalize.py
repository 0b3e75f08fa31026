"""Legalize: gives each target the dtypes its instructions want. QNN operators in, QNN operators out, same results.

x86 with VNNI      uint8 activations × int8 weights. An int8 tensor q becomes the uint8 tensor q + 128 with zero
                   point z + 128, from its producer to its consumers: the shift is part of constants that are there
                   anyway and costs nothing. Only where a tensor enters the model, or meets an operator whose
                   arithmetic is not free of the offset, the shift is an operation of its own.
                   uint8 weights become int8, 128 lower
x86 without VNNI   int16 × int16. The kernels widen while they pad and pack, so that feature maps and weights stay
                   8 bits wide in memory and nothing is left to do here
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import IRModule, relax
from tvm.target import Target

from .. import op as qnn
from ..op.base import OPS, call_attributes, constant, constant_value, definition_of
from ..topi_int8.x86.intrin import INSTRUCTIONS
from .rewrite import Emit, bindings_of, emit_named, op_name, plain_attrs, rewrite, substitute

PRODUCTS = ("qnn.conv2d", "qnn.conv2d_transpose", "qnn.dense", "qnn.contrib_dense_pack", "qnn.batch_matmul")
OFFSET = 128


def legalize(mod: IRModule, target: Target) -> IRModule:
    """`mod` in the dtypes that the target's kernels take."""
    best = next((instruction for instruction in INSTRUCTIONS if instruction.available(target)), None)
    if best is not None and (best.data_dtype, best.weight_dtype) == ("uint8", "int8"):
        return _UnsignedActivations(rewrite(mod, _signed_weights)).run()
    return mod


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

# operator -> ((data argument, its zero point argument), …), of which an int8 one may become uint8
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


class _UnsignedActivations:
    """Walks `main` once; `_unsigned` holds the uint8 twin (q + 128) of every int8 variable that has one."""

    def __init__(self, mod: IRModule) -> None:
        self._main = mod["main"]
        self._mod = mod
        self._builder = relax.BlockBuilder()
        self._values: dict[Any, Any] = {}  # original variable -> its value as it was
        self._unsigned: dict[Any, Any] = {}  # original variable -> its uint8 twin
        self._wanted: set[Any] = set()

    def run(self) -> IRModule:
        bindings = bindings_of(self._main)
        self._wanted = _wanted_unsigned(bindings)
        if not self._wanted and not any(_unsigned_second_operand(binding.value) for binding in bindings):
            return self._mod
        with self._builder.function("main", list(self._main.params), attrs=plain_attrs(self._main)):
            with self._builder.dataflow():
                for binding in bindings:
                    self._visit(binding)
                body = substitute(self._main.body.body, self._signed_environment(self._main.body.body))
                result = self._builder.emit_output(body)
            self._builder.emit_func_output(result)
        return relax.transform.DeadCodeElimination(["main"])(self._builder.get())

    # ---- the two faces of a variable -----------------------------------------------------------------------------

    def _signed(self, var: Any) -> Any:
        """The variable's value in its own dtype."""
        if var not in self._values and var in self._unsigned:
            shift = qnn.requantize(self._unsigned[var], 1.0, OFFSET, 1.0, 0, out_dtype="int8")
            self._values[var] = self._builder.emit(shift)
        return self._values.get(var, var)

    def _as_unsigned(self, var: Any) -> Any:
        """The uint8 twin of an int8 variable or constant, made here if its producer did not make it."""
        value = constant_value(var)
        if value is not None:
            return constant((value.astype(np.int16) + OFFSET).astype(np.uint8))
        if var not in self._unsigned:
            shift = qnn.requantize(self._signed(var), 1.0, 0, 1.0, OFFSET, out_dtype="uint8")
            self._unsigned[var] = self._builder.emit(shift)
        return self._unsigned[var]

    def _signed_environment(self, expr: Any) -> dict[Any, Any]:
        return {var: self._signed(var) for var in _variables(expr)}

    # ---- rules ---------------------------------------------------------------------------------------------------

    def _visit(self, binding: relax.VarBinding) -> None:
        value, var = binding.value, binding.var
        for rule in (self._move, self._lookup, self._clip, self._pad, self._qnn):
            result = rule(value, var in self._wanted)
            if result is not None:
                expr, unsigned = result
                bound = emit_named(self._builder, expr, var.name)
                (self._unsigned if unsigned else self._values)[var] = bound
                return
        self._values[var] = emit_named(self._builder, substitute(value, self._signed_environment(value)), var.name)

    def _move(self, value: Any, wanted: bool) -> tuple[Any, bool] | None:
        """Operators that move values work on the twin, when all their data has one."""
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self._unsigned:
            return relax.TupleGetItem(self._unsigned[value.tuple_value], value.index), True
        count = _MOVES.get(op_name(value))
        if count is None:
            return None
        data = [
            field for arg in value.args[:count] for field in (arg.fields if isinstance(arg, relax.Tuple) else [arg])
        ]
        if not any(item in self._unsigned for item in data) or not all(_is_int8(item) for item in data):
            return None
        twins = {item: self._as_unsigned(item) for item in data}
        rest = {var: self._signed(var) for arg in value.args[count:] for var in _variables(arg)}
        return _replace(value, {**rest, **twins}), True

    def _lookup(self, value: Any, wanted: bool) -> tuple[Any, bool] | None:
        """A table is indexed from the dtype's minimum, so the twin of its input hits the same entry."""
        if op_name(value) != "qnn.table":
            return None
        data, table = value.args
        data = self._as_unsigned(data) if data in self._unsigned else self._signed(data)
        entries = constant_value(table)
        if wanted and entries is not None and entries.dtype == np.int8:
            return qnn.table(data, constant((entries.astype(np.int16) + OFFSET).astype(np.uint8))), True
        return qnn.table(data, self._signed(table)), False

    def _clip(self, value: Any, wanted: bool) -> tuple[Any, bool] | None:
        if op_name(value) != "clip" or value.args[0] not in self._unsigned:
            return None
        low, high = (int(bound.value) + OFFSET for bound in value.args[1:])
        return relax.op.clip(self._unsigned[value.args[0]], low, high), True

    def _pad(self, value: Any, wanted: bool) -> tuple[Any, bool] | None:
        if op_name(value) != "nn.pad" or value.args[0] not in self._unsigned or value.attrs.pad_mode != "constant":
            return None
        widths = [int(width) for width in value.attrs.pad_width]
        fill = int(value.attrs.pad_value) + OFFSET
        return relax.op.nn.pad(self._unsigned[value.args[0]], widths, pad_mode="constant", pad_value=fill), True

    def _qnn(self, value: Any, wanted: bool) -> tuple[Any, bool] | None:
        """QNN operators carry their zero points as arguments: constant ones move by 128 with the data."""
        definition = definition_of(value)
        if definition is None:
            return None
        name, args, attributes = op_name(value), list(value.args), call_attributes(value)
        for data, zero_point in _CONSUMES.get(name, ()):
            if not _is_int8(args[data]) or not self._prefers(name, args[data]):
                continue
            if constant_value(args[zero_point]) is not None:
                args[data] = self._as_unsigned(args[data])
                args[zero_point] = _moved(args[zero_point])
            elif name in ("qnn.dense", "qnn.conv2d"):  # with a zero point of run time
                args[data] = self._as_unsigned(args[data])
                args[zero_point] = self._builder.emit(
                    relax.op.add(self._signed(args[zero_point]), constant(np.int32(OFFSET)))
                )
        if _unsigned_second_operand(value):
            shift = qnn.requantize(self._signed(args[1]), 1.0, OFFSET, 1.0, 0, out_dtype="int8")
            args[1], args[3] = self._builder.emit(shift), _moved(args[3], -OFFSET)
        unsigned = wanted and self._yields_unsigned(name, args, attributes)
        if unsigned:
            args[_PRODUCES[name]] = _moved(args[_PRODUCES[name]])
            attributes["out_dtype"] = "uint8"
        # what was replaced above is no variable of the original function, so `_signed` leaves it as it is
        return OPS[definition.name].call(*map(self._signed, args), **attributes), unsigned

    def _prefers(self, name: str, data: Any) -> bool:
        """Products always want the twin; other operators take it where it exists."""
        return name in PRODUCTS or data in self._unsigned

    def _yields_unsigned(self, name: str, args: list[Any], attributes: dict[str, Any]) -> bool:
        """Whether adding 128 to the output zero point adds exactly 128 to the result.

        Relay's float routes add the zero point before they round, where it can change the last bit.
        """
        if name not in _PRODUCES or attributes.get("out_dtype") != "int8":
            return False
        in_float = attributes.get("compute_dtype") in ("float32", "float64")
        relay = in_float and attributes["rounding"] in ("UPWARD", "TONEAREST")
        quantize = name == "qnn.quantize"  # its rounding is over before the zero point comes
        return constant_value(args[_PRODUCES[name]]) is not None and (quantize or not relay)


def _wanted_unsigned(bindings: Sequence[relax.VarBinding]) -> set[Any]:
    """The int8 variables that a product reads, directly or behind operators that only move values."""
    wanted: set[Any] = set()
    for binding in reversed(bindings):
        value, name = binding.value, op_name(binding.value)
        if name in PRODUCTS:
            wanted.update(var for var in _variables(value.args[0]) if _is_int8(var))
        elif binding.var in wanted and (name in (*_MOVES, "clip", "nn.pad") or isinstance(value, relax.TupleGetItem)):
            wanted.update(_variables(value))
    return wanted


def _unsigned_second_operand(value: Any) -> bool:
    """Whether a product of two operands of run time has an uint8 one where the instruction takes int8."""
    if op_name(value) != "qnn.batch_matmul" or str(value.args[1].ty.dtype) != "uint8":
        return False
    return constant_value(value.args[3]) is not None


def _is_int8(expr: Any) -> bool:
    return isinstance(expr.ty, relax.TensorType) and str(expr.ty.dtype) == "int8"


def _moved(zero_point: Any, offset: int = OFFSET) -> Any:
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
