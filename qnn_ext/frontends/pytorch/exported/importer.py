"""from_exported_program: walks the graph of a torch.export program in order and converts each operator.

Our own converters come first; other operators go through the methods of TVM's ExportedProgramImporter, one node at a
time. Graphs stay as exported, without decompositions, so that linear layers and attention keep their form. Whatever
depends on constants alone is computed at import, by PyTorch itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import index as operator_index
from typing import Any, ClassVar

import numpy as np
import torch
import torch.ao.quantization.fx._decomposed
from torch import fx
from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec, OutputKind, TensorArgument
from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from ....errors import ModelFormatError, OpenShapeError, QnnError, ShapeError, UnsupportedOperatorError
from ....limits import begin_walk, charge, check
from ....module import QnnModule, State, TensorSpec
from ....op.base import shape_of
from ....passes.blockwise import keep_packed
from ....passes.qdq_to_integer import qdq_to_integer
from ...assembly import Assembly
from ...bound import bound_value, check_bound
from ...building import blaming, distinct, reason
from ...sized_shapes import trimmed
from ..common import example_values
from . import converters  # noqa: F401  (fills the registry)
from .arguments import checked_arguments
from .complex_numbers import is_complex, is_written_with_parts, on_parts
from .constants import INNER_TENSOR, NOT_CONSTANT, Values, check_parts, fold, inner_tensor, loses_integers
from .control_flow import converter_of
from .float_blocks import FloatBlocks, without_blocks
from .functional import prepared
from .nodes import (
    attribute,
    bound_arguments,
    layer_name,
    live_nodes,
    out_of_place,
    refuse_training,
    short_name,
    target_name,
    user_inputs,
    with_effects,
)
from .registry import CONVERTERS
from .run_time_sizes import convert_with_sizes
from .values import ComplexValue, array_of, dtype_name, is_any_of

_NO_EFFECT = ("_assert_scalar", "_assert_tensor_metadata", "_assert_async", "sym_constrain_range", "_guards_fn")
# TVM's: slices as copies; places of one axis
_WRONG_IN_TVM = ("as_strided.default", "take.default")
_INLINED = ("wrap_with_set_grad_enabled", "wrap_with_autocast")


class ProgramImporter:
    """State of one import. Converters use `emit`, `node` and `meta`, or emit into `assembly`.

    operator_program: imports an operator that is written with others, see `operator_program.py`, which sets it
    """

    operator_program: ClassVar[Callable[..., Any]]

    def __init__(
        self,
        program: Any,
        source: str,
        shapes: Mapping[str, Sequence[int]],
        example_inputs: Any = None,
        constants: Mapping[str, Any] | None = None,
        assembly: Assembly | None = None,
    ) -> None:
        """assembly: what to emit into, by default one of its own"""
        if not isinstance(program, torch.export.ExportedProgram):
            raise ModelFormatError(f"{source}: expected a torch.export.ExportedProgram, found {type(program).__name__}")
        self.source = source
        self.shapes = {**_example_shapes(program, example_inputs, constants or {}), **shapes}
        self.constants = constants or {}
        self.node: Any = None
        self._values = Values()
        self.assembly = assembly or Assembly(unfolded=("dequantize", "blockwise_dequantize"))
        self._tvm = ExportedProgramImporter()
        self._tvm.env = self._values
        self._tvm.block_builder = self.assembly.builder
        refuse_training(program, source)
        check_parts({**program.state_dict, **program.constants}, source)
        self._names = user_inputs(program)  # which decompositions of a program read from a file do not keep
        program, self._float_blocks = without_blocks(program, source)
        self.program = prepared(program, source, self._is_supported)

    # ---- what converters use -------------------------------------------------------------------------------------

    def emit(self, expr: relax.Expr) -> relax.Expr:
        """Bind an expression under the current layer's name."""
        return self.assembly.emit(expr)

    def by_tvm(self) -> Any:
        """The node's result by TVM's own importer, which then reads indices and divisors with checks."""
        with checked_arguments(self, self._values, self.node):
            return self._tvm.convert_map[short_name(self.node, self._tvm.convert_map)](self.node)

    @property
    def meta(self) -> torch.Tensor:
        """The declared shape and dtype of the node's result."""
        return self.node.meta["val"]

    def cast_weight(self, position: int) -> np.ndarray | None:
        """The 8-bit integers that an argument of the node is cast from, if they are a constant matrix."""
        cast: Any = self.node.args[position]
        if not isinstance(cast, fx.Node) or not loses_integers(self._values, cast, target_name(cast)):
            return None
        source: Any = cast.args[0]
        tensor = self._values.known(source)
        return array_of(tensor) if tensor.ndim == 2 else None

    @property
    def dtype(self) -> str:
        """Dtype of the node's result, as TVM writes it."""
        return dtype_name(self.meta.dtype)

    @property
    def label(self) -> str:
        """The current node, for messages."""
        return f"node '{self.node.name}' ({self.node.target})"

    # ---- the walk ------------------------------------------------------------------------------------------------

    def run(self) -> QnnModule:
        """Convert the whole program."""
        own = [*self.program.state_dict.values(), *self.program.constants.values()]
        begin_walk(sum(value.numel() for value in own if isinstance(value, torch.Tensor)))
        specs = self._bind_inputs()
        outputs: list[tuple[str, relax.Expr]] = []
        bounded: list[tuple[int, ...]] = []

        def walk() -> list[relax.Expr]:
            found = self._converted()
            sizes, count = self.assembly.builder.sizes, len(found) - len(self._states)
            sizes.refuse([value for _, value in found[count:]], "a buffer")
            for name, value in found:
                value, axes = trimmed(sizes, value)
                outputs.append((name, value))
                bounded.append(axes)
            return [value for _, value in outputs]

        mod, notes = qdq_to_integer(keep_packed(self.assembly.module(walk)))
        names = distinct([name for name, _ in outputs[: len(outputs) - len(self._states)]])
        output_specs = tuple(
            TensorSpec(name, shape_of(value), str(value.ty.dtype), bounded=axes)
            for name, (_, value), axes in zip(names, outputs, bounded, strict=False)
        )
        return QnnModule(mod, specs, output_specs, tuple(self._states.values()), tuple(notes), self.source)

    def _converted(self) -> list[tuple[str, relax.Expr]]:
        """The outputs of the program, then the new values of its states, with their names."""
        graph = self.program.graph_module
        for node, blocks in self._packed.items():
            self._values[node] = self.emit(blocks.dequantized())
        return self._results(self._walk(graph, live_nodes(graph.graph)))

    def _walk(self, module: fx.GraphModule, live: set[fx.Node]) -> Any:
        """Convert the live nodes of a graph; returns the resolved arguments of its output node."""
        for node in module.graph.nodes:
            if node.op == "output":
                results = node.args[0]
                return [self.resolve(arg) for arg in (results if isinstance(results, (list, tuple)) else [results])]
            if node not in live or node.op == "placeholder":
                continue
            with self._at(node):
                if node.op == "get_attr":
                    self._bind(node, attribute(module, str(node.target)))
                elif node.op == "call_function":
                    self._call(node)
                else:
                    raise UnsupportedOperatorError(f"nodes of kind {node.op} are not supported")
        raise ModelFormatError(f"{self.source}: the graph has no output")

    @contextmanager
    def _at(self, node: fx.Node) -> Iterator[None]:
        """Within, emitted expressions and errors are named after the node."""
        previous, self.node = (self.node, self.assembly.layer), node
        self.assembly.layer = layer_name(node)
        try:
            with blaming(self.label, _unconverted):
                yield
        finally:
            self.node, self.assembly.layer = previous

    def _call(self, node: fx.Node) -> None:
        name = target_name(node)
        results = node.meta.get("val")
        check("operands", max(len(node.all_input_nodes), len(results) if isinstance(results, (list, tuple)) else 1))
        if is_any_of(name, _NO_EFFECT):
            self._values[node] = None
            return
        if is_any_of(name, _INLINED):
            self._values[node] = self._inline(node)
            return
        on_graphs = converter_of(node)
        if on_graphs is not None:
            operands = [arg if self._is_graph(arg) else self.resolve(arg) for arg in node.args]
            self._bind(node, on_graphs(self._run_graph, self.assembly, *operands))
            return
        if name == INNER_TENSOR:
            self._bind(node, inner_tensor(self._values, node))
            return
        sized = convert_with_sizes(self, name, lambda: self.resolve(bound_arguments(node)))
        if sized is not None:
            self._bind(node, self.emit(sized) if isinstance(sized, relax.Call) else sized)
            return
        constant_result = fold(self._values, node, name) if self._may_run(node) else NOT_CONSTANT
        if constant_result is not NOT_CONSTANT:
            self._values.keep(node, constant_result)
            return
        entry = CONVERTERS.get(name) or CONVERTERS.get(out_of_place(name))
        if name != "getitem" and is_complex(node) and not (entry is not None and entry.complex_numbers):
            self._bind(node, on_parts(self, node, {arg: self._values[arg] for arg in node.all_input_nodes}))
        elif entry is not None:
            value = entry.convert(self, *[self.resolve(arg) for arg in bound_arguments(node)])
            value = self.emit(value) if isinstance(value, relax.Call) else value
            self._bind(node, value, check=not entry.narrows)
        elif name == "getitem":
            self._values[node] = self._getitem(*node.args)
        elif self._is_left_to_tvm(node):
            self._bind(node, self.by_tvm())
        else:
            raise UnsupportedOperatorError(f"operator {name} is not supported{_remedy(name)}")

    def _is_supported(self, node: fx.Node) -> bool:
        name = target_name(node)
        known = name in CONVERTERS or out_of_place(name) in CONVERTERS or name in ("getitem", INNER_TENSOR)
        inside = is_any_of(name, _NO_EFFECT + _INLINED) or converter_of(node) is not None
        return known or inside or is_written_with_parts(node) or self._is_left_to_tvm(node)

    def _is_left_to_tvm(self, node: fx.Node) -> bool:
        """Whether TVM's own importer converts the node correctly: not what it gets wrong, nothing random."""
        name = short_name(node, self._tvm.convert_map)
        if not isinstance(node.target, torch._ops.OpOverload):
            return name in self._tvm.convert_map
        is_random = torch.Tag.nondeterministic_seeded in node.target.tags
        known = node.target.namespace == "aten" and name in self._tvm.convert_map
        return known and not is_random and name not in _WRONG_IN_TVM

    def _may_run(self, node: fx.Node) -> bool:
        """Whether PyTorch may compute a node at import: only what could also be converted, nothing random."""
        if not isinstance(node.target, torch._ops.OpOverload):
            return getattr(node.target, "__module__", "") in ("_operator", "math", "torch")
        return torch.Tag.nondeterministic_seeded not in node.target.tags and self._is_supported(node)

    def _bind(self, node: fx.Node, value: Any, check: bool = True) -> None:
        if isinstance(value, (torch.Tensor, fx.GraphModule)):
            self._values.keep(node, value)
            return
        if check:
            _check_result(value, node.meta.get("val"))
        self._values[node] = value

    def resolve(self, arg: Any) -> Any:
        """An argument with nodes replaced by their values."""
        if isinstance(arg, fx.Node):
            return self._values[arg]
        if isinstance(arg, (list, tuple)):
            return [self.resolve(item) for item in arg]
        if isinstance(arg, slice):
            return slice(*(self.resolve(item) for item in (arg.start, arg.stop, arg.step)))
        return arg

    def _getitem(self, source: Any, index: Any) -> Any:
        value = self._values[source]
        if isinstance(value, (tuple, list)):
            return value[index]
        return self.emit(relax.TupleGetItem(value, index))

    def _inline(self, node: fx.Node) -> Any:
        """The results of a subgraph whose wrapper only switches gradients or autocast off."""
        args: list[Any] = list(node.args)
        position = next(i for i, arg in enumerate(args) if self._is_graph(arg))
        if any(arg is True for arg in args[:position]) and "autocast" in str(node.target):
            raise UnsupportedOperatorError("autocast changes dtypes inside the program; export without it")
        module = self._values.tensors[args[position]]
        places = [inner for inner in module.graph.nodes if inner.op == "placeholder"]
        for inner, arg in zip(places, args[position + 1 :], strict=True):
            if arg in self._values.tensors:
                self._values.tensors[inner] = self._values.tensors[arg]
            else:
                self._values[inner] = self._values[arg]
        return self._walk(module, live_nodes(module.graph))

    def _run_graph(self, graph: fx.Node, operands: Sequence[Any]) -> list[Any]:
        """The results of a graph that is an operand, for these values."""
        module = self._values.tensors[graph]
        for inner in module.graph.nodes:  # of an earlier round
            self._values.pop(inner, None)
            self._values.tensors.pop(inner, None)
        places = [inner for inner in module.graph.nodes if inner.op == "placeholder"]
        self._values.update(zip(places, operands, strict=True))
        return self._walk(module, live_nodes(module.graph))

    def _is_graph(self, arg: Any) -> bool:
        return isinstance(arg, fx.Node) and isinstance(self._values.tensors.get(arg), fx.GraphModule)

    # ---- inputs and outputs --------------------------------------------------------------------------------------

    def _bind_inputs(self) -> tuple[TensorSpec, ...]:
        placeholders = [node for node in self.program.graph.nodes if node.op == "placeholder"]
        specs: list[TensorSpec] = []
        self._bound: list[str] = []
        mutated = self.program.graph_signature.buffers_to_mutate.values()
        self._states: dict[str, State] = {}
        self._packed: dict[fx.Node, FloatBlocks] = {}
        state = {**self.program.state_dict, **self.program.constants}
        given = iter(self._names)
        for node, spec in zip(placeholders, self.program.graph_signature.input_specs, strict=True):
            if spec.kind == InputKind.USER_INPUT:
                self._bind_user_input(node, next(given), spec, specs)
            elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
                if spec.target not in state:
                    raise ModelFormatError(f"{self.source}: the program lacks the value of '{spec.target}'")
                if spec.target in self._float_blocks:
                    self._packed[node] = self._float_blocks[spec.target]
                elif spec.target in mutated:
                    self._bind_state(node, spec.target, state[spec.target])
                else:
                    self._values.tensors[node] = state[spec.target]
            elif spec.kind == InputKind.TOKEN:
                names = with_effects(self.program.graph)
                raise UnsupportedOperatorError(
                    f"{self.source}: operators with side effects are not supported: {names}; "
                    "export the model without them"
                )
            else:
                raise UnsupportedOperatorError(
                    f"{self.source}: '{node.name}' is {spec.kind.name}; only tensors are supported"
                )
        taken = [spec.name for spec in specs]
        check_bound(self.constants, [*self._bound, *taken], self.source)
        unknown = [name for name in self.shapes if name not in (*self._bound, *taken)]
        if unknown:
            names = ", ".join(repr(spec.name) for spec in specs)
            raise ShapeError(f"a shape is given for {unknown[0]!r}, but the inputs of {self.source} are {names}")
        return tuple(specs)

    def _bind_state(self, node: fx.Node, name: str, initial: torch.Tensor) -> None:
        """A buffer that the program changes is a state, which begins with the buffer's value."""
        charge(initial.shape, f"state '{name}'")
        self._states[name] = State(name, array_of(initial).copy())
        self._values[node] = self.assembly.state(initial.shape, dtype_name(initial.dtype))

    def _bind_user_input(self, node: fx.Node, name: str, spec: InputSpec, specs: list[TensorSpec]) -> None:
        if isinstance(spec.arg, ConstantArgument):
            self._values[node] = spec.arg.value
            return
        if not isinstance(spec.arg, TensorArgument):
            raise UnsupportedOperatorError(
                f"{self.source}: input '{name}' is not a tensor; export with a constant in its place"
            )
        if name in self.constants:
            declared = node.meta["val"]
            dims = [dim if isinstance(dim, int) else None for dim in declared.shape]
            value = bound_value(name, self.constants[name], dtype_name(declared.dtype), dims)
            self._values.tensors[node] = torch.from_numpy(value)
            self._bound.append(name)
            return
        shape = self._input_shape(name, node.meta["val"])
        tensor = TensorSpec(name, shape, dtype_name(node.meta["val"].dtype))
        self._values[node] = self.assembly.input(name, shape, tensor.dtype)
        specs.append(tensor)

    def _input_shape(self, name: str, declared: torch.Tensor) -> tuple[int, ...]:
        dims = [int(dim) if str(dim).isdigit() else str(dim) for dim in declared.shape]
        if name not in self.shapes:
            if any(isinstance(dim, str) for dim in dims):
                text = ", ".join(map(str, dims))
                fixed = [1 if isinstance(dim, str) else dim for dim in dims]
                batch = " or --batch 1" if all(isinstance(dim, int) for dim in dims[1:]) else ""
                raise OpenShapeError(
                    f"{self.source}: input '{name}' has the symbolic shape ({text}): fix it, for example with "
                    f"shapes={{{name!r}: {tuple(fixed)}}} or example_inputs, on the command line with --shape "
                    f"{name}={','.join(map(str, fixed))}{batch}",
                    name,
                    tuple(dims),
                )
            return tuple(int(dim) for dim in dims)
        try:
            shape = tuple(operator_index(dim) for dim in self.shapes[name])
        except TypeError:
            raise ShapeError(
                f"input '{name}': a shape must be a sequence of integers, found {self.shapes[name]!r}"
            ) from None
        fits = len(shape) == len(dims) and all(d > 0 and e in (d, str(e)) for d, e in zip(shape, dims, strict=False))
        if not fits:
            raise ShapeError(
                f"input '{name}' cannot have shape {shape}: the program was exported for {tuple(dims)}; "
                "only symbolic dimensions are free, so export it again for other shapes"
            )
        return shape

    def _results(self, results: list[Any]) -> list[tuple[str, relax.Expr]]:
        """The outputs, then the new values of the states, with their names."""
        outputs: list[tuple[str, relax.Expr]] = []
        new = {}
        for value, spec in zip(results, self.program.graph_signature.output_specs, strict=True):
            if spec.kind == OutputKind.USER_INPUT_MUTATION:
                raise UnsupportedOperatorError(
                    f"{self.source}: the program changes its input '{spec.target}' in place; keep what it changes in a "
                    "buffer of the module (register_buffer), which becomes a state, or return it as an output"
                )
            if spec.kind == OutputKind.BUFFER_MUTATION:
                new[spec.target] = value
            elif spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT) and isinstance(spec.arg, TensorArgument):
                if value is None:
                    raise UnsupportedOperatorError(
                        f"{self.source}: result '{spec.arg.name}' is not supported, only others of its operator are; "
                        "export the model with torch.export, and without this result as an output"
                    )
                if isinstance(value, ComplexValue):
                    raise UnsupportedOperatorError(
                        f"{self.source}: output '{spec.arg.name}' is complex; return torch.view_as_real of it"
                    )
                if not isinstance(getattr(value, "ty", None), relax.TensorType):  # the signature says it is a tensor
                    raise ModelFormatError(
                        f"{self.source}: output '{spec.arg.name}' is not a tensor; export the program again"
                    )
                outputs.append((spec.arg.name, value))
        if not outputs:
            raise ModelFormatError(f"{self.source}: none of the program's outputs is a tensor")
        return outputs + [(name, new[name]) for name in self._states]


def _unconverted(label: str, error: Exception) -> QnnError:
    """The message of an error in a converter, which is often TVM's."""
    return UnsupportedOperatorError(f"{label}: cannot be converted: {reason(error)}")


def _example_shapes(program: Any, example_inputs: Any, bound: Collection[str]) -> dict[str, Sequence[int]]:
    """The shapes of example inputs, which leave out inputs that are bound."""
    if example_inputs is None:
        return {}
    names = [
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.kind == InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument) and spec.arg.name not in bound
    ]
    values = example_values(example_inputs, None, names)
    return {name: tuple(value.shape) for name, value in zip(names, values, strict=True)}


def _check_result(value: Any, declared: Any) -> None:
    """A result must have the declared dtype and shape: otherwise an option may have been overlooked."""
    if isinstance(value, (tuple, list)) and isinstance(declared, (tuple, list)):
        for item, meta in zip(value, declared, strict=False):
            _check_result(item, meta)
    if not isinstance(value, relax.Expr) or not isinstance(declared, torch.Tensor):
        return
    if not isinstance(value.ty, relax.TensorType):
        raise UnsupportedOperatorError("the result is not a tensor")
    shape, dtype = shape_of(value), str(value.ty.dtype)
    fits = len(shape) == declared.ndim and all(
        not isinstance(dim, int) or dim == found for dim, found in zip(declared.shape, shape, strict=True)
    )
    if not fits or dtype != dtype_name(declared.dtype):
        expected = f"{dtype_name(declared.dtype)} {tuple(declared.shape)}"
        raise UnsupportedOperatorError(f"the result is {dtype} {shape}, but the program declares {expected}")


def _remedy(operator: str) -> str:
    """What a user does about an operator that only PyTorch's kernels know; empty for others."""
    if operator.startswith("onednn."):
        return "; its weights are packed for PyTorch's kernels: import what convert_pt2e returns, before it is lowered"
    return ""
