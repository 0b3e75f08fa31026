"""Float weights of convolutions between integers are rounded to int8, as ONNX Runtime does when it loads a model.

    dequantize → conv with float weights → (+ bias) → (relu, clip) → quantize

ONNX Runtime's transformer WeightBiasQuantization computes such a convolution with integers: quantizers leave these
weights in float for the operators they have no integer form of, ConvTranspose above all, or where they were told to
skip a layer. The weights get one scale and one zero point, from their least and greatest value:

    scale = (max(w, 0) − min(w, 0)) / 255        zero point = rint(−128 − min(w, 0) / scale)

The bias is rounded by `qdq_to_integer`, as behind all integer products.
"""

from __future__ import annotations

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
from .rewrite import Emit, bindings_of, consumers, op_name, rewrite

CONVOLUTIONS = tuple(f"nn.conv{rank}d{suffix}" for rank in (1, 2, 3) for suffix in ("", "_transpose"))


def round_float_weights(mod: IRModule) -> IRModule:
    """`mod`, a QDQ graph, with such weights as quantized constants, in the bodies of loops too."""
    return with_bodies(_rounded(mod), round_float_weights)


def _rounded(mod: IRModule) -> IRModule:
    graph = _Graph(mod)
    chosen = [op_name(value) in CONVOLUTIONS and graph.is_between(var, value) for var, value in graph.values.items()]
    if not any(chosen):
        return mod
    is_chosen = iter(chosen)  # the bindings, in their order

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        if not next(is_chosen):
            return None
        data, weight, *rest = expr.args
        known = constant_value(weight)
        assert known is not None
        scale, zero_point = parameters_of(known)
        steps = np.clip(np.rint(known / scale) + zero_point, -128, 127).astype(np.int8)
        stored = emit(qnn.dequantize(constant(steps), constant(scale), constant(zero_point)))
        return rebuild(expr, [data, stored, *rest])

    return rewrite(mod, rule)


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
        self.values = {binding.var: binding.value for binding in self._bindings}

    def is_between(self, var: Any, product: relax.Call) -> bool:
        """Whether its float weights are constant, its data dequantized with one scale, and its result is quantized."""
        weight = constant_value(factors_of(product)[1])
        if weight is None or str(weight.dtype) != "float32" or not weight.size or not np.isfinite(weight).all():
            return False
        return self._is_dequantized(data_of(product)) and self._is_quantized(var)

    def _is_dequantized(self, data: Any) -> bool:
        value = self.values.get(data)
        while value is not None and traits_of(value).kind is Kind.MOVE:  # the integers move in ONNX Runtime
            value = self.values.get(data_of(value))
        if value is None or op_name(value) != "qnn.dequantize":
            return False
        return all(np.prod(shape_of(parameter)) == 1 for parameter in value.args[1:])

    def _is_quantized(self, var: Any) -> bool:
        while True:
            readers = self._readers[var]
            if len(readers) != 1 or readers[0] == len(self._bindings):
                return False
            binding = self._bindings[readers[0]]
            name = op_name(binding.value)
            if name == "qnn.quantize":
                return not call_attributes(binding.value)["reciprocal"]
            has_bias = name == "add" and any(constant_value(arg) is not None for arg in binding.value.args)
            if not has_bias and name not in ("nn.relu", "clip"):
                return False
            var = binding.var
