"""The forward walk of qdq_to_integer: every tensor is carried as integers for as long as operators have a rule."""

from __future__ import annotations

from typing import Any

from tvm import IRModule, relax

from ... import op as qnn
from ...module import FloatNote
from ...op.base import OPS, constant, constant_value
from ..rewrite import bindings_of, consumers, emit_named, op_name, plain_attrs, substitute
from .hoist import Quantize
from .notes import reason_for
from .rules import RULES
from .tensors import Mapped, Quantized


def is_qdq(mod: IRModule) -> bool:
    """Whether `main` quantizes or dequantizes anything."""
    return any(op_name(binding.value) in ("qnn.quantize", "qnn.dequantize") for binding in bindings_of(mod["main"]))


class Walker:
    """State of one walk: new values by old variable, and the integers behind them where they are known."""

    def __init__(self, mod: IRModule) -> None:
        self._mod = mod
        self._function = mod["main"]
        self._bindings = bindings_of(self._function)
        self._readers = consumers(self._function, self._bindings)
        self._definitions = {binding.var: binding.value for binding in self._bindings}
        self._builder = relax.BlockBuilder()
        self._floats: dict[Any, Any] = {}  # old variable -> expression of its value
        self._known: dict[Any, Quantized | Mapped] = {}  # old variable -> the integers it stands for
        self._results: dict[Any, list[Any]] = {}  # old variable of an operator with several results -> those
        self._notes: list[FloatNote] = []

    def run(self) -> tuple[IRModule, tuple[FloatNote, ...]]:
        if not is_qdq(self._mod):
            return self._mod, ()
        function = self._function
        with self._builder.function("main", list(function.params), attrs=plain_attrs(function)):
            with self._builder.dataflow():
                for binding in self._bindings:
                    self._visit(binding)
                body = function.body.body
                result = self._builder.emit_output(substitute(body, self._environment(body)))
            self._builder.emit_func_output(result)
        return relax.transform.DeadCodeElimination(["main"])(self._builder.get()), tuple(self._notes)

    # ---- values --------------------------------------------------------------------------------------------------

    def known(self, expr: Any) -> Quantized | Mapped | None:
        """The integers behind an operand, if it has any."""
        return self._known.get(expr) if isinstance(expr, relax.Var) else None

    def value(self, expr: Any) -> Any:
        """An operand as it is in the new module; dequantized here if it was carried as integers."""
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self.value(field) for field in expr.fields])
        if not isinstance(expr, relax.Var):
            return expr
        if expr not in self._floats and expr in self._known:
            self._make_real(expr)
        if expr not in self._floats and expr in self._results:
            self._floats[expr] = relax.Tuple([self._real(result, expr.name) for result in self._results[expr]])
        return self._floats.get(expr, expr)

    def _real(self, result: Any, name: str) -> Any:
        """A rule's result as an expression."""
        known = isinstance(result, (Quantized, Mapped))
        return emit_named(self._builder, materialize(result) if known else result, name)

    def _make_real(self, var: Any) -> None:
        """Bind the real value of a variable carried as integers, and before it those it is made of."""
        pending = [var]
        while pending:
            current = pending[-1]
            if current in self._floats:
                pending.pop()
                continue
            tensor = self._known[current]
            if isinstance(tensor, Mapped) and not tensor.as_table:
                value = self._definitions[current]
                missing = [v for v in _variables(value) if v in self._known and v not in self._floats]
                if missing:
                    pending += missing
                    continue
                expr = substitute(value, self._floats)
            else:
                expr = materialize(tensor)
            self._floats[current] = emit_named(self._builder, expr, current.name)

    def _environment(self, expr: Any) -> dict[Any, Any]:
        return {var: self.value(var) for var in _variables(expr)}

    def emit(self, expr: Any, name: str = "") -> Any:
        """Bind an expression."""
        return emit_named(self._builder, expr, name or "integers")

    def quantize_behind(self, var: Any) -> Quantize | None:
        """The one way in which all readers of `var` quantize it, None when they differ or read it as it is."""
        found: Quantize | None = None
        for index in self._readers[var]:
            value = self._bindings[index].value if index < len(self._bindings) else None
            if op_name(value) != "qnn.quantize":
                return None
            quantize = Quantize(value)
            if not quantize.per_tensor or (found is not None and found.key != quantize.key):
                return None
            found = quantize
        return found

    # ---- the walk ------------------------------------------------------------------------------------------------

    def _visit(self, binding: relax.VarBinding) -> None:
        value, var = binding.value, binding.var
        context = Context(self, var)
        rule = RULES.get(op_name(value))
        result = self._field(value) if isinstance(value, relax.TupleGetItem) else None
        if rule is not None:
            result = rule(value, context)
        if result is None:
            self._note(value, var, context.reason)
            expr = substitute(value, self._environment(value))
            self._floats[var] = emit_named(self._builder, expr, var.name)
        elif isinstance(result, list):
            self._results[var] = result
        else:
            self._bind(var, result)

    def _bind(self, var: Any, result: Any) -> None:
        if isinstance(result, (Quantized, Mapped)):
            self._known[var] = result
        else:
            self._floats[var] = emit_named(self._builder, result, var.name)

    def _field(self, value: relax.TupleGetItem) -> Any | None:
        results = self._results.get(value.tuple_value)
        return None if results is None else results[value.index]

    def _note(self, value: Any, var: Any, reason: str | None) -> None:
        name = op_name(value)
        found = reason_for(name, value, self.known) if name and reason is None else reason
        if found is not None:
            self._notes.append(FloatNote(str(var.name), name, found))


class Context:
    """What a rule sees: the integers behind operands, ways to emit, and the reader that quantizes the result."""

    def __init__(self, walker: Walker, var: Any) -> None:
        self._walker = walker
        self.var = var
        self.reason: str | None = None

    def known(self, expr: Any) -> Quantized | Mapped | None:
        return self._walker.known(expr)

    def quantized(self, expr: Any) -> Quantized | None:
        """The operand as integers with a scale, None when it is anything else."""
        found = self._walker.known(expr)
        return found if isinstance(found, Quantized) else None

    def value(self, expr: Any) -> Any:
        """The operand's real value as an expression of the new module."""
        return self._walker.value(expr)

    def emit(self, expr: Any) -> Any:
        return self._walker.emit(expr, str(self.var.name))

    def quantize_behind(self) -> Quantize | None:
        """How the result is quantized, when that is all that happens to it."""
        return self._walker.quantize_behind(self.var)

    def refuse(self, reason: str) -> Any:
        """Say why the operator runs in float; returns None, so that a rule can `return context.refuse(...)`."""
        self.reason = reason
        return None


def materialize(tensor: Quantized | Mapped) -> Any:
    """The real values of a tensor carried as integers."""
    if isinstance(tensor, Mapped):
        return qnn.table(tensor.data, constant(tensor.values))
    array, parameters = constant_value(tensor.data), tensor.constants
    if array is not None and parameters is not None:
        return constant(dequantized(array, *parameters, axis=tensor.axis))
    return qnn.dequantize(tensor.data, tensor.scale, tensor.zero_point, axis=tensor.axis)


def dequantized(array: Any, scale: Any, zero_point: Any, axis: int = -1) -> Any:
    """(array − zero_point) · scale in float32, as `qnn.dequantize`."""
    return OPS["dequantize"].reference(array, scale, zero_point, axis=axis, out_dtype="float32")


def _variables(expr: Any) -> list[Any]:
    """The variables an expression reads."""
    if isinstance(expr, relax.Var):
        return [expr]
    if isinstance(expr, relax.Tuple):
        return [var for field in expr.fields for var in _variables(field)]
    if isinstance(expr, relax.Call):
        return [var for arg in expr.args for var in _variables(arg)]
    return [expr.tuple_value] if isinstance(expr, relax.TupleGetItem) else []
