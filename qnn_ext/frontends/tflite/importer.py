"""from_tflite: walks the operators of a .tflite file and lowers each by its converter to the QNN dialect."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import index as operator_index

import numpy as np
from tvm import IRModule, relax

from ...errors import ModelFormatError, QnnError, ShapeError, UnsupportedOperatorError
from ...limits import Limits, begin_walk, charge, check, check_elements, limited
from ...module import FloatNote, QnnModule, State, TensorSpec
from ...op.base import as_expr, constant, constant_value
from ..building import Builder, bind, blaming, distinct, fold, identifier
from . import converters  # noqa: F401  (fills the registry)
from .node import Node, shape_of
from .reader import Model, Operator, Subgraph, Tensor, read_model
from .registry import CONVERTERS

NUMERICS = ("float32", "tflite")
VALUE_DTYPES = (
    "float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool",
)  # fmt: skip


def from_tflite(
    source: str | os.PathLike | bytes,
    numerics: str = "float32",
    shapes: Mapping[str, Sequence[int]] | None = None,
    limits: Limits | None = None,
) -> QnnModule:
    """Import a quantized (or float) TFLite model.

    source:   path of a .tflite file, or its bytes
    numerics: "float32" rounds requantization like XNNPACK, TFLite's default backend: rint(f32(acc) · scale).
              "tflite" equals TFLite's reference kernels bit for bit, in 64-bit integer arithmetic
    shapes:   input name -> shape, to change the batch size (or an image size) at import
    limits:   what the import may take, by default `qnn_ext.Limits()`

    Raises ModelFormatError (corrupt file), LimitError (beyond the limits), UnsupportedOperatorError (operator, version
    or dtype), ShapeError.
    """
    if numerics not in NUMERICS:
        raise QnnError(f"numerics must be one of {', '.join(NUMERICS)}, found {numerics!r}")
    where = "model" if isinstance(source, (bytes, bytearray, memoryview)) else os.fspath(source)
    with limited(limits):
        return Importer(read_model(source), numerics, dict(shapes or {}), str(where)).run()


class Importer:
    """State of one import: the values of all tensors so far, the notes, the model's own state."""

    def __init__(self, model: Model, numerics: str, shapes: dict[str, Sequence[int]], source: str) -> None:
        self.model = model
        self.graph: Subgraph = model.subgraphs[0]
        self.numerics = numerics
        self.shapes = shapes
        self.source = source
        self.notes: list[FloatNote] = []
        self.states: list[State] = []
        self.state_inputs: list[relax.Var] = []
        self.state_values: dict[str, relax.Expr] = {}
        self.initial_states: dict[str, np.ndarray] = {}
        self._values: dict[int, relax.Expr] = {}
        self._builder = Builder()

    # ---- what nodes ask for --------------------------------------------------------------------------------------

    def tensor(self, index: int) -> Tensor:
        """A tensor's description in the file."""
        return self.graph.tensors[index]

    def value(self, index: int) -> relax.Expr:
        """A tensor's value: computed, constant, or the state that a variable tensor keeps between calls."""
        if index not in self._values:
            tensor = self.tensor(index)
            if tensor.data is not None:
                self._values[index] = constant(tensor.data)
            elif tensor.is_variable:
                return self.read_variable(index)
            else:
                raise ModelFormatError(f"tensor '{tensor.name}' is used before it is computed")
        return self._values[index]

    def _state_name(self, index: int) -> str:
        return f"{self.tensor(index).name or 'variable'}#{index}"

    def read_state(self, name: str, initial: np.ndarray) -> relax.Expr:
        """The current value of a state; at its first use the state is declared with its initial value."""
        if name not in self.state_values:
            self.states.append(State(name, initial))
            var = relax.Var(f"state{len(self.states)}", relax.TensorType(initial.shape, str(initial.dtype)))
            self.state_inputs.append(var)
            self.state_values[name] = var
        return self.state_values[name]

    def write_state(self, name: str, value: relax.Expr) -> None:
        """What the state holds from here on."""
        self.state_values[name] = value

    def read_variable(self, index: int, shape: Sequence[int] | None = None) -> relax.Expr:
        """A variable tensor (LSTM and SVDF keep their state in one), which begins with zeros; `shape` where it is not
        the file's, because the import changed the batch size."""
        tensor = self.tensor(index)
        _check_dtype(tensor)
        charge(tensor.shape if shape is None else shape)
        initial = np.zeros(tensor.shape if shape is None else tuple(shape), tensor.dtype)
        if tensor.qparams is not None:
            initial += np.asarray(tensor.qparams.zero_point).astype(tensor.dtype)
        return self.read_state(self._state_name(index), initial)

    def write_variable(self, index: int, value: relax.Expr) -> None:
        """Assign to a variable tensor."""
        self.read_variable(index)
        self.write_state(self._state_name(index), value)

    def run_once(self, index: int) -> None:
        """Run an initialization subgraph now: what it assigns are the states' first values. Raises
        UnsupportedOperatorError when these depend on anything but constants."""
        graph = self.model.subgraphs[index]
        once = Importer(self.model, self.numerics, {}, self.source)
        once.graph = graph
        once._builder.begin_scope([])
        once._builder._begin_dataflow_block()
        try:
            for operator in graph.operators:
                once._convert(operator)
        finally:
            once._builder._end_block()
            once._builder.end_scope()
        for name, expr in once.state_values.items():
            value = constant_value(expr)
            if value is None:
                raise UnsupportedOperatorError(f"the initial value of variable '{name}' is no constant")
            self.initial_states[name] = value

    def emit(self, expr: relax.Expr, name: str = "") -> relax.Expr:
        """Bind an expression. Constants and variables stay as they are; constant subexpressions are computed now.

        Raises LimitError when the result would be too big.
        """
        expr = as_expr(expr)
        return fold(expr, bind(self._builder, expr, name))

    # ---- the walk ------------------------------------------------------------------------------------------------

    def run(self) -> QnnModule:
        """Convert the whole main subgraph."""
        for what, count in (("operators", len(self.graph.operators)), ("outputs", len(self.graph.outputs))):
            if not count:
                raise ModelFormatError(f"{self.source}: the model has no {what}: export it again, from a trained model")
        begin_walk(sum(tensor.data.size for tensor in self.graph.tensors if tensor.data is not None))
        inputs = self._input_specs()
        params = []
        for index, spec in zip(self.graph.inputs, inputs, strict=True):
            var = relax.Var(identifier(spec.name) or "input", relax.TensorType(spec.shape, spec.dtype))
            self._values[index] = var
            params.append(var)
        # States turn up during the walk, after the parameters have to be named: so the walk runs in a throw-away
        # function scope and the real function is assembled from its bindings.
        self._builder.begin_scope(params)
        self._builder._begin_dataflow_block()
        try:
            for operator in self.graph.operators:
                self._convert(operator)
            outputs = [self.value(index) for index in self.graph.outputs]
            results = [*outputs, *self.state_values.values()]
            result = self._builder.emit_output(relax.Tuple([self._materialize(value) for value in results]))
        finally:
            block = self._builder._end_block()
            self._builder.end_scope()
        body = self._builder.normalize(relax.SeqExpr([block], result))
        function = relax.Function([*params, *self.state_inputs], body).with_attr("global_symbol", "main")
        function = function.with_attr("num_input", len(params))
        mod = relax.transform.DeadCodeElimination(["main"])(IRModule({"main": function}))
        return QnnModule(
            ir=mod,
            inputs=tuple(inputs),
            outputs=self._output_specs(outputs),
            states=tuple(self.states),
            notes=tuple(self.notes),
            source=self.source,
        )

    def _materialize(self, value: relax.Expr) -> relax.Expr:
        return self._builder.emit(value) if constant_value(value) is not None else value

    def _convert(self, operator: Operator) -> None:
        entry = CONVERTERS.get(operator.name)
        if entry is None:
            kind = "custom operator" if operator.custom else "operator"
            raise UnsupportedOperatorError(
                f"{operator.label()}: {kind} {operator.name} is not supported; "
                "`qnn-ext inspect` lists all operators of the model"
            )
        if operator.version > entry.max_version:
            raise UnsupportedOperatorError(
                f"{operator.label()}: version {operator.version} is newer than {entry.max_version}, the newest known; "
                "convert the model with an older TFLite converter, or update qnn_ext"
            )
        node = Node(self, operator)
        operands = max(len(operator.inputs), len(operator.outputs))
        with np.errstate(over="raise", invalid="raise", divide="raise"), blaming(operator.label()):
            check("operands", operands, "the operator")
            result = entry.convert(node)
            results = list(result) if isinstance(result, (list, tuple)) else [result]
            outputs = [i for i in operator.outputs if self.tensor(i).dtype != "resource"]  # handles, no values
            if len(results) != len(outputs):
                raise ModelFormatError(f"has {len(outputs)} outputs, {operator.name} yields {len(results)}")
            for index, value in zip(outputs, results, strict=True):
                self._bind_output(index, value)

    def _bind_output(self, index: int, value: relax.Expr) -> None:
        tensor = self.tensor(index)
        bound = self.emit(value, tensor.name)
        if not isinstance(bound.ty, relax.TensorType):
            raise ModelFormatError("the result is no tensor")
        shape, dtype = shape_of(bound), str(bound.ty.dtype)
        if dtype != tensor.dtype:
            raise ModelFormatError(f"yields {dtype}, but the file declares {tensor.dtype}")
        if not self.shapes and not _shape_fits(shape, tensor):
            raise ModelFormatError(f"yields shape {shape}, but the file declares {tensor.shape}")
        if constant_value(bound) is not None:
            charge(shape)
        self._values[index] = bound

    def _input_specs(self) -> list[TensorSpec]:
        tensors = [self.tensor(index) for index in self.graph.inputs]
        names = [tensor.name for tensor in tensors]
        unknown = [name for name in self.shapes if name not in names]
        if unknown:
            raise ShapeError(
                f"shapes names {unknown[0]!r}, but the inputs of {self.source} are {', '.join(map(repr, names))}"
            )
        specs = [self._input_spec(tensor) for tensor in tensors]
        return [replace(spec, name=name) for spec, name in zip(specs, distinct(names), strict=True)]

    def _input_spec(self, tensor: Tensor) -> TensorSpec:
        _check_dtype(tensor)
        wanted = self.shapes.get(tensor.name, tensor.shape)
        try:
            shape = tuple(operator_index(dim) for dim in wanted)
        except TypeError:
            raise ShapeError(f"input '{tensor.name}': a shape is a sequence of integers, found {wanted!r}") from None
        if len(shape) != len(tensor.shape):
            raise ShapeError(f"input '{tensor.name}' has {len(tensor.shape)} dimensions, cannot become {shape}")
        if any(dim < 1 for dim in shape):
            raise ShapeError(
                f"input '{tensor.name}' has shape {shape}, where each dimension must be at least 1; "
                f"give another one: shapes={{{tensor.name!r}: ...}}"
            )
        check_elements(shape, f"input '{tensor.name}'")
        return TensorSpec(tensor.name, shape, tensor.dtype, tensor.qparams)

    def _output_specs(self, outputs: list[relax.Expr]) -> tuple[TensorSpec, ...]:
        tensors = [self.tensor(index) for index in self.graph.outputs]
        names = distinct([tensor.name for tensor in tensors])
        return tuple(
            TensorSpec(name, shape_of(value), tensor.dtype, tensor.qparams)
            for name, tensor, value in zip(names, tensors, outputs, strict=True)
        )


def _check_dtype(tensor: Tensor) -> None:
    if tensor.dtype not in VALUE_DTYPES:
        raise UnsupportedOperatorError(
            f"{tensor.label()} is of dtype {tensor.dtype}; supported are {', '.join(VALUE_DTYPES)}"
        )


def _shape_fits(shape: tuple[int, ...], tensor: Tensor) -> bool:
    """Whether an inferred shape agrees with the declared one; dimensions the file leaves open agree with anything, and
    an operator whose output shape is only known at run time declares no dimensions at all."""
    if not tensor.shape or tensor.shape == shape:
        return True
    signature = tensor.shape_signature or tensor.shape
    return len(shape) == len(signature) and all(s in (-1, dim) for s, dim in zip(signature, shape, strict=True))
