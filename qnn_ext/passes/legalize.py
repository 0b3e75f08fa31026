"""Legalize: gives each target the dtypes its instructions take. QNN operators in, QNN operators out, same results.

x86 with VNNI      uint8 activations × int8 weights: an int8 tensor q becomes the uint8 tensor q + 128 with zero point
                   z + 128
ARM, CUDA          int8 × int8: a uint8 tensor q becomes the int8 tensor q − 128 with zero point z − 128
x86 without VNNI   int16 × int16. The kernels widen while they pad and pack, so feature maps and weights stay 8 bits
                   wide in memory and there is nothing to do here

An activation stays shifted from its producer to its consumers: the shift becomes part of existing constants and costs
nothing. It is a separate operation only where a tensor enters the model, or reaches an operator whose arithmetic
depends on the offset. uint8 weights become int8, 128 lower. `targets.features` knows which dtypes a target takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import IRModule, relax
from tvm.target import Target

from .. import op as qnn
from ..op.arguments import data_of
from ..op.base import OPS, call_attributes, constant, constant_value, definition_of
from ..op.relax_table import traits_of
from ..op.table import TABLE
from ..op.traits import Data, Kind, Traits
from ..targets.features import operand_dtypes
from .layout.propagation import rebuild
from .rewrite import Emit, Rebuild, emit_named, rewrite, substitute

OFFSET = 128
_OFFSETS = {"uint8": OFFSET, "int8": -OFFSET}  # added to a value of the other 8-bit dtype when it becomes this one
_OTHER = {"uint8": "int8", "int8": "uint8"}


def legalize(mod: IRModule, target: Target) -> IRModule:
    """`mod` in the dtypes that the target's kernels take."""
    wanted = operand_dtypes(target)
    return mod if wanted is None else _ShiftedActivations(rewrite(mod, _signed_weights), *wanted).run()


def _is_product(value: Any) -> bool:
    """Whether a call is a product of quantized operands."""
    return definition_of(value) is not None and traits_of(value).kind is Kind.PRODUCT


# ---- weights -----------------------------------------------------------------------------------------------------


def _signed_weights(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
    """A product whose second operand is a uint8 constant, with that constant as int8."""
    if not _is_product(expr):
        return None
    traits = traits_of(expr)
    position, zero_position = _positions(traits, traits.data[1])
    weight, zero_point = constant_value(expr.args[position]), constant_value(expr.args[zero_position])
    if weight is None or zero_point is None or weight.dtype != np.uint8:
        return None
    args = list(expr.args)
    args[position] = constant((weight.astype(np.int16) - OFFSET).astype(np.int8))
    args[zero_position] = constant((zero_point - OFFSET).astype(np.int32))
    return relax.Call(expr.op, args, expr.attrs, expr.ty_args)


def _positions(traits: Traits, data: Data) -> tuple[int, int]:
    """The positions of an operand and its zero point."""
    assert data.zero_point is not None, f"{data.name} has no zero point"
    return traits.index(data.name), traits.index(data.zero_point)


# ---- activations -------------------------------------------------------------------------------------------------


class _ShiftedActivations:
    """Walks `main` once; `_twins` maps every 8-bit variable of the other signedness to its twin, if it has one.

    The twin of q is q + offset in the wanted dtype: +128 from int8 to uint8, −128 from uint8 to int8.
    """

    def __init__(self, mod: IRModule, data_dtype: str, weight_dtype: str) -> None:
        self._mod = mod
        self._new = Rebuild(mod["main"])
        self._builder = self._new.builder
        self._dtype, self._weight_dtype = data_dtype, weight_dtype
        self._other = _OTHER[data_dtype]
        self._offset = _OFFSETS[data_dtype]
        self._values: dict[Any, Any] = {}  # original variable -> its unshifted value
        self._twins: dict[Any, Any] = {}  # original variable -> its twin
        self._moved_at_run_time: dict[Any, Any] = {}  # run-time zero point -> that of the twin
        self._wanted: set[Any] = set()

    def run(self) -> IRModule:
        new, bindings = self._new, self._new.bindings
        self._wanted = self._wanted_twins(bindings)
        if not self._wanted and not any(self._shifted_second_operand(binding.value) for binding in bindings):
            return self._mod
        with new.main():
            for binding in bindings:
                self._visit(binding)
            body = new.function.body.body
            new.result = substitute(body, self._original_environment(body))
        return new.live_module()

    def _wanted_twins(self, bindings: Sequence[relax.VarBinding]) -> set[Any]:
        """The variables of the other dtype that products read, directly or through operators that only move values."""
        wanted: set[Any] = set()
        for binding in reversed(bindings):
            value, traits = binding.value, traits_of(binding.value)
            if _is_product(value):
                pairs = [_positions(traits, data) for data in self._consumes(traits)]
                operands = [value.args[data] for data, zero in pairs if _movable(traits, value.args[zero])]
                wanted.update(var for operand in operands for var in _variables(operand) if self._is_other(var))
            elif binding.var in wanted and (
                traits.carries or traits.clips is not None or isinstance(value, relax.TupleGetItem)
            ):
                wanted.update(_variables(value))
        return wanted

    # ---- the two forms of a variable -----------------------------------------------------------------------------

    def _original(self, var: Any) -> Any:
        """The variable's value in its own dtype."""
        if var not in self._values and var in self._twins:
            shift = qnn.requantize(self._twins[var], 1.0, self._offset, 1.0, 0, out_dtype=self._other)
            self._values[var] = self._builder.emit(shift)
        return self._values.get(var, var)

    def _twin(self, var: Any) -> Any:
        """The twin of a variable or constant of the other dtype, created here unless its producer has done so."""
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
        for rule in (self._move, self._lookup, self._clip, self._qnn):
            result = rule(value, var in self._wanted)
            if result is not None:
                expr, shifted = result
                bound = emit_named(self._builder, expr, var.name)
                (self._twins if shifted else self._values)[var] = bound
                return
        self._values[var] = emit_named(self._builder, substitute(value, self._original_environment(value)), var.name)

    def _move(self, value: Any, wanted: bool) -> tuple[Any, bool] | None:
        """Operators that move or select values work on the twins if one of their data arguments has one."""
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self._twins:
            return relax.TupleGetItem(self._twins[value.tuple_value], value.index), True
        traits = traits_of(value)
        if not traits.carries:
            return None
        data = traits.operands(value)
        if not any(item in self._twins for item in data) or not all(self._is_other(item) for item in data):
            return None
        twins = [self._twin(item) for item in data]
        others = [arg for name, arg in zip(traits.arguments, value.args, strict=False) if name not in traits.carried]
        rest = {var: self._original(var) for arg in others for var in _variables(arg)}
        moved = traits.with_operands(substitute(value, rest), twins)
        if traits.fill is None or value.attrs.pad_mode != "constant":
            return moved, True
        return rebuild(moved, moved.args, **{traits.fill: getattr(value.attrs, traits.fill) + self._offset}), True

    def _lookup(self, value: Any, wanted: bool) -> tuple[Any, bool] | None:
        """A table is indexed from the dtype's minimum, so the twin of its input selects the same entry."""
        if definition_of(value) is not TABLE:
            return None
        data, table = value.args
        data = self._twin(data) if data in self._twins else self._original(data)
        entries = constant_value(table)
        if wanted and entries is not None and str(entries.dtype) == self._other:
            return qnn.table(data, constant(self._shifted(entries))), True
        return qnn.table(data, self._original(table)), False

    def _clip(self, value: Any, wanted: bool) -> tuple[Any, bool] | None:
        clips = traits_of(value).clips
        if clips is None or (data := data_of(value)) not in self._twins:
            return None
        limits = np.iinfo(self._dtype)
        low, high = (
            int(bound) + self._offset if np.isfinite(bound) else limit
            for bound, limit in zip(clips(value), (limits.min, limits.max), strict=True)
        )
        return relax.op.clip(self._twins[data], low, high), True

    def _qnn(self, value: Any, wanted: bool) -> tuple[Any, bool] | None:
        """QNN operators take zero points as arguments: constant ones are shifted by the offset along with the data."""
        definition = definition_of(value)
        if definition is None:
            return None
        traits, args, attributes = definition.traits, list(value.args), call_attributes(value)
        for data, zero_point in (_positions(traits, data) for data in self._consumes(traits)):
            if not self._is_other(args[data]) or not self._prefers(traits, args[data]):
                continue
            if not _movable(traits, args[zero_point]):
                continue
            args[data] = self._twin(args[data])
            args[zero_point] = self._moved_zero_point(args[zero_point])
        if self._shifted_second_operand(value):
            offset = _OFFSETS[self._weight_dtype]
            data, zero_point = _positions(traits, traits.data[1])
            shift = qnn.requantize(self._original(args[data]), 1.0, 0, 1.0, offset, out_dtype=self._weight_dtype)
            args[data], args[zero_point] = self._builder.emit(shift), _moved(args[zero_point], offset)
        shifted = wanted and self._yields_twin(traits, value, attributes)
        if shifted and traits.output is not None:
            zero_point = traits.index(traits.output.zero_point)
            args[zero_point] = self._moved_zero_point(args[zero_point])
            attributes["out_dtype"] = self._dtype
        # arguments replaced above are not variables of the original function, so `_original` leaves them as they are
        return OPS[definition.name].call(*map(self._original, args), **attributes), shifted

    def _consumes(self, traits: Traits) -> Sequence[Data]:
        """The operands that may be shifted if they have the other dtype; including a product's second one if it is a
        run-time operand and takes the dtype of the first."""
        if not traits.shift_invariant:
            return ()
        if traits.kind is not Kind.PRODUCT:
            return [data for data in traits.data if data.zero_point is not None]
        return traits.data[: 2 if traits.weight is None and self._weight_dtype == self._dtype else 1]

    def _shifted_second_operand(self, value: Any) -> bool:
        """Whether a product of two run-time operands takes its second in a different dtype from the first, and the
        operand does not have it: x86's vpdpbusd takes uint8 × int8."""
        traits = traits_of(value)
        if not _is_product(value) or traits.weight is not None or self._weight_dtype == self._dtype:
            return False
        data, zero_point = (value.args[position] for position in _positions(traits, traits.data[1]))
        return str(data.ty.dtype) == _OTHER[self._weight_dtype] and constant_value(zero_point) is not None

    def _prefers(self, traits: Traits, data: Any) -> bool:
        """Products always use the twin; other operators use it if it exists."""
        return traits.kind is Kind.PRODUCT or data in self._twins

    def _yields_twin(self, traits: Traits, call: relax.Call, attributes: dict[str, Any]) -> bool:
        """Whether adding the offset to the output zero point adds exactly the offset to the result.

        Relay's float variants add the zero point before they round, which can change the last bit.
        """
        if traits.output is None or not traits.output.offset or attributes.get("out_dtype") != self._other:
            return False
        in_float = attributes.get("compute_dtype") in ("float32", "float64")
        relay = in_float and attributes["rounding"] in ("UPWARD", "TONEAREST")
        return _movable(traits, traits.argument(call, traits.output.zero_point)) and not relay

    def _moved_zero_point(self, zero_point: Any) -> Any:
        """The zero point of the twin; a run-time one is shifted once for all readers."""
        if constant_value(zero_point) is not None:
            return _moved(zero_point, self._offset)
        if zero_point not in self._moved_at_run_time:
            moved = relax.op.add(self._original(zero_point), constant(np.int32(self._offset)))
            self._moved_at_run_time[zero_point] = self._builder.emit(moved)
        return self._moved_at_run_time[zero_point]


def _movable(traits: Traits, zero_point: Any) -> bool:
    """Whether a zero point can be shifted: if it is constant, or the operator supports run-time zero points."""
    return constant_value(zero_point) is not None or traits.runtime_zero_point


def _moved(zero_point: Any, offset: int) -> Any:
    value = constant_value(zero_point)
    assert value is not None, "only constant zero points can be moved"
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
