"""An ONNX graph under construction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from ..builder import Builder, Registry, Value
from ..recipe import Case, Recipe
from ..rules import FLOAT_SUMS, OVERFLOW, Rule, bounded

BYTES = ("int8", "uint8")
MICROSOFT = "com.microsoft"
GENERATORS = Registry()


def element(dtype: str) -> int:
    """ONNX's code of a dtype."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


class OnnxBuilder(Builder):
    """Nodes, inputs and initializers."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.declared: list[Any] = []
        self.count = 0

    def name(self, stem: str = "t") -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def declare(self, shape: tuple[int, ...], dtype: str, scale: float | None, zero: int) -> str:
        self.declared.append(helper.make_tensor_value_info(self.name("x"), element(dtype), shape))
        return str(self.declared[-1].name)

    def const(self, array: Any, dtype: str | None = None) -> str:
        """An initializer's name."""
        name = self.name("c")
        self.initializers.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def qparams(self, value: Value) -> list[str]:
        """Names of scale and zero point."""
        return [self.const(value.scale, "float32"), self.const(value.zero, value.dtype)]

    def node(
        self,
        operator: str,
        inputs: Sequence[Value | str],
        shape: Sequence[int],
        dtype: str,
        scale: float | None = None,
        zero: int = 0,
        *,
        domain: str = "",
        accident: Rule | None = None,
        steady: bool = True,
        extra: Sequence[Value] = (),
        island: bool = False,
        keeps: bool = False,
        **attributes: Any,
    ) -> Value:
        """Adds a node of one output. `extra`: further tensors whose rules the result inherits."""
        sources = [value for value in inputs if isinstance(value, Value)]
        names = [value.key if isinstance(value, Value) else value for value in inputs]
        key = self.name()
        self.nodes.append(helper.make_node(operator, names, [key], f"{operator}_{key}", domain=domain, **attributes))
        return self.keep(operator, key, shape, dtype, [*sources, *extra], scale, zero, accident, steady, island, keeps)

    def dequantized(self, value: Value) -> Value:
        """The tensor after a DequantizeLinear. It is only a step of an island: `quantized` follows."""
        return self.node("DequantizeLinear", [value, *self.qparams(value)], value.shape, "float32")

    def quantized(self, value: Value, dtype: str, scale: float, zero: int | None = None) -> Value:
        """The tensor after a QuantizeLinear."""
        zero = self.draw.zero_point(dtype) if zero is None else zero
        scale = float(np.float32(np.clip(scale, 1e-37, 1e37)))
        parameters = [self.const(scale, "float32"), self.const(zero, dtype)]
        accident = value.accident.after_quantize(scale) if value.accident else None
        inputs = [replace(value, accident=None), *parameters]
        return self.node("QuantizeLinear", inputs, value.shape, dtype, scale, zero, accident=accident)

    def sums(self, depth: int, largest: float) -> Rule | None:
        """The rule for float sums of `depth` products of up to `largest`, which in some graphs are exact: n·u·Σ|terms|
        for either side."""
        if depth * largest >= float(np.finfo(np.float32).max):
            return OVERFLOW
        return None if self.exact else bounded(FLOAT_SUMS, 2 * depth * 2.0**-24 * depth * largest)


def make(recipe: Recipe) -> Case:
    """The case of a recipe."""
    builder = OnnxBuilder(recipe)
    for step in recipe.steps:
        builder.draw.begin(step.seed)
        GENERATORS[step.operator](builder)
    outputs = [helper.make_tensor_value_info(v.key, element(v.dtype), v.shape) for v in builder.results()]
    graph = helper.make_graph(builder.nodes, "differential", builder.declared, outputs, builder.initializers)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    names = [value.key for value in builder.inputs]
    return builder.case(proto.SerializeToString(), names=names)
