"""The forward walk of qdq_to_integer: every tensor is carried as integers for as long as operators have a rule."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import IRModule, relax

from ... import op as qnn
from ...module import FloatNote
from ...op.base import OPS, call_attributes, constant, constant_value
from ..rewrite import bindings_of, consumers, emit_named, op_name, operands, plain_attrs, substitute
from .hoist import Quantize
from .rules import RULES
from .tensors import Mapped, Quantized

# float operators that need no note: on an accumulator they run in registers, in the kernel that made it
ELEMENTWISE = frozenset({
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "negative", "abs", "sqrt", "rsqrt",
    "square", "exp", "log", "tanh", "sigmoid", "erf", "power", "clip", "floor", "ceil", "round", "astype",
    "where", "nn.relu", "nn.relu6", "nn.leakyrelu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.softplus",
    "nn.prelu", "nn.selu",
})  # fmt: skip
# the products whose share of integer work users look at
PRODUCTS = frozenset({
    "matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv1d_transpose", "nn.conv2d_transpose",
    "nn.conv3d_transpose", "nn.attention", "nn.attention_bias",
})  # fmt: skip
MOVES_ONLY = frozenset({
    "reshape", "flatten", "permute_dims", "squeeze", "expand_dims", "broadcast_to", "strided_slice", "take",
    "concat", "split", "stack", "tile", "repeat", "flip", "nn.batch_flatten", "shape_of", "zeros", "ones",
    "full", "arange",
})  # fmt: skip


class Walker:
    """State of one walk: new values by old variable, and the integers behind them where they are known."""

    def __init__(self, mod: IRModule) -> None:
        self._mod = mod
        self._function = mod["main"]
        self._bindings = bindings_of(self._function)
        self._readers = consumers(self._function, self._bindings)
        self._builder = relax.BlockBuilder()
        self._floats: dict[Any, Any] = {}  # old variable -> expression of its value
        self._known: dict[Any, Quantized | Mapped] = {}  # old variable -> the integers it stands for
        self._notes: list[FloatNote] = []

    def run(self) -> tuple[IRModule, tuple[FloatNote, ...]]:
        names = {op_name(binding.value) for binding in self._bindings}
        if not names & {"qnn.quantize", "qnn.dequantize"}:
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
        if not isinstance(expr, relax.Var):
            return expr
        if expr not in self._floats and expr in self._known:
            self._floats[expr] = emit_named(self._builder, materialize(self._known[expr]), expr.name)
        return self._floats.get(expr, expr)

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
        result = None
        if rule is not None:
            result = rule(value, context)
        elif isinstance(value, relax.TupleGetItem):
            result = self._field(value)
        elif isinstance(value, relax.Tuple):
            return self._bind_float(binding)
        if result is None:
            self._note(value, var, context.reason)
            return self._bind_float(binding)
        if isinstance(result, (Quantized, Mapped)):
            self._known[var] = result
        elif isinstance(result, list):  # an operator with several results
            self._fields[var] = result
        else:
            self._floats[var] = emit_named(self._builder, result, var.name)

    def _bind_float(self, binding: relax.VarBinding) -> None:
        value = substitute(binding.value, self._environment(binding.value))
        self._floats[binding.var] = emit_named(self._builder, value, binding.var.name)

    @property
    def _fields(self) -> dict[Any, list[Any]]:
        if not hasattr(self, "_field_lists"):
            self._field_lists: dict[Any, list[Any]] = {}
        return self._field_lists

    def _field(self, value: relax.TupleGetItem) -> Any | None:
        fields = self._fields.get(value.tuple_value)
        return None if fields is None else fields[value.index]

    def _note(self, value: Any, var: Any, reason: str | None) -> None:
        name = op_name(value)
        if not name or name.startswith("qnn.") or name in MOVES_ONLY:
            return
        touches = any(self.known(operand) is not None for operand in operands(value))
        if reason is None and touches and name not in ELEMENTWISE:
            reason = "no integer form of this operator"
        if reason is None and name in PRODUCTS:
            reason = "the model does not quantize both of its operands"
        if reason is not None:
            self._notes.append(FloatNote(str(var.name), name, reason))


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

    def refuse(self, reason: str) -> None:
        """Say why the operator runs in float; returns None, so that a rule can `return context.refuse(...)`."""
        self.reason = reason


def materialize(tensor: Quantized | Mapped) -> Any:
    """The real values of a tensor carried as integers."""
    if isinstance(tensor, Mapped):
        return qnn.table(tensor.data, constant(tensor.values.astype(np.float32)))
    array, parameters = constant_value(tensor.data), tensor.constants
    if array is not None and parameters is not None:
        real = OPS["dequantize"].reference(array, *parameters, axis=tensor.axis, out_dtype="float32")
        return constant(np.asarray(real))
    return qnn.dequantize(tensor.data, tensor.scale, tensor.zero_point, axis=tensor.axis)


def _variables(expr: Any) -> list[Any]:
    if isinstance(expr, relax.Tuple):
        return [var for field in expr.fields for var in _variables(field)]
    if isinstance(expr, relax.Call):
        return [var for arg in expr.args for var in _variables(arg)]
    return [operand for operand in operands(expr) if isinstance(operand, relax.Var)]


# ---- the two bounds of every island ------------------------------------------------------------------------------


def _dequantize(call: relax.Call, context: Context) -> Any:
    attributes = call_attributes(call)
    if attributes["out_dtype"] != "float32":
        return None
    data, scale, zero_point = (context.value(arg) for arg in call.args)
    return Quantized(data, scale, zero_point, attributes["axis"])


def _quantize(call: relax.Call, context: Context) -> Any:
    """quantize of what is known as integers: nothing at all, a requantize, or a table."""
    quantize = Quantize(call)
    tensor = context.known(call.args[0])
    if not quantize.per_tensor or tensor is None:
        return None
    if isinstance(tensor, Mapped):
        return qnn.table(tensor.data, constant(quantize.value(tensor.values)))
    target = quantize.attributes["out_dtype"]
    if tensor.constants is None:
        return None
    array = constant_value(tensor.data)
    if array is not None:
        real = constant_value(materialize(tensor))
        assert real is not None, "constants materialize to constants"
        return constant(quantize.value(real))
    scale, zero_point = tensor.constants
    out_scale, out_zero_point = constant_value(quantize.scale), constant_value(quantize.zero_point)
    assert out_scale is not None and out_zero_point is not None, "per-tensor quantization is constant"
    same_scale = tensor.per_tensor and scale.item() == out_scale.item()
    if same_scale and zero_point.item() == out_zero_point.item() and tensor.dtype == target:
        return tensor.data
    # ONNX Runtime folds the scales of an accumulator into one multiplier; PyTorch, which multiplies by 1 / scale,
    # rounds after each. With equal scales both are exact
    wide = tensor.dtype in ("int32", "int64") and not quantize.attributes["reciprocal"]
    if (wide or same_scale) and quantize.attributes["rounding"] == "TONEAREST_EVEN":
        return qnn.requantize(
            tensor.data, scale, zero_point, quantize.scale, quantize.zero_point, axis=tensor.axis, out_dtype=target
        )
    return None


RULES["qnn.dequantize"] = _dequantize
RULES["qnn.quantize"] = _quantize
