"""MXNet symbols as its quantizer writes them: a quantized tensor is a node's three outputs, integers, min and max."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..builder import Builder, Registry, Value, beyond_int32
from ..recipe import Case, Recipe
from ..rules import Rule
from ..values import LARGEST_INPUT

Edge = list[int]
TRIPLE = 3
GENERATORS = Registry()


class Nodes:
    """The nodes of a graph or subgraph."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.counts: list[int] = []

    def add(
        self, op: str, name: str, inputs: Sequence[Edge] = (), outputs: int = 1, subgraph: Any = None, **attrs: Any
    ) -> int:
        """Adds a node; returns its index. Attributes are written as in MXNet, all as text."""
        node = {"op": op, "name": name, "inputs": list(inputs)}
        if attrs:
            node["attrs"] = {key: str(value) for key, value in attrs.items()}
        if subgraph is not None:
            node["subgraphs"] = [subgraph]
        self.nodes.append(node)
        self.counts.append(outputs)
        return len(self.nodes) - 1

    def json(self, heads: Sequence[Edge]) -> dict[str, Any]:
        """The symbol whose outputs are `heads`."""
        return {
            "nodes": self.nodes,
            "arg_nodes": [index for index, node in enumerate(self.nodes) if node["op"] == "null"],
            "node_row_ptr": [0, *np.cumsum(self.counts).tolist()],
            "heads": list(heads),
        }


class MXNetBuilder(Builder):
    """`Value.key` is the node's index; `Value.scale` is the larger end of a quantized tensor's range, 0 if the model
    computes it at run time."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        self.graph = Nodes()
        self.params: dict[str, np.ndarray] = {}
        self.auxiliary: dict[str, np.ndarray] = {}

    def name(self, stem: str) -> str:
        return f"{stem}{len(self.graph.nodes)}"

    def declare(self, shape: tuple[int, ...], dtype: str, scale: float | None, zero: int) -> int:
        return self.graph.add("null", self.name("x"))

    def param(self, array: np.ndarray, auxiliary: bool = False) -> Edge:
        """A parameter."""
        name = self.name("p")
        (self.auxiliary if auxiliary else self.params)[name] = array
        return [self.graph.add("null", name), 0, 0]

    def limit(self, about: float = 4.0) -> float:
        """The end of a range."""
        return self.scale(about)

    def calibrated(self, low_too: bool = True, about: float = 4.0) -> dict[str, Any]:
        """Attributes of a calibrated range; they are read back as float32."""
        high = self.limit(about)
        low = -high if self.draw.chance(0.4) else -float(np.float32(high * self.draw.rng.uniform(0, 1.5)))
        return {"min_calib_range": repr(low if low_too else 0.0), "max_calib_range": repr(high)}

    def node(
        self,
        op: str,
        inputs: Sequence[Edge],
        sources: Sequence[Value],
        shape: Sequence[int],
        dtype: str,
        largest: float | None = None,
        accident: Rule | None = None,
        steady: bool = True,
        subgraph: Any = None,
        **attrs: Any,
    ) -> Value:
        """Adds an operator; with three outputs where the result is quantized, that is, where `largest` is given."""
        outputs = 1 if largest is None else TRIPLE
        index = self.graph.add(op, self.name("n"), inputs, outputs, subgraph, **attrs)
        return self.keep(op, index, shape, dtype, sources, largest, accident=accident, steady=steady)

    def quantized_input(self, shape: Sequence[int], dtype: str | None = None) -> Value:
        """A new input of the model, quantized."""
        return self.quantize(self.fresh("float32", shape), dtype)

    def quantize(self, x: Value, dtype: str | None = None) -> Value:
        """Calibrated for the values of inputs; the dtype is `auto` as often as named."""
        dtype = dtype or self.draw.pick(["int8", "uint8"])
        attrs = self.calibrated(low_too=dtype == "int8")
        attrs["out_type"] = "auto" if dtype == "uint8" and self.draw.chance(0.3) else dtype
        largest = largest_of(attrs)
        accident = self.undefined or beyond_int32(LARGEST_INPUT * 255, largest)
        return self.node("_contrib_quantize_v2", [data(x)], [x], x.shape, dtype, largest, accident, **attrs)

    def take_q(self, rank: int | Sequence[int] = (2, 3, 4), dtypes: Sequence[str] = ("int8", "uint8")) -> Value:
        """A quantized tensor of 8 bits, whose range is known when the model is imported."""
        found = [v for v in self.values if v.dtype in dtypes and v.scale and len(v.shape) in np.atleast_1d(rank)]
        if found and self.draw.chance(0.85):
            return found[-1] if self.draw.chance(0.6) else self.draw.pick(found)
        return self.quantized_input(self.draw.shape(self.draw.pick(np.atleast_1d(rank).tolist())), dtypes[0])


def data(value: Value) -> Edge:
    return [value.key, 0, 0]


def ends(value: Value) -> list[Edge]:
    """Min and max of a quantized tensor."""
    return [[value.key, 1, 0], [value.key, 2, 0]]


def largest_of(attrs: Mapping[str, Any]) -> float:
    """max(|min|, |max|) of a calibrated range."""
    return max(abs(float(attrs[key])) for key in ("min_calib_range", "max_calib_range"))


def make(recipe: Recipe) -> Case:
    """The case of a recipe. Quantized results are dequantized at the end, as in MXNet's models: no others run there."""
    builder = MXNetBuilder(recipe)
    for step in recipe.steps:
        builder.draw.begin(step.seed)
        GENERATORS[step.operator](builder)
    for value in builder.results():
        if value.quantized:
            step = (value.scale or 0.0) / {"int8": 127, "uint8": 255}.get(value.dtype, 2**31 - 1)
            accident = value.accident.after_dequantize(step) if value.accident else None
            source, inputs = replace(value, accident=None), [data(value), *ends(value)]
            builder.node("_contrib_dequantize", inputs, [source], value.shape, "float32", accident=accident)
    names = [builder.graph.nodes[value.key]["name"] for value in builder.inputs]
    symbol = builder.graph.json([data(value) for value in builder.results()])
    symbol["attrs"] = {"mxnet_version": ["int", 10901]}
    shapes = {name: value.shape for name, value in zip(names, builder.inputs, strict=True)}
    params = {f"arg:{k}": v for k, v in builder.params.items()} | {f"aux:{k}": v for k, v in builder.auxiliary.items()}
    return builder.case(json.dumps(symbol), params=params, shapes=shapes)
