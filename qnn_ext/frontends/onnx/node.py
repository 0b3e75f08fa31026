"""Node: what a converter sees of one operator, with its inputs as Relax expressions, and helpers."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import ir, relax

from ...module import FloatNote
from ...op.base import constant, constant_value, definition_of, shape_of
from ...op.folding import known_value
from ...op.range_parameters import RANGE_ZERO_POINT
from ..assembly import Conversion
from ..bound import not_constant
from .assembly import OnnxAssembly
from .reader import Operator
from .tensors import HELD_AS, dtype_name, element_type

# Some models have channels whose weights are all zero, with scale 0. Integers cannot represent that, so it becomes a
# scale that keeps every product below half a step.
_BROADCASTS_LIKE_NUMPY = 7  # the first version of the operator set without the attribute `broadcast`
_NEGLIGIBLE_SCALE = np.float32(1e-30)


class Node(Conversion):
    """One operator under conversion.

    inputs:     its inputs in order, None where an optional one is omitted
    attributes: by name, as plain Python: int, float, str, list of these, np.ndarray for tensors
    opset:      version of its domain's operator set that the model imports
    """

    assembly: OnnxAssembly

    def __init__(self, assembly: OnnxAssembly, operator: Operator) -> None:
        super().__init__(assembly, operator.label)
        self.operator = operator
        self.name = operator.name
        self.op_type = operator.op_type
        self.domain = operator.domain
        self.attributes = operator.attributes
        self.outputs = operator.outputs
        self.opset = assembly.model.opset(operator.domain)
        self.inputs: list[relax.Expr | None] = [assembly.value(name) if name else None for name in operator.inputs]
        if not self.domain and self.opset < _BROADCASTS_LIKE_NUMPY and self.attributes.get("broadcast", 0):
            self._align()

    # ---- inputs, attributes, outputs ---------------------------------------------------------------------------------

    def has_input(self, index: int) -> bool:
        """Whether the (optional) input is present."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def input(self, index: int) -> relax.Expr:
        """The input's value. Raises ModelFormatError when it is absent."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise self.malformed(f"input {index} is missing")
        return value

    def input_name(self, index: int) -> str:
        """The input's name in the model, "" when it is absent."""
        return self.operator.inputs[index] if index < len(self.operator.inputs) else ""

    def has_output(self, index: int) -> bool:
        """Whether the (optional) output is wanted."""
        return index < len(self.outputs) and self.outputs[index] != ""

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """The input's shape."""
        return shape_of(self.input(index))

    def dtype(self, index: int = 0) -> str:
        """The input's dtype; int4 and uint4 are held as int8 and uint8, float8 as float32, see `onnx_dtype`."""
        return str(self.input(index).ty.dtype)

    def onnx_dtype(self, index: int) -> str:
        """The input's dtype as the model names it: "int4" where `dtype` is int8 that came from 4-bit integers."""
        return self.assembly.narrow_dtypes.get(self.input_name(index)) or self.dtype(index)

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute's value, `default` when the node does not have it."""
        return self.attributes.get(name, default)

    def target_dtype(self, name: str) -> str:
        """The dtype that an attribute gives by its ONNX code, or name; those that NumPy does not have are refused."""
        code = self.attribute(name, 0)
        dtype = dtype_name(element_type(code) if isinstance(code, str) else code)
        if dtype in HELD_AS:
            raise self.unsupported(f"conversion to {dtype} at run time")
        return dtype

    def is_constant(self, index: int) -> bool:
        """Whether the input is present and known at import."""
        return self.has_input(index) and constant_value(self.input(index)) is not None

    def constant(self, index: int) -> np.ndarray:
        """The input's value, which must be known at import, quantized or not. Raises UnsupportedOperatorError."""
        value = known_value(self.assembly.builder, self.input(index))
        if value is None:
            raise self.unsupported(not_constant(index, self.input_name(index)))
        return value

    def integers(self, index: int) -> list[int]:
        """A constant input of integers, flat. Raises ModelFormatError when it holds anything else."""
        values = self.constant(index)
        if values.dtype.kind not in "iu":
            raise self.malformed(f"input {index} ('{self.input_name(index)}') must hold integers, found {values.dtype}")
        return [int(value) for value in values.reshape(-1)]

    def _align(self) -> None:
        """Shape the second operand so that its axes start at the first one's `axis`; by default they end with it."""
        axis, ndim, shape = self.attribute("axis"), len(self.shape(0)), self.shape(1)
        if axis is None:
            return
        if not 0 <= axis <= ndim - len(shape):
            raise self.malformed(f"an operand of shape {shape} from axis {axis} on does not fit shape {self.shape(0)}")
        self.inputs[1] = self.emit(relax.op.reshape(self.input(1), (*shape, *(1,) * (ndim - axis - len(shape)))))

    # ---- quantization ------------------------------------------------------------------------------------------------

    def scale(self, index: int) -> relax.Expr:
        """A scale input as float32: a scalar (shapes () and (1,) are the same) or a vector; constant or computed.
        Raises ModelFormatError where it is not finite."""
        scale = self.any_scale(index)
        known = constant_value(scale)
        if known is not None and not np.isfinite(known).all():
            raise self.malformed(
                f"input {index} ('{self.input_name(index)}'), a scale, is {known[~np.isfinite(known)].flat[0]}: the "
                "quantizer saw values without bounds, such as a mask of −inf; use a large negative number there, or "
                "leave what reads it in float"
            )
        return scale

    def any_scale(self, index: int) -> relax.Expr:
        """As `scale`, which may be anything."""
        return self._qparam(index, "float32")

    def zero_point(self, index: int) -> relax.Expr:
        """A zero point input as int32, scalar or vector; 0 when it is absent."""
        if not self.has_input(index):
            return constant(np.zeros((), np.int32))
        return self._qparam(index, "int32")

    def _qparam(self, index: int, dtype: str) -> relax.Expr:
        expr = self.input(index)
        value = constant_value(expr)
        if value is not None:
            value = value.astype(dtype)
            if dtype == "float32":
                value = np.where(value == 0, _NEGLIGIBLE_SCALE, value)
            return constant(value.reshape(()) if value.size == 1 else value)
        if shape_of(expr) == (1,):
            expr = self.emit(relax.op.reshape(expr, ()))
        if str(expr.ty.dtype) == dtype:
            return expr
        before = self._before_cast(expr, dtype)
        return self.emit(relax.op.astype(expr, dtype)) if before is None else before

    def _before_cast(self, expr: relax.Expr, dtype: str) -> relax.Expr | None:
        """What DynamicQuantizeLinear cast to make its zero point uint8, if that has this dtype."""
        cast = self._bound_call(expr)
        if cast is None or cast.op != ir.Op.get("relax.astype") or str(cast.args[0].ty.dtype) != dtype:
            return None
        return cast.args[0] if definition_of(self._bound_call(cast.args[0])) is RANGE_ZERO_POINT else None

    def _bound_call(self, expr: relax.Expr) -> relax.Call | None:
        bound = self.assembly.builder.lookup_binding(expr) if isinstance(expr, relax.Var) else None
        return bound if isinstance(bound, relax.Call) else None

    # ---- building ----------------------------------------------------------------------------------------------------

    def emit(self, expr: relax.Expr) -> relax.Expr:
        """Bind an intermediate expression, so that its type is known; constant subexpressions are computed now."""
        return self.assembly.emit(expr, f"{self.outputs[0]}_part" if self.outputs else "")

    def note(self, reason: str) -> None:
        """Record for `inspect` that this node runs in float although the model quantizes it."""
        output = self.outputs[0] if self.outputs else self.name
        self.assembly.notes.append(FloatNote(output, self.op_type, reason))
