"""from_onnx: walks the nodes of an ONNX model and lowers each by its converter to the QNN dialect."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import IRModule, relax

from ...errors import ModelFormatError, UnsupportedOperatorError
from ...limits import Limits, add_own, begin_walk, charge, check, checkpoint, limited
from ...module import FloatNote, QnnModule, TensorSpec
from ...op.base import as_expr, constant, constant_value, definition_of, shape_of
from ...passes.qdq_to_integer import qdq_to_integer
from ..building import Builder, bind, blaming, distinct, fold, identifier
from . import converters  # noqa: F401  (fills the registry)
from .batch import check_batch_axis
from .fallback import convert_with_tvm
from .folding import evaluate, narrow_constant, unpacked
from .node import Node
from .reader import Model, Operator, Subgraph, check_inputs, check_kinds, read_model, read_subgraph
from .registry import find_converter
from .shapes import InputShapes, fixing_hint

_MOST_NESTED = 32  # branches within branches


def from_onnx(
    source: str | os.PathLike | bytes | Any, shapes: Mapping[str, Any] | None = None, limits: Limits | None = None
) -> QnnModule:
    """Import a quantized (or float) ONNX model: QDQ, QLinear and integer operators, and those of com.microsoft.

    source: path of an .onnx file, its bytes, or an onnx.ModelProto. External data files lie beside the file; where
            that is a link, as in Hugging Face's cache, links beside it may lead to the folder where the file itself is
    shapes: input name -> shape, or name of an open dimension -> size. A model whose inputs leave only their first
            dimension open takes batches of any size, if every operator treats the samples one by one; a name or None
            in the first place of a shape asks for that
    limits: what the import may take, by default `qnn_ext.Limits()`

    Results equal ONNX Runtime's: rint(x / scale) + zero_point, requantization rint(f32(acc) · f32(s_in / s_out)).
    Raises ModelFormatError (corrupt file), LimitError (beyond the limits), UnsupportedOperatorError (operator, version
    or dtype), ShapeError (open dimensions), QnnError (the onnx package is missing).
    """
    with limited(limits):
        return _import(source, shapes)


def _import(source: Any, shapes: Mapping[str, Any] | None) -> QnnModule:
    model = read_model(source)
    where = str(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else "model"
    if not model.outputs:
        raise ModelFormatError(f"{where}: the model has no outputs: export it again")
    dims = InputShapes(model, shapes)
    module = Importer(model, dims.all(), where).run()
    if dims.dynamic_batch:
        check_batch_axis(module, lambda: Importer(model, dims.all(2), where).run(), fixing_hint(model))
    ir, notes = qdq_to_integer(module.ir)
    return replace(
        module,
        ir=ir,
        inputs=tuple(replace(spec, dynamic_batch=dims.dynamic_batch) for spec in module.inputs),
        outputs=tuple(replace(spec, dynamic_batch=dims.dynamic_batch) for spec in module.outputs),
        notes=(*module.notes, *notes),
    )


class Importer:
    """State of one import: the values of all tensors so far, and the notes.

    shapes: of all inputs, every dimension decided
    """

    def __init__(self, model: Model, shapes: Mapping[str, tuple[int, ...]], source: str) -> None:
        self.model = model
        self.source = source
        self.notes: list[FloatNote] = []
        self.narrow_dtypes = dict(model.narrow_dtypes)
        self._shapes = shapes
        self._constants = dict(model.constants)
        self._values: dict[str, relax.Expr] = {}
        self._builder = Builder()
        self._depth = 0

    # ---- what nodes ask for --------------------------------------------------------------------------------------

    def value(self, name: str) -> relax.Expr:
        """A value by its name: an input, a constant, or computed by a node before."""
        if name not in self._values:
            if name not in self._constants:
                raise ModelFormatError(f"value {name!r} is used before it is computed")
            self._values[name] = constant(self._constants[name])
        return self._values[name]

    def emit(self, expr: relax.Expr, name: str = "") -> relax.Expr:
        """Bind an expression. Constants and variables stay as they are; constant subexpressions are computed now,
        but for `qnn.dequantize`: weights stay integers.

        Raises LimitError when the result would be too big.
        """
        expr = as_expr(expr)
        bound = bind(self._builder, expr, name)
        definition = definition_of(expr)
        return bound if definition is not None and definition.name == "dequantize" else fold(expr, bound)

    def fallback(self, node: Node) -> list[relax.Expr]:
        """The node's outputs by TVM's own converter. Raises UnsupportedOperatorError."""
        return convert_with_tvm(node, self._builder)

    # ---- the walk ------------------------------------------------------------------------------------------------

    def run(self) -> QnnModule:
        """Convert the whole graph. Quantized operators of QDQ models stay dequantize → float → quantize."""
        begin_walk(_elements_of(self.model))
        check("operands", max(len(self.model.inputs), len(self.model.outputs)))
        names = distinct([value.name for value in self.model.inputs])
        specs, params = [], []
        for value, name in zip(self.model.inputs, names, strict=True):
            dtype = _held_dtype(value.dtype)
            _check_carried(value.name, dtype)
            if dtype != value.dtype:
                self.narrow_dtypes[value.name] = value.dtype
            specs.append(TensorSpec(name, self._shapes[value.name], dtype))
            var = relax.Var(identifier(name) or "input", relax.TensorType(self._shapes[value.name], dtype))
            self._values[value.name] = var
            params.append(var)
        self._builder.begin_scope(params)
        self._builder._begin_dataflow_block()
        try:
            for operator in self.model.operators:
                self._convert(operator)
            outputs = [self._output(value.name, value.dtype) for value in self.model.outputs]
            result = self._builder.emit_output(relax.Tuple([self._materialize(value) for value in outputs]))
        finally:
            block = self._builder._end_block()
            self._builder.end_scope()
        body = self._builder.normalize(relax.SeqExpr([block], result))
        function = relax.Function(params, body).with_attr("global_symbol", "main").with_attr("num_input", len(params))
        mod = relax.transform.DeadCodeElimination(["main"])(IRModule({"main": function}))
        output_names = distinct([value.name for value in self.model.outputs])
        return QnnModule(
            ir=mod,
            inputs=tuple(specs),
            outputs=tuple(
                TensorSpec(name, shape_of(expr), str(expr.ty.dtype))
                for name, expr in zip(output_names, outputs, strict=True)
            ),
            notes=tuple(self.notes),
            source=self.source,
        )

    def _output(self, name: str, declared: str) -> relax.Expr:
        value = self.value(name)
        found = str(value.ty.dtype)
        if declared and found != _held_dtype(declared):
            raise ModelFormatError(f"output '{name}' is declared as {declared}, but computed as {found}")
        _check_carried(name, found)
        return value

    def _materialize(self, value: relax.Expr) -> relax.Expr:
        return self._builder.emit(value) if constant_value(value) is not None else value

    def _convert(self, operator: Operator) -> None:
        with blaming(operator.label()):
            for name in operator.outputs:
                if name in self._values or name in self._constants:
                    raise ModelFormatError(f"value {name!r} is computed twice")
            check_inputs(operator, self.model.opset(operator.domain))
            check("operands", max(len(operator.inputs), len(operator.outputs)), "the operator")
            checkpoint()
            if operator.op_type == "If" and not operator.domain:
                return self._convert_if(operator)
            check_kinds(operator, [str(self.value(n).ty.dtype) if n else "" for n in operator.inputs])
            if self._fold_node(operator):
                return
            node = Node(self, operator)
            entry = find_converter(operator.domain, operator.op_type, node.opset)
            result = entry.convert(node) if entry is not None else self.fallback(node)
            results = list(result) if isinstance(result, (list, tuple)) else [result]
            wanted = max((i + 1 for i, name in enumerate(operator.outputs) if name), default=0)
            if len(results) < wanted:
                raise UnsupportedOperatorError(f"output {wanted - 1} is not supported; {len(results)} are")
            for name, value in zip(operator.outputs, results, strict=False):
                if name:
                    self._values[name] = self._bind(value, name)

    def _bind(self, value: relax.Expr, name: str) -> relax.Expr:
        bound = self.emit(value, name)
        if not isinstance(bound.ty, relax.TensorType):
            raise UnsupportedOperatorError("the result is no tensor")
        if constant_value(bound) is not None:
            charge(shape_of(bound))
        return bound

    def _fold_node(self, operator: Operator) -> bool:
        """Compute a node whose inputs are all constant; False when it is to be converted."""
        inputs = [constant_value(self.value(name)) if name else None for name in operator.inputs]
        if any(value is None for name, value in zip(operator.inputs, inputs, strict=True) if name):
            return False
        narrow = [self.narrow_dtypes.get(name, "") for name in operator.inputs]
        results = evaluate(operator, inputs, narrow, self.model.opset(operator.domain))
        if results is None or len(results) < len(operator.outputs):
            return False
        for name, result in zip(operator.outputs, results, strict=False):
            value, dtype = unpacked(result)
            dtype = dtype or (narrow_constant(operator) if operator.op_type == "Constant" else "")
            charge(value.shape)
            if name:
                self._values[name] = constant(value)
                if dtype:
                    self.narrow_dtypes[name] = dtype
        return True

    def _convert_if(self, operator: Operator) -> None:
        """The branch that is taken, in place of the node; the condition must be known at import."""
        condition = constant_value(self.value(operator.inputs[0])) if operator.inputs else None
        if condition is None:
            raise UnsupportedOperatorError("a condition that is computed at run time is not supported")
        branch = operator.attributes.get("then_branch" if condition.reshape(-1)[:1].any() else "else_branch")
        if branch is None or self._depth >= _MOST_NESTED:
            raise ModelFormatError("the branch is missing" if branch is None else "branches are nested too deeply")
        graph = read_subgraph(branch, self.model.external)
        add_own(_elements_of(graph))
        self._constants.update(graph.constants)
        self.narrow_dtypes.update(graph.narrow_dtypes)
        self._depth += 1
        for inner in graph.operators:
            self._convert(inner)
        self._depth -= 1
        if len(graph.outputs) < len(operator.outputs):
            raise ModelFormatError(f"has {len(operator.outputs)} outputs, but its branch {len(graph.outputs)}")
        for name, inner_name in zip(operator.outputs, graph.outputs, strict=False):
            self._values[name] = self.value(inner_name)


def _elements_of(graph: Model | Subgraph) -> int:
    """Elements of a graph's own constants, those that its nodes hold too."""
    held = (value for operator in graph.operators for value in operator.attributes.values())
    arrays = [*graph.constants.values(), *(value for value in held if isinstance(value, np.ndarray))]
    return sum(array.size for array in arrays)


def _check_carried(name: str, dtype: str) -> None:
    """Inputs and outputs are NumPy arrays, and NumPy has no bfloat16."""
    if dtype == "bfloat16":
        raise UnsupportedOperatorError(f"'{name}' is bfloat16, which no array can hold; cast it in the model")


def _held_dtype(dtype: str) -> str:
    """4- and 2-bit integers are held in 8 bits."""
    return re.sub(r"int[24]$", "int8", dtype)
