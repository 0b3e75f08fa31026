"""from_tflite: walks the operators of a .tflite file and lowers each by its converter to the QNN dialect."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import index as operator_index
from typing import Any

import numpy as np
from tvm import relax

from ...entry_points import load_plugins
from ...errors import ModelFormatError, QnnError, ShapeError, UnsupportedOperatorError
from ...limits import Limits, begin_walk, charge, check, check_elements, count_evaluation, limited
from ...module import QnnModule, TensorSpec
from ...op.base import constant, constant_value
from ...passes.bias_first import ask_for_biases
from ...passes.blockwise import keep_packed
from ..bound import bound_value, check_bound
from ..building import blaming, distinct
from ..feedback import with_states
from ..sized_shapes import trimmed
from ..unread import needed
from . import converters  # noqa: F401  (fills the registry)
from .assembly import ComplexValue, TfliteAssembly, check_dtype
from .node import Node, shape_of
from .reader import Model, Operator, Subgraph, Tensor, read_model
from .registry import CONVERTERS
from .run_time_sizes import convert_with_sizes
from .signatures import with_main

NUMERICS = ("float32", "tflite")

_PARTWISE = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "TRANSPOSE", "SLICE", "STRIDED_SLICE")  # move complex tensors, too
_FLEX = "Flex"  # begins the names of TensorFlow's operators
_OPAQUE = ("variant", "resource")  # a list, whose elements the file does not declare; the handle of a variable
_MOST_NESTED = 32  # subgraphs within subgraphs
_EXAMPLE_SIZE = 128  # in messages


def from_tflite(
    source: str | os.PathLike | bytes,
    numerics: str = "float32",
    shapes: Mapping[str, Sequence[int]] | None = None,
    limits: Limits | None = None,
    constants: Mapping[str, Any] | None = None,
    states: Mapping[str, str] | None = None,
    signature: str | None = None,
) -> QnnModule:
    """Import a quantized (or float) TFLite model.

    source:   path of a .tflite file, or its bytes
    numerics: "float32" equals TFLite with its default backend, XNNPACK, which rounds rint(f32(acc) · scale) when
              requantizing; what XNNPACK does not take, 16 bits among it, is as in TFLite's own kernels.
              "tflite" equals TFLite's reference kernels bit for bit, in 64-bit integer arithmetic
    shapes:   input name -> shape, to change the batch size (or an image size) at import
    limits:   the limits of the import, by default `qnn_ext.Limits()`
    constants: input name -> value of an input that never changes, integers for a quantized one: the module does not
              have this input
    states:   input name -> name of the output that is its next value, such as a recurrent network's hidden state: the
              module has neither, the engine keeps the value between calls, from zeros on (`Engine.reset_state`)
    signature: the signature to import, whose names the inputs and outputs then have; by default the main subgraph with
              the names of its tensors. Variables are those of all signatures: modules of several can be built together
              (`build([prefill, decode])`), over one set of states and weights

    Raises ModelFormatError (corrupt file), LimitError (beyond the limits), UnsupportedOperatorError (operator, version
    or dtype), ShapeError, QnnError (no such signature).
    """
    if numerics not in NUMERICS:
        raise QnnError(f"numerics must be one of {', '.join(NUMERICS)}, found {numerics!r}")
    load_plugins()
    where = "model" if isinstance(source, (bytes, bytearray, memoryview)) else os.fspath(source)
    with limited(limits):
        model = with_main(read_model(source), signature)
        module = Importer(model, numerics, dict(shapes or {}), str(where), constants=constants).run()
        return with_states(module, states, silent=signature is not None)


class Importer:
    """One import: the walk over a subgraph, whose values `assembly` holds."""

    def __init__(
        self,
        model: Model,
        numerics: str,
        shapes: Mapping[str, Sequence[int]],
        source: str,
        subgraph: int | None = None,
        constants: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.graph = model.subgraphs[model.main if subgraph is None else subgraph]
        self.shapes = shapes
        self.source = source
        self.constants = constants or {}
        self.assembly = TfliteAssembly(model, self.graph, numerics, shapes, self._run_once, self._run_graph)
        self._depth = 0

    # ---- the walk ------------------------------------------------------------------------------------------------

    def run(self) -> QnnModule:
        """Convert the main subgraph."""
        for what, count in (("operators", len(self.graph.operators)), ("outputs", len(self.graph.outputs))):
            if not count:
                raise ModelFormatError(f"{self.source}: the model has no {what}: export it again, from a trained model")
        begin_walk(sum(math.prod(tensor.shape) for tensor in self.graph.tensors if tensor.is_constant))
        self._declare_shared()
        self._bind_constants()
        inputs = self._input_specs()
        for index, spec in zip(self._free_inputs(), inputs, strict=True):
            self.assembly.define(index, self.assembly.input(spec.name, spec.shape, spec.dtype))
        outputs: list[relax.Expr] = []
        bounded: list[tuple[int, ...]] = []

        def walk() -> list[relax.Expr]:
            self._convert_all()
            for index in self.graph.outputs:
                result, axes = trimmed(self.assembly.builder.sizes, self.assembly.value(index))
                outputs.append(result)
                bounded.append(axes)
            return [*outputs, *self.assembly.variables.final()]

        with self._naming_open_dimensions():
            ir = keep_packed(self.assembly.module(walk))
        if self.assembly.follows_xnnpack:
            ir = ask_for_biases(ir)
        return QnnModule(
            ir=ir,
            inputs=tuple(inputs),
            outputs=self._output_specs(outputs, bounded),
            states=tuple(self.assembly.variables.declared),
            notes=tuple(self.assembly.notes),
            source=self.source,
        )

    def _declare_shared(self) -> None:
        """Declare the variables that all signatures share, in one order, with the values that any of them initializes
        them with."""
        if not self.model.variables:
            return
        for index in dict.fromkeys(entry.subgraph_index for entry in self.model.signatures):
            for operator in self.model.subgraphs[index].operators:
                if operator.name == "CALL_ONCE":
                    self._convert(operator)
        variables = self.assembly.variables
        for name, tensor in self.model.variables.items():
            if name not in variables.initial:
                check_dtype(tensor)
                charge(tensor.shape)
            variables.read(name, variables.initial.get(name, np.zeros(tensor.shape, tensor.dtype)))

    def _run_once(self, index: int) -> None:
        """Run an initialization subgraph now: what it assigns becomes the states' first values. Raises
        UnsupportedOperatorError when these depend on anything but constants."""
        once = Importer(self.model, self.assembly.numerics, {}, self.source, index)
        once.assembly.module(once._convert_all)
        for name, expr in once.assembly.variables.values.items():
            value = constant_value(expr)
            if value is None:
                raise UnsupportedOperatorError(f"the initial value of variable '{name}' is not constant")
            self.assembly.variables.initial[name] = value

    def _run_graph(
        self,
        graph: Subgraph,
        inputs: Sequence[relax.Expr],
        given: Mapping[int, Callable[[Callable[[int], relax.Expr]], relax.Expr] | None],
        wanted: Sequence[int] | None = None,
    ) -> list[relax.Expr]:
        """Convert a subgraph, as part of this one, on these inputs.

        given: operator -> a function that takes the subgraph's values and returns the operator's result; None for one
            whose results nothing needs
        wanted: the tensors whose values to return, by default the subgraph's outputs
        """
        count_evaluation()
        inner = Importer(self.model, self.assembly.numerics, self.shapes, self.source, graph.index)
        inner._depth = self._depth + 1
        if inner._depth > _MOST_NESTED:
            raise ModelFormatError("subgraphs are nested too deeply, or one runs itself")
        assembly = inner.assembly
        assembly.builder, assembly.notes = self.assembly.builder, self.assembly.notes
        assembly.variables = self.assembly.variables
        for index, value in zip(graph.inputs, inputs, strict=True):
            tensor = assembly.tensor(index)
            inner._check_result(tensor, shape_of(value), str(value.ty.dtype))
            assembly.define(index, value)
        for operator in graph.operators:
            if operator.index not in given:
                inner._convert(operator)
            elif (make := given[operator.index]) is not None:
                inner._bind_output(operator.outputs[0], make(assembly.value))
        return [assembly.value(index) for index in (graph.outputs if wanted is None else wanted)]

    def _convert_all(self) -> list[relax.Expr]:
        for operator in needed(self.graph.operators, self.graph.outputs, _present, self._written, _acts):
            self._convert(operator)
        return []

    def _written(self, operator: Operator) -> list[int]:
        """The results of an operator, and the states that it keeps in tensors."""
        kept = [index for index in _present(operator) if self.assembly.tensor(index).is_variable]
        return [*operator.outputs, *kept]

    def _convert(self, operator: Operator) -> None:
        entry = CONVERTERS.get(operator.name)
        if entry is None:
            raise UnsupportedOperatorError(f"{operator.label()}: {_refusal(operator)}")
        if operator.version > entry.max_version:
            raise UnsupportedOperatorError(
                f"{operator.label()}: version {operator.version} is newer than {entry.max_version}, the newest "
                "supported; convert the model with an older TFLite converter, or update qnn_ext"
            )
        node = Node(self.assembly, operator)
        operands = max(len(operator.inputs), len(operator.outputs))
        with np.errstate(over="raise", invalid="raise", divide="raise"), blaming(operator.label()):
            check("operands", operands, "the operator")
            parts = self._convert_parts(node, entry.convert) if operator.name in _PARTWISE else None
            result = parts or convert_with_sizes(node)
            result = entry.convert(node) if result is None else result
            results = list(result) if isinstance(result, (list, tuple)) else [result]
            if len(results) != len(operator.outputs):
                raise ModelFormatError(
                    f"has {len(operator.outputs)} outputs, but {operator.name} has {len(results)} results"
                )
            for index, value in zip(operator.outputs, results, strict=True):
                self._bind_output(index, value)

    def _convert_parts(self, node: Node, convert: Callable[[Node], Any]) -> ComplexValue | None:
        """A change of the shape of a complex tensor, made of each of its parts; None if the tensor is not complex."""
        index = node.operator.inputs[0] if node.has_input(0) else -1
        value = self.assembly.complex_values.pop(index, None)
        if value is None:
            return None
        results = []
        for part in (value.real, value.imaginary):
            self.assembly.define(index, part)
            results.append(node.emit(convert(node)))
        self.assembly.complex_values[index] = value
        return ComplexValue(*results)

    def _bind_output(self, index: int, value: relax.Expr | ComplexValue) -> None:
        tensor = self.assembly.tensor(index)
        if isinstance(value, ComplexValue):
            self._check_result(tensor, shape_of(value.real), "complex64")
            self.assembly.complex_values[index] = value
            return
        bound = self.assembly.emit(value, tensor.name)
        if not isinstance(bound.ty, relax.TensorType):
            raise ModelFormatError("the result is not a tensor")
        shape = shape_of(bound)
        self._check_result(tensor, shape, str(bound.ty.dtype))
        if constant_value(bound) is not None:
            charge(shape)
        if tensor.is_variable:
            self.assembly.start_variable(index, bound)
        else:
            self.assembly.define(index, bound)

    def _check_result(self, tensor: Tensor, shape: tuple[int, ...], dtype: str) -> None:
        if tensor.dtype in _OPAQUE:
            return
        if dtype != tensor.dtype:
            raise ModelFormatError(f"the result is {dtype}, but the file declares {tensor.dtype}")
        if not self.shapes and not _shape_fits(shape, tensor):
            raise ModelFormatError(f"the result has shape {shape}, but the file declares {tensor.shape}")

    def _free_inputs(self) -> list[int]:
        """The inputs that are not bound to constants."""
        return [index for index in self.graph.inputs if self.assembly.tensor(index).name not in self.constants]

    def _bind_constants(self) -> None:
        check_bound(self.constants, [self.assembly.tensor(index).name for index in self.graph.inputs], self.source)
        for index in self.graph.inputs:
            tensor = self.assembly.tensor(index)
            if tensor.name in self.constants:
                check_dtype(tensor)
                declared = [
                    0 if dim == -1 else size for size, dim in zip(tensor.shape, tensor.shape_signature, strict=True)
                ]
                value = bound_value(tensor.name, self.constants[tensor.name], tensor.dtype, declared)
                self.assembly.define(index, constant(value))

    def _input_specs(self) -> list[TensorSpec]:
        tensors = [self.assembly.tensor(index) for index in self._free_inputs()]
        names = [tensor.name for tensor in tensors]
        unknown = [name for name in self.shapes if name not in names]
        if unknown:
            known = ", ".join(map(repr, names))
            raise ShapeError(f"a shape is given for {unknown[0]!r}, but the inputs of {self.source} are {known}")
        specs = [self._input_spec(tensor) for tensor in tensors]
        return [replace(spec, name=name) for spec, name in zip(specs, distinct(names), strict=True)]

    def _input_spec(self, tensor: Tensor) -> TensorSpec:
        check_dtype(tensor)
        wanted = self.shapes.get(tensor.name, tensor.shape)
        try:
            shape = tuple(operator_index(dim) for dim in wanted)
        except TypeError:
            raise ShapeError(
                f"input '{tensor.name}': a shape must be a sequence of integers, found {wanted!r}"
            ) from None
        if len(shape) != len(tensor.shape):
            raise ShapeError(
                f"input '{tensor.name}' has {len(tensor.shape)} dimensions and cannot be given shape {shape}"
            )
        stored = tensor.name not in self.shapes
        if stored and any(dim == 0 and sign == -1 for dim, sign in zip(shape, tensor.shape_signature, strict=True)):
            raise ShapeError(self._open_dimensions())
        if not stored and any(dim < 1 and dim != own for dim, own in zip(shape, tensor.shape, strict=True)):
            raise ShapeError(
                f"input '{tensor.name}' has shape {shape}, but each dimension must be at least 1; give "
                f"a valid one: shapes={{{tensor.name!r}: ...}}"
            )
        check_elements(shape, f"input '{tensor.name}'")
        return TensorSpec(tensor.name, shape, tensor.dtype, tensor.qparams)

    @contextmanager
    def _naming_open_dimensions(self) -> Iterator[None]:
        """Where the stored sizes of open dimensions cannot be converted, says that they are open."""
        try:
            yield
        except (ModelFormatError, ShapeError) as error:
            hint = self._open_dimensions()
            if not hint:
                raise
            raise ShapeError(f"{hint}. With the sizes stored in the file: {error}") from error

    def _open_dimensions(self) -> str:
        """Which dimensions of inputs the file leaves open, and how to give their sizes; "" if there are none. An open
        batch has the size 1 and is not one of them."""
        tensors = [self.assembly.tensor(index) for index in self._free_inputs()]
        found = {
            tensor.name: axes for tensor in tensors if (axes := _open_axes(tensor)) and tensor.name not in self.shapes
        }
        if not found:
            return ""
        declared, python, command = [], [], []
        for tensor in tensors:
            if tensor.name not in found:
                continue
            dims = ["?" if axis in found[tensor.name] else str(max(dim, 1)) for axis, dim in enumerate(tensor.shape)]
            sizes = [_EXAMPLE_SIZE if dim == "?" else int(dim) for dim in dims]
            declared.append(f"'{tensor.name}' ({', '.join(dims)})")
            python.append(f"{tensor.name!r}: {tuple(sizes)}")
            command.append(f"--shape {shlex.quote(tensor.name)}={','.join(map(str, sizes))}")
        return (
            f"{self.source} leaves dimensions of its inputs open: {', '.join(declared)}; give their sizes, for example "
            f"shapes={{{', '.join(python)}}}, or {' '.join(command)}"
        )

    def _output_specs(self, outputs: list[relax.Expr], bounded: list[tuple[int, ...]]) -> tuple[TensorSpec, ...]:
        tensors = [self.assembly.tensor(index) for index in self.graph.outputs]
        names = distinct([tensor.name for tensor in tensors])
        return tuple(
            TensorSpec(name, shape_of(value), tensor.dtype, tensor.qparams, bounded=axes)
            for name, tensor, value, axes in zip(names, tensors, outputs, bounded, strict=True)
        )


def _present(operator: Operator) -> list[int]:
    """The inputs that an operator has."""
    return [index for index in operator.inputs if index >= 0]


def _acts(operator: Operator) -> bool:
    """Whether an operator may assign variables: itself, or in a subgraph. What fills a table acts on lookups alone,
    which are refused where a result needs them."""
    if operator.name == "HASHTABLE_IMPORT":
        return False
    return not operator.outputs or any(
        name.endswith(("subgraph_index", "subgraph_indices")) for name in operator.options
    )


def _open_axes(tensor: Tensor) -> list[int]:
    """The dimensions of an input without a size of its own, except for a batch of any size."""
    return [
        axis
        for axis, (dim, signed) in enumerate(zip(tensor.shape, tensor.shape_signature, strict=True))
        if dim == 0 or (signed == -1 and (axis or len(tensor.shape) == 1))
    ]


def _shape_fits(shape: tuple[int, ...], tensor: Tensor) -> bool:
    """Whether an inferred shape agrees with the declared one; dimensions left open in the file agree with anything, and
    an operator whose output shape is only known at run time declares no dimensions at all. TensorFlow's converter
    declares NON_MAX_SUPPRESSION's results, and what is computed of them, with a batch of 1, which LiteRT's lack."""
    if not tensor.shape or tensor.shape == shape or tensor.shape == (1, *shape):
        return True
    signature = tensor.shape_signature or tensor.shape
    return len(shape) == len(signature) and all(s in (-1, dim) for s, dim in zip(signature, shape, strict=True))


def _refusal(operator: Operator) -> str:
    """That there is no converter, and what to do."""
    listed = "`qnn-ext inspect` lists all operators of the model"
    if operator.custom and operator.name.startswith(_FLEX):
        return (
            f"TensorFlow's operator {operator.name.removeprefix(_FLEX)} (SELECT_TF_OPS) is not supported; convert the "
            f"model with TFLITE_BUILTINS alone, rewriting what needs this operator; {listed}"
        )
    if operator.custom:
        return f"custom operator {operator.name} is not supported; a plugin can add it (qnn_ext.plugins); {listed}"
    return f"operator {operator.name} is not supported; {listed}"
