"""from_onnx: walks the nodes of an ONNX model and lowers each by its converter to the QNN dialect."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from tvm import IRModule, relax

from ...errors import ModelFormatError, QnnError, UnsupportedOperatorError
from ...interpreter import interpret
from ...module import FloatNote, QnnModule, TensorSpec
from ...op.base import as_expr, constant, constant_value, definition_of, shape_of
from ..tflite.importer import _leaves, identifier
from ..tflite.limits import Budget, check_elements
from . import converters  # noqa: F401  (fills the registry)
from .node import Node
from .reader import Model, Operator, read_model
from .registry import find_converter


def from_onnx(source: str | os.PathLike | bytes | Any, shapes: Mapping[str, Any] | None = None) -> QnnModule:
    """Import an ONNX model."""
    model = read_model(source)
    where = os.fspath(source) if isinstance(source, (str, os.PathLike)) else "model"
    return Importer(model, str(where)).run()


class Importer:
    """State of one import: the values of all tensors so far, and the notes."""

    def __init__(self, model: Model, source: str) -> None:
        self.model = model
        self.source = source
        self.notes: list[FloatNote] = []
        self.narrow_dtypes = dict(model.narrow_dtypes)
        self.budget = Budget(sum(array.size for array in model.constants.values()))
        self._values: dict[str, relax.Expr] = {}
        self._builder = relax.BlockBuilder()

    # ---- what nodes ask for --------------------------------------------------------------------------------------

    def value(self, name: str) -> relax.Expr:
        """A value by its name: an input, a constant, or computed by a node before."""
        if name not in self._values:
            if name not in self.model.constants:
                raise ModelFormatError(f"value {name!r} is used before it is computed")
            self._values[name] = constant(self.model.constants[name])
        return self._values[name]

    def emit(self, expr: relax.Expr, name: str = "") -> relax.Expr:
        """Bind an expression. Constants and variables stay as they are; constant subexpressions are computed now,
        but for `qnn.dequantize`: weights stay integers."""
        expr = as_expr(expr)
        if isinstance(expr, relax.Var) or constant_value(expr) is not None:
            return expr
        bound = self._builder.emit(expr, identifier(name))
        if isinstance(bound.ty, relax.TensorType):
            check_elements(shape_of(bound))
        return self._fold(expr, bound)

    def _fold(self, expr: relax.Expr, bound: relax.Expr) -> relax.Expr:
        definition = definition_of(expr)
        if not isinstance(expr, relax.Call) or (definition is not None and definition.name == "dequantize"):
            return bound
        values = [constant_value(leaf) for leaf in _leaves(expr)]
        known = [value for value in values if value is not None]
        if known and len(known) == len(values) and self.budget.can_fold(bound.ty, known):
            builder = relax.BlockBuilder()
            with builder.function("main", []):
                builder.emit_func_output(builder.emit(expr))
            with np.errstate(all="ignore"):  # the model's own arithmetic: it may well compute an infinity
                results = interpret(builder.get(), [])
            if len(results) == 1 and isinstance(bound.ty, relax.TensorType):
                return constant(results[0])
        return bound

    # ---- the walk ------------------------------------------------------------------------------------------------

    def run(self) -> QnnModule:
        """Convert the whole graph."""
        specs = [TensorSpec(v.name, tuple(v.shape), v.dtype) for v in self.model.inputs]
        params = []
        for spec in specs:
            var = relax.Var(identifier(spec.name) or "input", relax.TensorType(spec.shape, spec.dtype))
            self._values[spec.name] = var
            params.append(var)
        self._builder.begin_scope(params)
        self._builder._begin_dataflow_block()
        try:
            for operator in self.model.operators:
                self._convert(operator)
            outputs = [self.value(value.name) for value in self.model.outputs]
            result = self._builder.emit_output(relax.Tuple([self._materialize(value) for value in outputs]))
        finally:
            block = self._builder._end_block()
            self._builder.end_scope()
        body = self._builder.normalize(relax.SeqExpr([block], result))
        function = relax.Function(params, body).with_attr("global_symbol", "main").with_attr("num_input", len(params))
        mod = relax.transform.DeadCodeElimination(["main"])(IRModule({"main": function}))
        return QnnModule(
            ir=mod,
            inputs=tuple(specs),
            outputs=tuple(
                TensorSpec(value.name, shape_of(expr), str(expr.ty.dtype))
                for value, expr in zip(self.model.outputs, outputs, strict=True)
            ),
            notes=tuple(self.notes),
            source=self.source,
        )

    def _materialize(self, value: relax.Expr) -> relax.Expr:
        return self._builder.emit(value) if constant_value(value) is not None else value

    def _convert(self, operator: Operator) -> None:
        with _blaming(operator):
            entry = find_converter(operator.domain, operator.op_type, self.model.opset(operator.domain))
            if entry is None:
                raise UnsupportedOperatorError("the operator is not supported")
            result = entry.convert(Node(self, operator))
            results = list(result) if isinstance(result, (list, tuple)) else [result]
            if len(results) < len(operator.outputs):
                raise ModelFormatError(f"has {len(operator.outputs)} outputs, found {len(results)}")
            for name, value in zip(operator.outputs, results, strict=False):
                if name:
                    self._values[name] = self.emit(value, name)


@contextmanager
def _blaming(operator: Operator) -> Iterator[None]:
    """Every error within becomes one of ours that names the operator."""
    label = operator.label()
    try:
        yield
    except QnnError as error:
        if label in str(error):
            raise
        raise type(error)(f"{label}: {error}") from error
    except MemoryError as error:
        raise ModelFormatError(f"{label}: needs more memory than there is: {error}") from error
    except Exception as error:  # a type rule of TVM's own operators, or a contradiction in the file
        raise ModelFormatError(
            f"{label}: inputs and attributes do not fit together: {_reason(error)}; export the model again"
        ) from error


def _reason(error: Exception) -> str:
    """The last line of a message, with the operators that TVM spells out reduced to their names."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return re.sub(r'ir\.Op\(.*?, name="([\w.]+)".*support_level=\d+\)', r"\1", lines[-1]).rstrip(".")
