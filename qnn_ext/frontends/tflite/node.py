"""Node: what a converter sees of one operator, with its inputs as Relax expressions, and helpers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from tvm import relax

from ... import op as qnn
from ...module import FloatNote
from ...numerics import reference
from ...op.base import constant_value, shape_of
from ...qparams import QParams, dtype_range
from ..assembly import Conversion
from ..bound import not_constant
from . import xnnpack
from .assembly import ComplexValue, TfliteAssembly
from .reader import Operator, Tensor

Number = TypeVar("Number", int, float)

QUANTIZED_DTYPES = ("int8", "uint8", "int16")

# fused activation -> the real interval it clips to
ACTIVATION_RANGES: dict[str, tuple[float | None, float | None]] = {
    "NONE": (None, None),
    "RELU": (0.0, None),
    "RELU6": (0.0, 6.0),
    "RELU_N1_TO_1": (-1.0, 1.0),
}


class Node(Conversion):
    """One operator under conversion."""

    assembly: TfliteAssembly

    def __init__(self, assembly: TfliteAssembly, operator: Operator) -> None:
        super().__init__(assembly, operator.label)
        self.operator = operator
        self.options = operator.options

    # ---- inputs and outputs --------------------------------------------------------------------------------------

    @property
    def input_count(self) -> int:
        return len(self.operator.inputs)

    def has_input(self, index: int) -> bool:
        """Whether the (optional) input is present."""
        return index < self.input_count and self.operator.inputs[index] >= 0

    def input(self, index: int) -> relax.Expr:
        """The input's value. Raises ModelFormatError when it is absent."""
        return self.assembly.value(self._input_index(index))

    def complex_input(self, index: int) -> ComplexValue:
        """The parts of a complex input. Raises UnsupportedOperatorError for any other."""
        value = self.assembly.complex_values.get(self._input_index(index))
        if value is None:
            raise self.unsupported(f"an input of dtype {self.tensor(index).dtype} that RFFT2D has not computed")
        return value

    def tensor(self, index: int) -> Tensor:
        """The input's description in the file (name, dtype, qparams); its shape may be stale after a batch change."""
        return self.assembly.tensor(self._input_index(index))

    def output_tensor(self, index: int = 0) -> Tensor:
        """An output's description in the file."""
        if index >= len(self.operator.outputs):
            raise self.malformed(f"output {index} is missing")
        return self.assembly.tensor(self.operator.outputs[index])

    def _input_index(self, index: int) -> int:
        if not self.has_input(index):
            raise self.malformed(f"input {index} is missing")
        return self.operator.inputs[index]

    def shape(self, index: int) -> tuple[int, ...]:
        """The input's shape as inferred, not as stored in the file."""
        tensor = self.tensor(index)
        return tensor.shape if tensor.is_constant else shape_of(self.input(index))

    def dtype(self, index: int = 0) -> str:
        """The input's dtype."""
        tensor = self.tensor(index)
        return tensor.dtype if tensor.is_constant else str(self.input(index).ty.dtype)

    def constant(self, index: int) -> np.ndarray:
        """The input's value, which must be known at import. Raises UnsupportedOperatorError otherwise."""
        value = constant_value(self.input(index))
        if value is None:
            raise self.unsupported(not_constant(index, self.tensor(index).name))
        return value

    def integers(self, index: int) -> list[int]:
        """A constant input of integers, flat. Raises ModelFormatError when it holds anything else."""
        values = self.constant(index)
        if values.dtype not in (np.int16, np.int32, np.int64):
            raise self.malformed(
                f"input {index} ('{self.tensor(index).name}') must hold integers, found {values.dtype}"
            )
        return [int(value) for value in values.reshape(-1)]

    def integer(self, index: int) -> int:
        """A constant input that is one integer."""
        values = self.integers(index)
        if len(values) != 1:
            raise self.malformed(f"input {index} ('{self.tensor(index).name}') must be one integer, found {values}")
        return values[0]

    def axes(self, index: int, ndim: int) -> list[int]:
        """A constant input as a list of axes in 0 … ndim − 1. Raises ModelFormatError when out of range."""
        axes = self.integers(index)
        if any(not -ndim <= axis < ndim for axis in axes):
            raise self.malformed(f"axes {axes} are out of range for {ndim} dimensions")
        return [axis % ndim for axis in axes]

    # ---- options of custom operators -----------------------------------------------------------------------------

    def custom_map(self) -> dict[str, Any]:
        """The options of a custom operator that stores them as a flexbuffer. Raises ModelFormatError."""
        # installed with the schema package, which loading a .qnn file must not need
        from flatbuffers import flexbuffers

        try:
            values = flexbuffers.Loads(self.operator.custom_options)
        except Exception as error:  # damaged bytes can make the flexbuffer reader raise almost anything
            raise self.malformed(f"its options are not a flexbuffer: {error}") from error
        if not isinstance(values, dict):
            raise self.malformed("its options are not a flexbuffer map")
        return values

    def custom_number(self, options: Mapping[str, Any], name: str, kind: type[Number]) -> Number:
        """One of those options. Raises ModelFormatError."""
        try:
            return kind(options[name])
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise self.malformed(f"its option {name} is missing or has a wrong type: {error}") from error

    # ---- quantization --------------------------------------------------------------------------------------------

    @property
    def reference_kernels(self) -> bool:
        """True when results must equal TFLite's reference kernels: numerics "tflite"."""
        return self.assembly.numerics == "tflite"

    @cached_property
    def delegated(self) -> bool:
        """True when results must equal XNNPACK's: with numerics "float32", where XNNPACK takes the node."""
        return not self.reference_kernels and xnnpack.takes(self.operator, self.assembly.graph.tensors)

    @property
    def follows_xnnpack(self) -> bool:
        """True for float nodes whose last bits must be XNNPACK's, see `TfliteAssembly.follows_xnnpack`."""
        return self.delegated and self.assembly.follows_xnnpack

    @property
    def rounding(self) -> str:
        """The requantize rounding of XNNPACK or of TFLite's own kernels, whichever computes the node."""
        return "TONEAREST_EVEN" if self.delegated else "TFLITE"

    @property
    def float_rounding(self) -> str:
        """The rounding of float -> integer. Only TFLite's reference kernels round midpoints away from zero."""
        return "TONEAREST" if self.reference_kernels else "TONEAREST_EVEN"

    def is_quantized(self, index: int = 0) -> bool:
        """Whether the input is an 8- or 16-bit tensor with a scale."""
        tensor = self.tensor(index)
        return tensor.qparams is not None and tensor.dtype in QUANTIZED_DTYPES

    def qparams(self, index: int = 0) -> QParams:
        """The input's QParams. Raises UnsupportedOperatorError when it has none."""
        return self._require_qparams(self.tensor(index))

    def output_qparams(self, index: int = 0) -> QParams:
        """The output's QParams. Raises UnsupportedOperatorError when it has none."""
        return self._require_qparams(self.output_tensor(index))

    def _require_qparams(self, tensor: Tensor) -> QParams:
        if tensor.blocks is not None:
            raise self.unsupported(
                f"{tensor.label()} with scales of blocks; FULLY_CONNECTED, EMBEDDING_LOOKUP and DEQUANTIZE read it"
            )
        if tensor.qparams is None:
            raise self.unsupported(f"tensor '{tensor.name}' ({tensor.dtype}) without quantization parameters")
        return tensor.qparams

    def dequantize(self, expr: relax.Expr, qparams: QParams) -> relax.Expr:
        """scale · (expr − zero_point) in float32."""
        axis = -1 if qparams.axis is None else qparams.axis
        return self.emit(qnn.dequantize(expr, qparams.scale, qparams.zero_point, axis=axis))

    def quantize(self, expr: relax.Expr, qparams: QParams) -> relax.Expr:
        """saturate(round(expr / scale) + zero_point)."""
        return qnn.quantize(
            expr,
            qparams.scale,
            qparams.zero_point,
            out_dtype=qparams.dtype,
            rounding=self.float_rounding,
        )

    def requantize(self, expr: relax.Expr, source: QParams, target: QParams) -> relax.Expr:
        """From one tensor's QParams to another's; `expr` itself when they are equal."""
        if source == target:
            return expr
        return qnn.requantize(
            expr,
            source.scale,
            source.zero_point,
            target.scale,
            target.zero_point,
            rounding=self.rounding,
            out_dtype=target.dtype,
        )

    def activate(self, expr: relax.Expr, activation: str | None = None) -> relax.Expr:
        """Clip to the fused activation's interval: real values, or integers in the output's QParams."""
        activation = activation or self.options.get("fused_activation_function", "NONE")
        if activation not in ACTIVATION_RANGES:
            raise self.unsupported(f"fused activation {activation}; supported: {', '.join(ACTIVATION_RANGES)}")
        low, high = ACTIVATION_RANGES[activation]
        if low is None and high is None:
            return expr
        qparams = self.output_tensor().qparams
        if qparams is None or self.output_tensor().dtype not in QUANTIZED_DTYPES:
            return relax.op.clip(self.emit(expr), -np.inf if low is None else low, np.inf if high is None else high)
        bounds = (xnnpack_bounds if self.delegated else clip_bounds)(qparams, low, high)
        return expr if bounds == dtype_range(qparams.dtype) else relax.op.clip(self.emit(expr), *bounds)

    def in_float(self, function: Callable[..., relax.Expr], reason: str, *indices: int) -> relax.Expr:
        """dequantize → `function` in float32 → quantize, noted for `inspect`. Float inputs pass through unchanged.

        indices: which inputs `function` takes (default: all)
        """
        indices = indices or tuple(range(self.input_count))
        quantized = any(self.is_quantized(i) for i in indices)
        args = [
            self.dequantize(self.input(i), self.qparams(i)) if self.is_quantized(i) else self.input(i) for i in indices
        ]
        result = function(*args)
        output = self.output_tensor()
        if quantized:
            self.assembly.notes.append(FloatNote(output.name, self.operator.name, reason))
        if output.qparams is not None and output.dtype in QUANTIZED_DTYPES:
            return self.quantize(self.emit(result), output.qparams)
        return result


def xnnpack_bounds(qparams: QParams, low: float | None, high: float | None) -> tuple[int, int]:
    """As `clip_bounds`, rounded as XNNPACK does."""
    minimum, maximum = dtype_range(qparams.dtype)
    return (
        minimum if low is None else int(xnnpack_quantized(np.float32(low), qparams)),
        maximum if high is None else int(xnnpack_quantized(np.float32(high), qparams)),
    )


def xnnpack_quantized(real: np.ndarray | np.float32, qparams: QParams) -> np.ndarray:
    """saturate(rint(real / scale + zero point)) in float32 (xnn_qs8_quantize); midpoints depend on the zero point."""
    shifted = real / qparams.scale.astype(np.float32) + qparams.zero_point.astype(np.float32)
    return np.asarray(np.rint(np.clip(shifted, *dtype_range(qparams.dtype))).astype(qparams.dtype))


def clip_bounds(qparams: QParams, low: float | None, high: float | None) -> tuple[int, int]:
    """The integers that stand for a real interval, within the dtype: TFLite's CalculateActivationRangeQuantized."""
    minimum, maximum = dtype_range(qparams.dtype)
    zero_point = int(qparams.zero_point)

    def quantized(real: float) -> int:
        return zero_point + int(reference.round_half_away(np.float32(real) / qparams.scale.astype(np.float32)))

    return (
        minimum if low is None else max(minimum, quantized(low)),
        maximum if high is None else min(maximum, quantized(high)),
    )
