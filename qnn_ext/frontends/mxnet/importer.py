"""from_mxnet: walks the nodes of an MXNet symbol and lowers each by its converter to the QNN dialect."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import index as operator_index
from typing import Any

import numpy as np
from tvm import relax

from ...entry_points import load_plugins
from ...errors import ModelFormatError, QnnError, ShapeError, UnsupportedOperatorError
from ...limits import Limits, begin_walk, check, check_elements, limited
from ...module import QnnModule, TensorSpec
from ...op.base import constant, constant_value, shape_of
from ...qparams import QParams
from ..building import blaming, distinct
from ..feedback import with_states
from . import attributes, converters  # noqa: F401  (the second fills the registry)
from .assembly import MxnetAssembly
from .node import Node
from .reader import DTYPES, read_params
from .registry import CONVERTERS
from .scales import LEVELS
from .symbol import Edge, Graph, Operator, read_symbol

SUM_MODES = ("intended", "mxnet")
# operators whose second input is the label, used only in training
LABELLED = (
    "SoftmaxOutput", "Softmax", "LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput",
)  # fmt: skip


def from_mxnet(
    symbol: str | os.PathLike | bytes | Mapping[str, Any],
    params: str | os.PathLike | bytes | Mapping[str, Any],
    shapes: Mapping[str, Sequence[int]] | None = None,
    sum_mode: str = "intended",
    limits: Limits | None = None,
    states: Mapping[str, str] | None = None,
) -> QnnModule:
    """Import an MXNet 1.x model, quantized (the oneDNN-fused form of `quantize_net` and `quantize_model_mkldnn`) or
    float. MXNet is not needed.

    symbol:   path of a `-symbol.json`, its text, or its content as a dict
    params:   path of a `.params` file, its bytes, or a dict of arrays by name
    shapes:   input name -> shape, e.g. {"data": (1, 3, 224, 224)}; may be omitted where the symbol itself declares it
    sum_mode: how a quantized convolution with a residual sum computes. "intended": the sum is computed in float32 and
              then saturated to the output's dtype. "mxnet" equals MXNet 1.9.1 bit for bit, which computes in the buffer
              of the sum's operand, so that an int8 operand clips a uint8 result at 127, half of its range. Two more of
              its defects are in "mxnet" only: weights of a convolution with several groups (not depthwise) quantized
              with another channel's scale, and averages that count cells beyond the padding (pooling_convention="full")
    limits:   the limits of the import, by default `qnn_ext.Limits()`
    states:   input name -> name of the output that is its next value, such as a recurrent network's hidden state: the
              module has neither, the engine keeps the value between calls, from zeros on (`Engine.reset_state`)

    Raises ModelFormatError (corrupt file), LimitError (beyond the limits), UnsupportedOperatorError (operator, or a
    graph MXNet itself cannot run), ShapeError (input shapes missing or wrong).
    """
    if sum_mode not in SUM_MODES:
        raise QnnError(f"sum_mode must be one of {', '.join(SUM_MODES)}, found {sum_mode!r}")
    load_plugins()
    is_path = isinstance(symbol, os.PathLike) or (isinstance(symbol, str) and not symbol.lstrip().startswith("{"))
    source = os.fspath(symbol) if is_path else "symbol"  # type: ignore[arg-type]
    with limited(limits):
        importer = Importer(read_symbol(symbol), read_params(params), dict(shapes or {}), sum_mode, str(source))
        return with_states(importer.run(), states)


class Importer:
    """One import: the walk over a graph and the graphs fused into its operators."""

    def __init__(
        self, graph: Graph, params: Mapping[str, np.ndarray], shapes: Mapping[str, Any], sum_mode: str, source: str
    ) -> None:
        self.graph = graph
        self.params = params
        self.shapes = shapes
        self.source = source
        self.assembly = MxnetAssembly(graph, params, sum_mode == "intended", self._convert_graph)

    # ---- the walk --------------------------------------------------------------------------------------------------

    def run(self) -> QnnModule:
        """Convert the whole graph."""
        begin_walk(sum(array.size for array in self.params.values()))
        variables = self._variables()
        inputs = [node for node in variables if node.name not in self.params]
        specs = self._input_specs(inputs)
        values: dict[Edge, relax.Expr] = {
            (node.index, 0): constant(self.params[node.name]) for node in variables if node.name in self.params
        }
        for node, spec in zip(inputs, specs, strict=True):
            values[node.index, 0] = self.assembly.input(spec.name, spec.shape, spec.dtype)
        outputs: list[relax.Expr] = []

        def walk() -> list[relax.Expr]:
            outputs.extend(self._convert_graph(self.graph, values))
            return outputs

        return QnnModule(
            ir=self.assembly.module(walk),
            inputs=tuple(specs),
            outputs=self._output_specs(outputs, values),
            notes=tuple(self.assembly.notes),
            source=self.source,
        )

    def _convert_graph(self, graph: Graph, values: dict[Edge, relax.Expr]) -> list[relax.Expr]:
        """Convert all nodes of a graph whose variables already have values; returns the values of its outputs."""
        for operator in graph.needed:
            if not operator.is_variable:
                self._convert(operator, values)
        missing = [graph.nodes[node].name for node, output in graph.heads if (node, output) not in values]
        if missing:
            raise ModelFormatError(f"output of node '{missing[0]}' does not exist")
        return [values[edge] for edge in graph.heads]

    def _convert(self, operator: Operator, values: dict[Edge, relax.Expr]) -> None:
        convert = CONVERTERS.get(operator.op)
        if convert is None:
            raise UnsupportedOperatorError(f"{operator.label()}: operator {operator.op} is not supported")
        with np.errstate(over="raise", invalid="raise", divide="raise"), blaming(operator.label()):
            labels = self._labels if operator.op in LABELLED else ()
            check("operands", len(operator.inputs), "the operator")
            inputs = [self._value(edge, operator, values) for edge in operator.inputs if edge not in labels]
            result = convert(Node(self.assembly, operator, inputs))
            for index, value in enumerate(result if isinstance(result, (list, tuple)) else [result]):
                values[operator.index, index] = self.assembly.emit(value, operator.name if index == 0 else "")

    def _value(self, edge: Edge, operator: Operator, values: Mapping[Edge, relax.Expr]) -> relax.Expr:
        if edge not in values:
            raise ModelFormatError(f"{operator.label()}: input {edge} does not exist")
        return values[edge]

    # ---- inputs and outputs ----------------------------------------------------------------------------------------

    @cached_property
    def _labels(self) -> set[Edge]:
        """Variables read only by a training loss."""
        losses = {node.inputs[1] for node in self.graph.needed if node.op in LABELLED and len(node.inputs) == 2}
        read = {edge for node in self.graph.needed for edge in node.inputs if node.op not in LABELLED}
        return {edge for edge in losses - read if self.graph.nodes[edge[0]].name not in self.params}

    def _variables(self) -> list[Operator]:
        """The variables that are read, except labels. Raises ModelFormatError when two have the same name."""
        read = {edge[0] for node in self.graph.needed for edge in node.inputs} | {edge[0] for edge in self.graph.heads}
        read -= {edge[0] for edge in self._labels}
        found = [node for node in self.graph.nodes if node.is_variable and node.index in read]
        names = [node.name for node in found]
        twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
        if twice is not None:
            raise ModelFormatError(f"{self.source}: two variables have the name '{twice}'")
        return found

    def _input_specs(self, inputs: Sequence[Operator]) -> list[TensorSpec]:
        names = [node.name for node in inputs]
        unknown = [name for name in self.shapes if name not in names]
        if unknown:
            known = ", ".join(map(repr, names)) or "none"
            raise ShapeError(f"a shape is given for {unknown[0]!r}, but the inputs of {self.source} are {known}")
        return [TensorSpec(node.name, self._input_shape(node), _input_dtype(node)) for node in inputs]

    def _input_shape(self, node: Operator) -> tuple[int, ...]:
        declared = node.attrs.get("__shape__")
        wanted = self.shapes.get(node.name)
        try:
            if wanted is not None:
                shape = tuple(operator_index(dim) for dim in wanted)
            else:
                shape = () if declared is None else attributes.integers(declared)
        except TypeError:
            raise ShapeError(f"input '{node.name}': a shape must be a sequence of integers, found {wanted!r}") from None
        except ModelFormatError as error:
            raise ModelFormatError(f"input '{node.name}': __shape__ {error}") from None
        if any(dim < 1 for dim in shape) or (not shape and wanted is None):
            found = f"shape {shape}" if shape else "no shape in the symbol"
            raise ShapeError(
                f"'{node.name}' has {found} and no value in the parameters: if it is an input, give its shape, "
                f"shapes={{{node.name!r}: (1, 3, 224, 224)}}; if it is a parameter, this is the wrong .params file"
            )
        return check_elements(shape, f"input '{node.name}'")

    def _output_specs(self, outputs: Sequence[relax.Expr], values: Mapping[Edge, relax.Expr]) -> tuple[TensorSpec, ...]:
        names = distinct([f"{self.graph.nodes[node].name}_output" for node, _ in self.graph.heads])
        return tuple(
            TensorSpec(name, shape_of(expr), str(expr.ty.dtype), _qparams(expr, edge, values))
            for name, expr, edge in zip(names, outputs, self.graph.heads, strict=True)
        )


def _input_dtype(node: Operator) -> str:
    code = node.attrs.get("__dtype__", "0")
    try:
        known = DTYPES.get(max(attributes.integer(code), 0))  # −1: not stated, so float32
    except ModelFormatError:
        known = None
    if known is None:
        raise ModelFormatError(f"input '{node.name}' has the unknown dtype {code}")
    return str(np.dtype(known).newbyteorder("="))


def _qparams(expr: relax.Expr, edge: Edge, values: Mapping[Edge, relax.Expr]) -> QParams | None:
    """Scale of an integer output whose range is in outputs 1 and 2 of its node."""
    dtype = str(expr.ty.dtype)
    if edge[1] or dtype not in LEVELS:
        return None
    limits = [constant_value(values[edge[0], i]) if (edge[0], i) in values else None for i in (1, 2)]
    if any(limit is None for limit in limits):
        return None
    largest = max(float(np.abs(limit).max()) for limit in limits if limit is not None)
    return QParams(np.float32(largest) / LEVELS[dtype], 0, dtype) if largest > 0 else None
