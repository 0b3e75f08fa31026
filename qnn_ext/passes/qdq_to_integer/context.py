"""What the rules of qdq_to_integer work with: tensors carried as integers, and the context of the current operator."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ... import op as qnn
from ...op.base import OPS, constant, constant_value
from ..rewrite import Rebuild, consumers, emit_named, only_reader, op_name, substitute
from .hoist import Quantize
from .tensors import Mapped, Quantized


class Carried:
    """The values of a `main` that is being rebuilt: as integers if known, and as floats if they are read as such.

    rounds_biases: whether float biases of products whose results are quantized become integers
    """

    def __init__(self, new: Rebuild, rounds_biases: bool = True) -> None:
        self.rounds_biases = rounds_biases
        self._new = new
        self._readers = consumers(new.function, new.bindings)
        self._definitions = {binding.var: binding.value for binding in new.bindings}
        self._floats = new.environment  # old variable -> expression of its value
        self._known: dict[Any, Quantized | Mapped] = {}  # old variable -> the integers it represents
        self._results: dict[Any, list[Any]] = {}  # old variable of an operator with several results -> the results

    def known(self, expr: Any) -> Quantized | Mapped | None:
        """The integers behind an operand, if it has any."""
        return self._known.get(expr) if isinstance(expr, relax.Var) else None

    def field(self, value: relax.TupleGetItem) -> Any | None:
        """The result taken from an operator with several, None if they do not come from a rule."""
        results = self._results.get(value.tuple_value)
        return None if results is None else results[value.index]

    def value(self, expr: Any) -> Any:
        """An operand in the new module, dequantized here if it was carried as integers."""
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self.value(field) for field in expr.fields])
        if not isinstance(expr, relax.Var):
            return expr
        if expr not in self._floats and expr in self._known:
            self._make_real(expr)
        if expr not in self._floats and expr in self._results:
            self._floats[expr] = relax.Tuple([self._real(result, expr.name) for result in self._results[expr]])
        return self._floats.get(expr, expr)

    def keep_stored(self, expr: Any) -> None:
        """Dequantize a weight in the new module, though it is constant: what sums its products may ask for that."""
        tensor = self.known(expr)
        if isinstance(tensor, Quantized) and expr not in self._floats:
            self._new.bind(expr, qnn.dequantize(tensor.data, tensor.scale, tensor.zero_point, axis=tensor.axis))

    def in_float(self, expr: Any) -> Any:
        """An expression of the old module, applied to the real values of its operands."""
        return substitute(expr, {var: self.value(var) for var in _variables(expr)})

    def bind(self, var: Any, result: Any) -> None:
        """Record a rule's result for a variable: integers, an expression, or a list with one of these for each
        result."""
        if isinstance(result, list):
            self._results[var] = result
        elif isinstance(result, (Quantized, Mapped)):
            self._known[var] = result
        else:
            self._new.bind(var, result)

    def emit(self, expr: Any, name: str) -> Any:
        """Bind an expression."""
        return emit_named(self._new.builder, expr, name)

    def quantize_behind(self, var: Any) -> Quantize | None:
        """The quantize that all readers of `var` apply to it, None if they differ or one reads it unquantized."""
        bindings = self._new.bindings
        found: Quantize | None = None
        for index in self._readers[var]:
            value = bindings[index].value if index < len(bindings) else None
            if op_name(value) != "qnn.quantize":
                return None
            quantize = Quantize(value)
            if not quantize.per_tensor or (found is not None and found.key != quantize.key):
                return None
            found = quantize
        return found

    def quantize_of_clipped(self, var: Any) -> Quantize | None:
        """The quantize that is all that becomes of `var`, or of what clips it; its scales may be those of channels."""
        while True:
            binding = only_reader(var, self._readers, self._new.bindings)
            if binding is None:
                return None
            if op_name(binding.value) == "qnn.quantize":
                return Quantize(binding.value)
            if op_name(binding.value) not in ("nn.relu", "clip"):
                return None
            var = binding.var

    def _real(self, result: Any, name: str) -> Any:
        """A rule's result as an expression."""
        known = isinstance(result, (Quantized, Mapped))
        return self.emit(materialize(result) if known else result, name)

    def _make_real(self, var: Any) -> None:
        """Bind the real value of a variable carried as integers, after those that it is computed from."""
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
            self._new.bind(current, expr)


class Context:
    """What a rule has access to: the integers behind operands, ways to emit, and how the result is quantized.

    reason: why the operator runs in float, if its rule gives no result
    remark: what is to be said of the operator although its rule gives one
    """

    def __init__(self, carried: Carried, var: Any) -> None:
        self._carried = carried
        self.var = var
        self.reason: str | None = None
        self.remark: str | None = None

    def known(self, expr: Any) -> Quantized | Mapped | None:
        return self._carried.known(expr)

    def quantized(self, expr: Any) -> Quantized | None:
        """The operand as integers with a scale, None if it is anything else."""
        found = self._carried.known(expr)
        return found if isinstance(found, Quantized) else None

    def value(self, expr: Any) -> Any:
        """The operand's real value as an expression of the new module."""
        return self._carried.value(expr)

    def emit(self, expr: Any) -> Any:
        return self._carried.emit(expr, str(self.var.name))

    def quantize_behind(self) -> Quantize | None:
        """How the result is quantized, if that is its only use."""
        return self._carried.quantize_behind(self.var)

    def quantize_of_clipped(self) -> Quantize | None:
        """How the result is quantized, whole or clipped, if that is its only use."""
        return self.quantize_behind() or self._carried.quantize_of_clipped(self.var)

    @property
    def rounds_biases(self) -> bool:
        """Whether float biases of products whose results are quantized become integers."""
        return self._carried.rounds_biases

    def refuse(self, reason: str) -> Any:
        """Record why the operator runs in float; returns None, so that a rule can `return context.refuse(...)`."""
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
    """(array − zero_point) · scale in float32, like `qnn.dequantize`."""
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
