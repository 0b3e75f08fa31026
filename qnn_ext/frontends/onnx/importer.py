"""from_onnx: walks the nodes of an ONNX model and lowers each by its converter to the QNN dialect."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import IRModule, relax

from ... import op as qnn
from ...entry_points import load_plugins
from ...errors import LimitError, ModelFormatError, ShapeError, UnsupportedOperatorError
from ...limits import Limits, add_own, begin_walk, charge, check, checkpoint, limited
from ...module import FloatNote, QnnModule, TensorSpec
from ...op.base import constant, constant_value, shape_of
from ...op.folding import known_value
from ...passes.blocked_sums import ask_for_blocks
from ...passes.blockwise import keep_packed
from ...passes.float_weights import TRANSPOSED, round_float_weights
from ...passes.marks import with_marks, without_marks
from ...passes.onnxruntime_means import onnxruntime_means
from ...passes.onnxruntime_rows import onnxruntime_rows, quantizes
from ...passes.qdq_to_integer import qdq_to_integer
from ..batch import OpenBatchError, with_open_batch
from ..bound import bound_value, check_bound
from ..building import blaming, distinct
from ..feedback import with_states
from ..sized_shapes import trimmed
from ..unread import in_order, needed
from . import converters  # noqa: F401  (fills the registry)
from .assembly import OnnxAssembly
from .control_flow import CONTROL_FLOW
from .converters.qonnx import DOMAINS as QONNX_DOMAINS
from .double_pairs import merge_double_pairs
from .fallback import convert_with_tvm, is_handled
from .folding import evaluate, narrow_constant, unpacked
from .functions import definition
from .fusions.returned import quantization_of_result
from .half import Halves
from .neighbours import Neighbours
from .node import Node
from .reader import (
    Model,
    Operator,
    Subgraph,
    check_inputs,
    check_kinds,
    read_model,
    read_subgraph,
    values_read,
    values_written,
)
from .registry import find_converter
from .run_time_sizes import convert_with_sizes
from .sequences import TensorSequence, converter_of, only_tensors
from .shapes import InputShapes, fixing_hint
from .tensors import FLOAT8, HELD_AS, KEEP_TYPES

_MOST_NESTED = 32  # graphs within graphs
_NORMS = ("nn.layer_norm", "nn.rms_norm", "nn.instance_norm", "nn.group_norm")
_IN_FLOAT = (*_NORMS, *TRANSPOSED, "nn.log_softmax")  # of quantized tensors, by ONNX Runtime
_WIDE_IN_FLOAT = ("nn.softmax", "matmul")
_COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})


def from_onnx(
    source: str | os.PathLike | bytes | Any,
    shapes: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    constants: Mapping[str, Any] | None = None,
    states: Mapping[str, str] | None = None,
    largest: Mapping[str, int] | None = None,
) -> QnnModule:
    """Import a quantized (or float) ONNX model: QDQ, QLinear and integer operators, those of com.microsoft and QONNX's.

    source: path of an .onnx file, its bytes, or an onnx.ModelProto. External data files lie beside the file; where that
            is a link, as in Hugging Face's cache, links beside it may lead to the folder of the link's target
    shapes: input name -> shape, or name of an open dimension -> size. A model whose inputs leave only their first
            dimension open, or one under the same name in all of them, takes batches of any size if every operator
            treats samples independently; a name or None as an entry of a shape asks for that
    limits: the limits of the import, by default `qnn_ext.Limits()`
    constants: input name -> value of an input that never changes, such as a sample rate: the module does not have this
            input, and a condition that depends only on such inputs chooses its branch now
    states: input name -> name of the output that is its next value, such as a recurrent network's hidden state: the
            module has neither, the engine keeps the value between calls, from zeros on (`Engine.reset_state`)
    largest: name of an integer that the model computes from data and that becomes a size, such as the length of
            speech -> the largest value that it may have; the engine raises InputError beyond

    Results equal ONNX Runtime's: rint(x / scale) + zero_point, requantization rint(f32(acc) · f32(s_in / s_out)).
    Raises ModelFormatError (corrupt file), LimitError (beyond the limits), UnsupportedOperatorError (operator, version
    or dtype), ShapeError (open dimensions), QnnError (the onnx package is missing).
    """
    load_plugins()
    with limited(limits):
        return with_states(_import(source, shapes, constants or {}, largest or {}), states)


def _import(
    source: Any, shapes: Mapping[str, Any] | None, constants: Mapping[str, Any], largest: Mapping[str, int]
) -> QnnModule:
    model = merge_double_pairs(_with_constants(read_model(source), constants))
    where = str(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else "model"
    if not model.outputs:
        raise ModelFormatError(f"{where}: the model has no outputs: export it again")
    dims = InputShapes(model, shapes)

    def imported(batch: int) -> QnnModule:
        return Importer(model, dims.all(batch), where, largest).run()

    if not dims.dynamic_batch:
        module = imported(1)
    elif dims.batch_first:
        module = with_open_batch(imported, fixing_hint(model))
    else:
        module = _with_batch_elsewhere(imported, dims)
    ir, notes = (_as_specified if _is_qonnx(model) else _as_in_onnxruntime)(keep_packed(module.ir))
    return replace(module, ir=ir, notes=(*module.notes, *notes))


def _as_in_onnxruntime(mod: IRModule) -> tuple[IRModule, tuple[FloatNote, ...]]:
    """A QDQ graph in integers where ONNX Runtime computes with them, and in its order of float sums elsewhere."""
    mod, notes = qdq_to_integer(onnxruntime_means(round_float_weights(mod)), _IN_FLOAT, wide=_WIDE_IN_FLOAT)
    return ask_for_blocks(onnxruntime_rows(mod)) if quantizes(mod) else without_marks(mod), notes


def _as_specified(mod: IRModule) -> tuple[IRModule, tuple[FloatNote, ...]]:
    """The graph of a model that ONNX Runtime does not run: in integers wherever these give the same real numbers."""
    return qdq_to_integer(without_marks(mod), _NORMS, rounds_biases=False)


def _is_qonnx(model: Model) -> bool:
    domains = {*model.opsets, *(operator.domain for operator in model.operators)}
    return not domains.isdisjoint(QONNX_DOMAINS)


def _with_batch_elsewhere(imported: Callable[[int], QnnModule], dims: InputShapes) -> QnnModule:
    """The model with an open dimension that is not first, and may be no batch at all."""
    try:
        return with_open_batch(imported, "")
    except LimitError:
        raise
    except OpenBatchError as error:
        raise dims.open_error(f"they are no batch, as {error.reason}") from None
    except (ShapeError, ModelFormatError) as error:
        raise dims.open_error(f"with 1 in their place, {error}") from None


def _with_constants(model: Model, constants: Mapping[str, Any]) -> Model:
    """The model with inputs bound to values."""
    check_bound(constants, [value.name for value in model.inputs], "the model")
    bound = [value for value in model.inputs if value.name in constants]
    for value in bound:
        _check_carried(value.name, value.dtype)
    return replace(
        model,
        inputs=tuple(value for value in model.inputs if value.name not in constants),
        constants=model.constants
        | {v.name: bound_value(v.name, constants[v.name], _held_dtype(v.dtype), v.shape) for v in bound},
        narrow_dtypes=model.narrow_dtypes | {v.name: v.dtype for v in bound if v.dtype != _held_dtype(v.dtype)},
    )


class Importer:
    """One import: the walk over a model, whose values `assembly` holds.

    shapes: shapes of all inputs, with no open dimensions
    largest: what computed integers that become sizes are at most
    """

    def __init__(
        self,
        model: Model,
        shapes: Mapping[str, tuple[int, ...]],
        source: str,
        largest: Mapping[str, int] | None = None,
    ) -> None:
        self.model = model
        self.source = source
        self.assembly = OnnxAssembly(model, largest)
        self._shapes = shapes
        self._depth = 0
        self._halves = Halves(self.assembly.neighbours)

    # ---- the walk ------------------------------------------------------------------------------------------------

    def run(self) -> QnnModule:
        """Convert the whole graph. Quantized operators of QDQ models stay dequantize → float → quantize."""
        begin_walk(_elements_of(self.model))
        check("operands", max(len(self.model.inputs), len(self.model.outputs)))
        names = distinct([value.name for value in self.model.inputs])
        specs, given = [], {}
        for value, name in zip(self.model.inputs, names, strict=True):
            dtype = _held_dtype(value.dtype)
            _check_carried(value.name, value.dtype)
            if dtype != value.dtype:
                self.assembly.narrow_dtypes[value.name] = value.dtype
            specs.append(TensorSpec(name, self._shapes[value.name], dtype))
            given[value.name] = self.assembly.input(name, self._shapes[value.name], dtype)
        outputs: list[relax.Expr] = []
        bounded: list[tuple[int, ...]] = []

        def walk() -> list[relax.Expr]:
            for name, variable in given.items():
                self.assembly.define(name, variable)
            names = [value.name for value in self.model.outputs]
            graph = self._walk(self.model.operators, names)
            self.assembly.check_all_bounded()
            for value in self.model.outputs:
                result, axes = trimmed(self.assembly.builder.sizes, self._output(value.name, value.dtype, graph))
                outputs.append(result)
                bounded.append(axes)
            return outputs

        ir = with_marks(self.assembly.module(walk), self.assembly.marked)
        output_names = distinct([value.name for value in self.model.outputs])
        return QnnModule(
            ir=ir,
            inputs=tuple(specs),
            outputs=tuple(
                TensorSpec(name, shape_of(expr), str(expr.ty.dtype), bounded=axes)
                for name, expr, axes in zip(output_names, outputs, bounded, strict=True)
            ),
            notes=tuple(self.assembly.notes),
            source=self.source,
        )

    def _walk(self, operators: Sequence[Operator], outputs: Sequence[str]) -> Neighbours:
        """Convert the operators of a graph that its outputs depend on; returns who is whose neighbour among them."""
        wanted, outside = _needed(operators, outputs), (self.assembly.neighbours, self._halves)
        graph = self.assembly.neighbours = Neighbours(wanted, outputs)
        self._halves = Halves(graph)
        for operator in wanted:
            self._convert(operator)
        self.assembly.neighbours, self._halves = outside
        return graph

    def _output(self, name: str, declared: str, graph: Neighbours) -> relax.Expr:
        (value,) = only_tensors([self.assembly.value(name)], f"the output '{name}'")
        found = str(value.ty.dtype)
        if declared and found != _held_dtype(declared):
            raise ModelFormatError(f"output '{name}' is declared as {declared}, but is computed as {found}")
        _check_carried(name, self.assembly.narrow_dtypes.get(name, declared or found))
        return self._as_returned(name, value, graph)

    def _as_returned(self, name: str, value: relax.Expr, graph: Neighbours) -> relax.Expr:
        """A result of `main` as ONNX Runtime returns it."""
        quantize = quantization_of_result(graph, name)
        if quantize is None or name not in graph.writers or str(value.ty.dtype) != "float32":
            return value
        scale = constant_value(self.assembly.value(quantize.inputs[1]))
        quantized = self.assembly.value(quantize.outputs[0])
        if scale is None or scale.size != 1 or str(quantized.ty.dtype) not in ("int8", "uint8"):
            return value
        zero_point = None if len(quantize.inputs) < 3 else constant_value(self.assembly.value(quantize.inputs[2]))
        if zero_point is None or not np.isfinite(scale).all():
            return value
        parameters = constant(scale.reshape(()).astype(np.float32)), constant(zero_point.reshape(()).astype(np.int32))
        stored = qnn.quantize(value, *parameters, out_dtype=str(quantized.ty.dtype))
        return self.assembly.emit(qnn.dequantize(self.assembly.emit(stored, name), *parameters), name)

    def _convert(self, operator: Operator) -> None:
        with blaming(operator.label()):
            for name in operator.outputs:
                if self.assembly.is_known(name):
                    raise ModelFormatError(f"value {name!r} is computed twice")
            check_inputs(operator, self.model.opset(operator.domain))
            check("operands", max(len(operator.inputs), len(operator.outputs)), "the operator")
            checkpoint()
            if operator.op_type in CONTROL_FLOW and not operator.domain:
                self._convert_graphs(operator)
                return
            if self._convert_sequence(operator):
                return
            check_kinds(operator, [str(self.assembly.value(n).ty.dtype) if n else "" for n in operator.inputs])
            if self._fold_node(operator):
                return
            node = Node(self.assembly, operator)
            is_half = self._halves.widen(node)
            result = convert_with_sizes(node)
            if result is None:
                entry = find_converter(operator.domain, operator.op_type, node.opset)
                convert = entry.convert if entry is not None else self._convert_by_definition
                result = convert(node)
            results = list(result) if isinstance(result, (list, tuple)) else [result]
            wanted = max((i + 1 for i, name in enumerate(operator.outputs) if name), default=0)
            if len(results) < wanted:
                raise UnsupportedOperatorError(
                    f"it has more outputs than the {len(results)} supported: output {wanted - 1} is used"
                )
            for index, (name, value) in enumerate(zip(operator.outputs, results, strict=False)):
                if name and is_half:
                    self._halves.define(node, index, self._bind(value, name))
                elif name:
                    self.assembly.define(name, self._bind(value, name))
            if operator.op_type in KEEP_TYPES and not operator.domain:
                self._mark_narrow(operator.outputs[:1], self._narrow(operator.inputs[:1]))

    def _convert_by_definition(self, node: Node) -> list[relax.Expr]:
        """An operator without a converter of ours nor of TVM's, by the graph that ONNX defines it by."""
        given = {name: node.input(index) for index, name in enumerate(node.operator.inputs) if name}
        kinds = {name: (str(value.ty.dtype), shape_of(value)) for name, value in given.items()}
        found = None if is_handled(node.op_type) else definition(node.operator.proto, node.opset, kinds)
        if found is None:
            return convert_with_tvm(node)
        subgraph, model = read_subgraph(found[0], None), self.model
        self.model = self.assembly.model = replace(model, opsets=model.opsets | {"": found[1]})
        results, narrow = self._run_graph(subgraph, list(given.values()), self._narrow(list(given)))
        self.model = self.assembly.model = model
        self._mark_narrow(subgraph.outputs, narrow)
        by_name = dict(zip(subgraph.outputs, results, strict=True))
        return [by_name.get(name) for name in node.outputs]

    def _convert_sequence(self, operator: Operator) -> bool:
        """Convert an operator on a sequence; False for one on tensors."""
        inputs = [self.assembly.value(name) if name else None for name in operator.inputs]
        convert = converter_of("" if operator.domain else operator.op_type, inputs)
        if convert is None:
            return False
        result = convert(Node(self.assembly, operator))
        value = result if isinstance(result, TensorSequence) else self._bind(result, operator.outputs[0])
        self.assembly.define(operator.outputs[0], value)
        return True

    def _bind(self, value: relax.Expr, name: str) -> relax.Expr:
        bound = self.assembly.emit(value, name)
        if not isinstance(bound.ty, relax.TensorType):
            raise UnsupportedOperatorError("the result is not a tensor")
        if constant_value(bound) is not None:
            charge(shape_of(bound))
        return bound

    def _fold_node(self, operator: Operator) -> bool:
        """Compute a node whose inputs are all constant, for a comparison quantized or not; False when it is to be
        converted."""
        builder, looks_through = self.assembly.builder, operator.op_type in _COMPARISONS and not operator.domain
        values = [self.assembly.value(name) if name else None for name in operator.inputs]
        inputs = [known_value(builder, value) if looks_through else constant_value(value) for value in values]
        if any(value is None for name, value in zip(operator.inputs, inputs, strict=True) if name):
            return False
        results = evaluate(operator, inputs, self._narrow(operator.inputs), self.model.opset(operator.domain))
        if results is None or len(results) < len(operator.outputs):
            return False
        for name, result in zip(operator.outputs, results, strict=False):
            value, dtype = unpacked(result)
            dtype = dtype or (narrow_constant(operator) if operator.op_type == "Constant" else "")
            charge(value.shape)
            if name:
                self.assembly.define(name, constant(value))
                self._mark_narrow([name], [dtype])
        return True

    def _narrow(self, names: Sequence[str]) -> list[str]:
        """The dtypes of values that are held in another one, "" for all others."""
        return [self.assembly.narrow_dtypes.get(name, "") for name in names]

    def _mark_narrow(self, names: Sequence[str], dtypes: Sequence[str]) -> None:
        self.assembly.narrow_dtypes.update(
            {name: dtype for name, dtype in zip(names, dtypes, strict=False) if name and dtype}
        )

    def _convert_graphs(self, operator: Operator) -> None:
        """A node with graphs of its own."""
        node = Node(self.assembly, operator)

        def read(name: str) -> Subgraph:
            graph = operator.attributes.get(name)
            if not hasattr(graph, "node"):
                raise ModelFormatError(f"the graph {name!r} is missing")
            return read_subgraph(graph, self.model.external)

        narrow: list[str] = []

        def run(graph: Subgraph, inputs: Sequence[relax.Expr]) -> list[relax.Expr]:
            results, narrow[:] = self._run_graph(graph, inputs, self._narrow(operator.inputs))
            return results

        results = CONTROL_FLOW[operator.op_type](node, read, run)
        if len(results) < len(operator.outputs):
            raise ModelFormatError(f"has {len(operator.outputs)} outputs, but its body has {len(results)}")
        for name, value in zip(operator.outputs, results, strict=False):
            if name:
                self.assembly.define(name, value)
        conditions = int(operator.op_type == "Loop")  # which a body returns first
        self._mark_narrow(operator.outputs, narrow[conditions:])

    def _run_graph(
        self, graph: Subgraph, inputs: Sequence[relax.Expr], narrow: Sequence[str]
    ) -> tuple[list[relax.Expr], list[str]]:
        """The outputs of a node's graph for these inputs, and their narrow dtypes. Its values are known in it only."""
        if self._depth >= _MOST_NESTED:
            raise ModelFormatError("graphs are nested too deeply")
        add_own(_elements_of(graph))
        self._depth += 1
        with self.assembly.scope():
            self.assembly.constants.update(graph.constants)
            self.assembly.narrow_dtypes.update(graph.narrow_dtypes)
            for name, value in zip(graph.inputs, inputs, strict=True):
                self.assembly.define(name, value)
            self._mark_narrow(graph.inputs, narrow)
            self._walk(graph.operators, graph.outputs)
            results = [self.assembly.value(name) for name in graph.outputs], self._narrow(graph.outputs)
        self._depth -= 1
        return results


def _needed(operators: Sequence[Operator], outputs: Sequence[str]) -> list[Operator]:
    """The operators that the outputs depend on, each behind what it reads: ONNX Runtime sorts them, and its quantizer
    writes files whose loops and branches stand before what they read."""
    found = needed(operators, outputs, values_read, values_written)
    return in_order(found, values_read, values_written)


def _elements_of(graph: Model | Subgraph) -> int:
    """Number of elements in a graph's own constants, including those held by its nodes."""
    held = (value for operator in graph.operators for value in operator.attributes.values())
    arrays = [*graph.constants.values(), *(value for value in held if isinstance(value, np.ndarray))]
    return sum(array.size for array in arrays)


def _check_carried(name: str, dtype: str) -> None:
    """Refuse bfloat16 and float8: inputs and outputs are NumPy arrays, and NumPy has no such dtypes."""
    if dtype == "bfloat16" or dtype in FLOAT8.values():
        raise UnsupportedOperatorError(
            f"'{name}' is {dtype}, which NumPy arrays cannot hold; cast it to float32 in the model"
        )


def _held_dtype(dtype: str) -> str:
    """The dtype of the values in the module."""
    return HELD_AS.get(dtype, dtype)
