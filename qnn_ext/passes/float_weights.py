"""Float weights of convolutions between integers are rounded to int8, as ONNX Runtime does when it loads a model.

    dequantize → conv with float weights → (+ bias) → (relu, clip) → quantize

ONNX Runtime's transformer WeightBiasQuantization computes such a convolution with integers: quantizers leave these
weights in float for the operators they have no integer form of, ConvTranspose above all, or where they were told to
skip a layer. The weights get one scale and one zero point, from their least and greatest value:

    scale = (max(w, 0) − min(w, 0)) / 255        zero point = rint(−128 − min(w, 0) / scale)

The bias is rounded too, to steps of the scale of the data times that of the weights: by `qdq_to_integer` behind
integer products, and here behind transposed convolutions, which ONNX Runtime computes in float.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from tvm import IRModule, relax

from .. import op as qnn
from ..op.arguments import data_of, factors_of
from ..op.base import call_attributes, constant, constant_value, shape_of
from ..op.relax_table import traits_of
from ..op.traits import Kind
from .bodies import with_bodies
from .layout.propagation import rebuild
from .marks import Mark, marks_of
from .rewrite import Emit, bindings_of, consumers, only_reader, op_name, rewrite

TRANSPOSED = tuple(f"nn.conv{rank}d_transpose" for rank in (1, 2, 3))
_MOVES = (
    *("reshape", "squeeze", "expand_dims", "permute_dims", "strided_slice"),
    *(f"nn.max_pool{rank}d" for rank in (1, 2, 3)),
)
"""What ONNX Runtime quantizes before. Not a Flatten."""
CONVOLUTIONS = (*(f"nn.conv{rank}d" for rank in (1, 2, 3)), *TRANSPOSED)


def round_float_weights(mod: IRModule) -> IRModule:
    """`mod`, a QDQ graph, with such weights as quantized constants, in the bodies of loops too."""
    return with_bodies(_rounded(mod), round_float_weights)


def _rounded(mod: IRModule) -> IRModule:
    graph = _Graph(mod)
    chosen = {var for var, value in graph.values.items() if op_name(value) in CONVOLUTIONS and graph.rounds(var, value)}
    biased = graph.steps_of_biases(chosen)
    if not chosen and not biased:
        return mod
    variables = iter(graph.values)

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        var = next(variables)
        if var in biased:
            return _with_rounded_bias(expr, biased[var])
        if var not in chosen:
            return None
        data, weight, *rest = expr.args
        known = constant_value(weight)
        assert known is not None
        scale, zero_point = parameters_of(known)
        steps = np.clip(np.rint(known / scale) + zero_point, -128, 127).astype(np.int8)
        stored = emit(qnn.dequantize(constant(steps), constant(scale), constant(zero_point)))
        return rebuild(expr, [data, stored, *rest])

    return rewrite(mod, rule)


def _with_rounded_bias(total: relax.Call, step: np.ndarray) -> relax.Call:
    """The sum with its constant operand as multiples of `step`, one for all channels or for each."""
    rounded = []
    for arg in total.args:
        bias = constant_value(arg)
        if bias is not None:
            unit = step.reshape(bias.shape) if step.size == bias.size else step.reshape(())
            bias = np.rint(bias / unit).astype(np.int32).astype(np.float32) * unit
        rounded.append(arg if bias is None else constant(bias))
    return relax.op.add(*rounded)


def parameters_of(weight: np.ndarray) -> tuple[np.float32, np.int32]:
    """ONNX Runtime's scale and zero point of int8 weights."""
    low, high = (np.float32(end) for end in (min(weight.min(), 0.0), max(weight.max(), 0.0)))
    scale = np.float32((high - low) / np.float32(255)) if high > low else np.float32(1)
    return scale, np.int32(np.rint(np.clip(np.float32(-128) - low / scale, -128, 127)))


class _Graph:
    """What is in front of the variables of `main` and behind them."""

    def __init__(self, mod: IRModule) -> None:
        function = mod["main"]
        self._bindings = bindings_of(function)
        self._readers = consumers(function, self._bindings)
        self._marks = marks_of(function)
        self.values = {binding.var: binding.value for binding in self._bindings}

    def rounds(self, var: Any, product: relax.Call) -> bool:
        """Whether its float weights are constant, its data dequantized with one scale, and its result is quantized."""
        weight = constant_value(factors_of(product)[1])
        if weight is None or str(weight.dtype) != "float32" or not weight.size or not np.isfinite(weight).all():
            return False
        return self._scale_of_data(data_of(product)) is not None and self._is_quantized(var)

    def steps_of_biases(self, chosen: Collection[Any]) -> dict[Any, np.ndarray]:
        """The sums of transposed convolutions and float biases that ONNX Runtime rounds, with their steps.

        chosen: the convolutions whose weights are rounded
        """
        found: dict[Any, np.ndarray] = {}
        for var, product in self.values.items():
            total = self._biased(var) if op_name(product) in TRANSPOSED else None
            if total is None or not self._is_quantized(var):
                continue
            data, weight = factors_of(product)
            known = constant_value(weight)
            of_weights = (
                parameters_of(known)[0] if var in chosen and known is not None else self._constant_scale(weight)
            )
            of_data = self._scale_of_data(data)
            channels = shape_of(product)[1]
            if of_data is not None and of_weights is not None and np.size(of_weights) in (1, channels):
                found[total] = np.float32(of_data.reshape(())) * np.asarray(of_weights, np.float32)
        return found

    def _biased(self, var: Any) -> Any | None:
        """What alone reads a product: its sum with a constant of one number for each channel, or with a single one."""
        binding = only_reader(var, self._readers, self._bindings)
        if binding is None:
            return None
        known = [constant_value(arg) for arg in binding.value.args] if op_name(binding.value) == "add" else []
        channels = shape_of(var)[1]
        return binding.var if any(bias is not None and bias.size in (1, channels) for bias in known) else None

    def _constant_scale(self, weight: Any) -> np.ndarray | None:
        """The constant scale with which weights are dequantized."""
        value = self.values.get(weight)
        return constant_value(value.args[1]) if value is not None and op_name(value) == "qnn.dequantize" else None

    def _scale_of_data(self, data: Any) -> np.ndarray | None:
        """The one scale with which data are dequantized; None if there is none."""
        value = self.values.get(data)
        while value is not None and traits_of(value).kind is Kind.MOVE:  # the integers move in ONNX Runtime
            value = self.values.get(data_of(value))
        if value is None or op_name(value) != "qnn.dequantize":
            return None
        if any(np.prod(shape_of(parameter)) != 1 for parameter in value.args[1:]):
            return None
        return constant_value(value.args[1])

    def _is_quantized(self, var: Any) -> bool:
        """Whether it is, behind a bias, an activation and moves, in front of which ONNX Runtime quantizes."""
        is_moved = False
        while True:
            binding = only_reader(var, self._readers, self._bindings)
            if binding is None:
                return False
            name = op_name(binding.value)
            if name == "qnn.quantize":
                return not call_attributes(binding.value)["reciprocal"]
            has_bias = name == "add" and any(constant_value(arg) is not None for arg in binding.value.args)
            if name in _MOVES and self._marks.get(binding.var.name) is not Mark.FLATTEN:
                is_moved = True
            elif is_moved or not (has_bias or name in ("nn.relu", "clip")):
                return False
            var = binding.var
