"""The walk over a TorchScript graph: PyTorch evaluates every operator on the example inputs, and a converter emits it.

The example gives exact shapes, dtypes, QParams and memory formats of every value, and decides branches and loop counts;
none of its values enter the module. So a script with control flow over shapes needs no symbolic execution.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from tvm import relax

from ....errors import ModelFormatError, QnnError, ShapeError, UnsupportedOperatorError
from ....limits import begin_walk, count_evaluation, current, over
from ....module import QnnModule, State, TensorSpec
from ....op.base import constant, shape_of
from ...assembly import Assembly
from ...bound import bound_value, check_bound
from ...building import blaming, distinct
from ...loops import branch
from ...sized_shapes import trimmed
from ..common import example_values, import_torch, left_out
from . import (
    converters,  # noqa: F401  (fills the registry)
    remaining,
)
from .attributes import Attributes, ChangedAttribute, assigned_attributes
from .decisions import Decision, chosen_values, decision, either, number_beside_tensors
from .engines import quantized_engine, resolve_engine
from .evaluate import check_items, evaluate, first_line, schema_of, where
from .node import Node
from .objects import on_object
from .plumbing import ARITHMETIC, CONTAINERS, QUESTIONS, attribute, structural
from .registry import CONSTANTS, CONVERTERS, TAKES
from .rounds import Rounds
from .run_time_sizes import NO_NUMBER, Count, is_sized, makes_sizes, number, sources
from .shared_elements import SharedElements
from .values import (
    BatchSizes,
    PackedData,
    Reference,
    Traced,
    array_of,
    as_real,
    dtype_name,
    flattened,
    plain,
    qparams_of,
    traced_in,
)

OF_PACKED_DATA = frozenset((
    "aten::_pad_packed_sequence", "aten::dim", "aten::gru", "aten::lstm", "aten::quantized_gru",
    "aten::quantized_lstm", "aten::rnn_relu", "aten::rnn_tanh", "prim::device", "prim::dtype",
))  # fmt: skip
_REMEDIES = {"aten::item": "compute with the tensor itself in place of its item()"}
INPUT_DTYPES = ("float32", "float16", "float64", "int8", "uint8", "int16", "int32", "int64", "bool")


def from_script_module(
    module: Any,
    example_inputs: Any = None,
    shapes: Mapping[str, Sequence[int]] | Sequence[Sequence[int]] | None = None,
    engine: str | None = None,
    source: str = "model",
    elements: int | None = None,
    constants: Mapping[str, Any] | None = None,
) -> QnnModule:
    """Import a `torch.jit.ScriptModule`; arguments as in `from_pytorch`.

    elements: number of elements in all its constants, as far as known
    """
    engine = resolve_engine(engine)
    begin_walk(elements or sum(tensor.numel() for tensor in module.state_dict().values()))
    changing: set[str] = set()
    with quantized_engine(engine):
        try:
            while True:
                try:
                    return Importer(module, engine, source, changing).run(example_inputs, shapes, constants or {})
                except ChangedAttribute as changed:
                    changing.add(changed.path)
        except QnnError:
            raise
        except Exception as error:  # RecursionError, and what PyTorch raises when it returns a damaged graph
            raise ModelFormatError(
                f"{source}: the graph of this model cannot be read: {type(error).__name__}: {first_line(error)}; "
                "export the model again"
            ) from error


def _has_complex(operands: list[Any]) -> bool:
    torch = import_torch()

    def is_complex(value: Any) -> bool:
        return isinstance(value, complex) or (isinstance(value, torch.Tensor) and value.is_complex())

    return any(is_complex(plain(value)) for value in flattened(operands))


def _is_batch_size(kind: str, operands: list[Any]) -> bool:
    """Whether it is the number of packed sequences, of which each has a first step."""
    return kind == "aten::select" and isinstance(operands[0], BatchSizes) and operands[1:] == [0, 0]


def _changing_the_model(node: Any) -> UnsupportedOperatorError:
    return UnsupportedOperatorError(
        f"{where(node)}: changes what the model keeps, and the next call would find it changed; if the model is in "
        "training mode, call model.eval(), else pass it as an input and return its new value"
    )


class Importer:
    """State of one import."""

    def __init__(self, module: Any, engine: str, source: str, changing: Collection[str]) -> None:
        """changing: paths of attributes that a call changes, beyond those that it assigns"""
        self.module = module
        self.engine = engine
        self.source = source
        self.assembly = Assembly()
        self._sizes = self.assembly.builder.sizes
        self._torch = import_torch()
        self._environment: dict[str, Any] = {}
        self._shared = SharedElements(self.assembly, self._environment, source)
        self._changing = changing
        self._outer: set[int] | None = None  # within a branch chosen at run time: what there was before, by id

    # ---- the walk ------------------------------------------------------------------------------------------------

    def run(self, example_inputs: Any, shapes: Any, constants: Mapping[str, Any]) -> QnnModule:
        """Convert `forward`."""
        graph = self._graph()
        owner, *parameters = list(graph.inputs())
        changing = assigned_attributes(graph).union(self._changing)
        self._attributes = Attributes(changing, self.assembly, self._shared.new)
        names = distinct([parameter.debugName().split(".")[0] for parameter in parameters])
        check_bound(constants, names, self.source)
        constants = {**self._defaults(names, left_out(example_inputs, shapes, names, constants)), **constants}
        free = [name for name in names if name not in constants]
        examples = dict(zip(free, example_values(example_inputs, shapes, free), strict=True))
        self._environment[owner.debugName()] = Reference(self.module, "")
        specs: list[TensorSpec] = []
        for parameter, name in zip(parameters, names, strict=True):
            if name in constants:
                value = self._bound(parameter, name, constants[name])
                self._environment[parameter.debugName()] = value
                continue
            self._environment[parameter.debugName()] = self._input(name, examples[name], specs)
        if not specs:
            raise ShapeError(f"{self.source}: the model takes no tensor as input, so there is nothing to compile")
        outputs: list[tuple[TensorSpec, relax.Expr]] = []
        states: list[tuple[State, relax.Expr]] = []

        def walk() -> list[relax.Expr]:
            with self._torch.no_grad():
                self._walk(graph)
            found = flattened([self._environment[output.debugName()] for output in graph.outputs()])
            results = [value for value in found if value is not None]  # parts of a result that training alone has
            outputs.extend(self._output(index, value) for index, value in enumerate(results))
            states.extend(self._attributes.states(self.source))
            return [expr for _, expr in (*outputs, *states)]

        ir = self.assembly.module(walk)
        notes = tuple(dict.fromkeys(self.assembly.notes))
        results, kept = tuple(spec for spec, _ in outputs), tuple(state for state, _ in states)
        return QnnModule(ir, tuple(specs), results, kept, notes, self.source)

    def _defaults(self, names: Sequence[str], absent: Sequence[str]) -> dict[str, Any]:
        """The values that `forward` gives those of its parameters that have no example."""
        arguments = dict(zip(names, self.module.forward.schema.arguments[1:], strict=False))
        found = [(name, arguments[name]) for name in absent if name in arguments]
        return {name: argument.default_value for name, argument in found if argument.has_default_value()}

    def _input(self, name: str, example: Any, specs: list[TensorSpec]) -> Any:
        """The value of an input: each tensor is an input of the module, those in lists, tuples and dictionaries too."""
        if isinstance(example, Mapping):
            return {key: self._input(f"{name}_{key}", item, specs) for key, item in example.items()}
        if isinstance(example, (list, tuple)):
            items = [self._input(f"{name}_{index}", item, specs) for index, item in enumerate(example)]
            return items if isinstance(example, list) else tuple(items)
        if not isinstance(example, self._torch.Tensor):
            return example
        *_, name = distinct([*(spec.name for spec in specs), name])
        specs.append(self._input_spec(name, example))
        return self._shared.new(example.detach(), self.assembly.input(name, specs[-1].shape, specs[-1].dtype))

    def _bound(self, parameter: Any, name: str, value: Any) -> Any:
        """The value of a bound input: a tensor where the model takes one, else as given."""
        if str(parameter.type()) != "Tensor":
            return value
        if isinstance(value, self._torch.Tensor):
            return value.detach()
        dtype = dtype_name(self._torch.as_tensor(value))  # PyTorch's own for Python's numbers
        return self._torch.from_numpy(bound_value(name, value, dtype, None))

    def _graph(self) -> Any:
        if not hasattr(self.module, "inlined_graph"):
            raise ModelFormatError(f"{self.source}: the module has no method forward")
        graph = self.module.inlined_graph  # a copy
        self._torch._C._jit_pass_dce(graph)  # what nothing reads, unless it changes something in place
        return graph

    def _input_spec(self, name: str, example: Any) -> TensorSpec:
        dtype = dtype_name(example)
        if dtype not in INPUT_DTYPES:
            raise UnsupportedOperatorError(f"input {name!r} is of dtype {dtype}; supported: {', '.join(INPUT_DTYPES)}")
        return TensorSpec(name, tuple(example.shape), dtype, qparams_of(example))

    def _output(self, index: int, value: Any) -> tuple[TensorSpec, relax.Expr]:
        name = "output" if index == 0 else f"output_{index}"
        if isinstance(value, PackedData):
            raise UnsupportedOperatorError(
                f"{self.source}: output {index} is a packed sequence; return what pad_packed_sequence makes of it"
            )
        if isinstance(value, Traced) and not isinstance(value, Count):
            self._shared.check(value, "the result")
            example, expr = value.example, value.expr
        elif isinstance(value, self._torch.Tensor):
            self._shared.check(value, "the result")
            example, expr = value, constant(array_of(value))
        elif isinstance(value, (bool, int, float)):
            example = self._torch.tensor(value)
            expr = constant(array_of(example))
        else:
            raise UnsupportedOperatorError(f"{self.source}: output {index} is {type(value).__name__}, not a tensor")
        if example.is_complex():
            raise UnsupportedOperatorError(
                f"{self.source}: output {index} is {example.dtype}; return torch.view_as_real of it"
            )
        expr, axes = trimmed(self._sizes, expr)
        return TensorSpec(name, shape_of(expr), dtype_name(example), qparams_of(example), bounded=axes), expr

    def _walk(self, block: Any) -> None:
        for node in block.nodes():
            kind = node.kind()
            if kind == "prim::If":
                self._branch(node)
            elif kind == "prim::Loop":
                self._loop(node)
            elif kind == "prim::fork":
                self._fork(node)
            else:
                self._bind(node, self._evaluate(node, kind))

    def _bind(self, node: Any, results: Sequence[Any]) -> None:
        for output, value in zip(node.outputs(), results, strict=True):
            self._environment[output.debugName()] = value

    def _operands(self, node: Any) -> list[Any]:
        values = [self._environment[value.debugName()] for value in node.inputs()]
        check_items(values)
        self._shared.check(values, node.kind())
        return values

    def _evaluate(self, node: Any, kind: str) -> Sequence[Any]:
        count_evaluation()
        with blaming(lambda: where(node)):
            if kind == "prim::Constant":
                return [self._shared.hold(node.output().toIValue())]
            operands = self._operands(node)
            if (kind in CONTAINERS or kind == "prim::SetAttr") and self._outer is not None:
                self._check_inside(node, operands[:1])
            made = on_object(node, kind, operands)
            if made is not None:
                return made
            if kind == "prim::SetAttr":
                self._assign(node, operands)
                return []
            if kind == "prim::GetAttr":
                return [self._read(node, operands[0], node.s("name"))]
            if kind == "prim::isinstance":
                return [self._is_instance(node, operands[0])]
            if kind in ("prim::ListUnpack", "prim::TupleUnpack"):
                return list(operands[0])
            handled, result = structural(kind, operands)
            if handled:
                return [result] if node.outputsSize() == 1 else []
            return self._operator(node, kind, operands)

    def _is_instance(self, node: Any, value: Any) -> bool:
        """By the type that the script declares, or that of the value where it may be one of several."""
        (operand,) = node.inputs()
        found = [operand.type(), self._torch._C._jit_try_infer_type(plain(value)).type()]
        return any(one.isSubtypeOf(wanted) for one in found for wanted in node.tys("types"))

    def _operator(self, node: Any, kind: str, operands: list[Any]) -> Sequence[Any]:
        depends = any(True for _ in traced_in(operands))
        single = number_beside_tensors(self.assembly, node, kind, operands)
        if single is not None:
            return [single]
        decided = decision(self.assembly, node, kind, operands)
        if decided is not None:
            return [decided]
        self._check_packed(node, kind, operands)
        in_place = kind.endswith("_") and not kind.endswith("__")
        if in_place and isinstance(operands[0], Traced):
            self._check_inside(node, [operands[0]])
        if in_place and isinstance(operands[0], self._torch.Tensor):
            for path in self._shared.held_by(operands[0]):
                raise ChangedAttribute(path) if path and self._outer is None else _changing_the_model(node)
        run = partial(evaluate, node, is_constant=False)
        sized = depends and is_sized(self._sizes, operands)
        if sized:
            found = number(self._sizes, kind, operands, lambda: run([plain(value) for value in operands]))
            if found is not NO_NUMBER:
                return [found]
        own = None if sized or (depends and makes_sizes(kind, operands)) else self._converter(node, kind, operands)
        numbers = not depends and kind in ARITHMETIC
        known = own is not None or (
            not numbers
            and kind.startswith(remaining.SPACES)
            and remaining.is_convertible(kind, schema_of(node).overload_name)
        )
        if kind in QUESTIONS or _is_batch_size(kind, operands) or numbers or (not depends and known):
            return self._results(node, evaluate(node, [plain(value) for value in operands], is_constant=not depends))
        if not known:
            self._sizes.refuse([one.expr for one in sources(operands)], f"{where(node)}: {kind} of such a size")
            raise UnsupportedOperatorError(
                f"{where(node)}: operator {kind} is not supported; "
                + _REMEDIES.get(
                    kind, "rewrite this part of the model with other operators or keep it out of the module"
                )
            )
        if in_place and isinstance(operands[0], self._torch.Tensor):
            operands = [self._shared.constant_to_change(operands[0]), *operands[1:]]
        arguments = self._arguments(node, operands)
        if in_place and _has_complex(operands):
            raise UnsupportedOperatorError(
                f"{where(node)}: {kind} changes complex numbers in place, which is not supported; use the out-of-place "
                "operator"
            )
        if own is None:
            read = [in_place or bool(output.uses()) for output in node.outputs()]  # where written, it is read later
            overload = schema_of(node).overload_name
            own = remaining.Remaining(self.assembly, kind, overload, arguments, read, partial(where, node)).convert
        examples = self._results(node, run([plain(value) for value in operands]))
        converted = Node(self.assembly, self.engine, kind, partial(where, node), arguments, examples, run)
        self.assembly.layer = converted.name
        value = own(converted)
        values = value if isinstance(value, list) else [value]
        if in_place:
            written = self._result(examples[0], self._shared.in_dtype_of(examples[0], values[0]))
            return [self._shared.overwrite(operands[0], written)]
        if node.outputsSize() == 1 and isinstance(examples[0], (list, tuple)):
            return [[self._result(e, v) for e, v in zip(examples[0], values, strict=True)]]
        return [self._result(example, v) for example, v in zip(examples, values, strict=True)]

    def _converter(self, node: Any, kind: str, operands: list[Any]) -> Callable[[Node], Any] | None:
        """The operator's own converter, unless it takes an argument as a constant that is computed here, or is not for
        such arguments, as none is for complex numbers."""
        if _has_complex(operands):
            return None
        constants, takes = CONSTANTS.get(kind), TAKES.get(kind)
        arguments = self._arguments(node, operands) if constants or takes else {}
        if any(isinstance(arguments.get(name), Traced) for name in constants or ()):
            return None
        return CONVERTERS.get(kind) if takes is None or takes(plain(arguments)) else None

    def _check_packed(self, node: Any, kind: str, operands: list[Any]) -> None:
        """The number of packed rows is the example's, but not that of other inputs."""
        packed = next((traced for traced in traced_in(operands) if isinstance(traced, PackedData)), None)
        if packed is None or kind in OF_PACKED_DATA:
            return
        if kind != "aten::size" or len(operands) < 2 or operands[1] % packed.example.dim() == 0:
            raise UnsupportedOperatorError(
                f"{where(node)}: operator {kind} on the data of packed sequences is not supported, only recurrent "
                "layers; apply it before pack_padded_sequence or after pad_packed_sequence"
            )

    def _read(self, node: Any, owner: Any, name: str) -> Any:
        """An attribute, of the model or of an object in it."""
        if self._attributes.is_changing(owner, name):
            return self._attributes.read(node, owner, name)
        value = attribute(owner, name)
        if isinstance(value, self._torch.Tensor) and self._attributes.shares(value):
            raise _changing_the_model(node)
        return self._shared.hold(value, owner.path_of(name) if isinstance(owner, Reference) else "")

    def _assign(self, node: Any, operands: Sequence[Any]) -> None:
        owner, value = operands
        if self._outer is not None or not self._attributes.is_changing(owner, node.s("name")):
            raise _changing_the_model(node)
        self._attributes.assign(owner, node.s("name"), value)

    def _results(self, node: Any, result: Any) -> list[Any]:
        return list(result) if node.outputsSize() > 1 else [] if node.outputsSize() == 0 else [result]

    def _arguments(self, node: Any, operands: list[Any]) -> dict[str, Any]:
        return {argument.name: value for argument, value in zip(schema_of(node).arguments, operands, strict=True)}

    def _result(self, example: Any, expr: Any) -> Any:
        """One output with its expression, checked against what PyTorch computed."""
        if expr is None or isinstance(expr, Traced):
            return expr
        if not isinstance(example, self._torch.Tensor):
            return example
        bound = self.assembly.emit(expr)
        real = as_real(example)
        axes, wanted = self._sizes.of(bound), (tuple(real.shape), dtype_name(real))
        shape = tuple(wanted[0][axis] if axis in axes else size for axis, size in enumerate(shape_of(bound)))
        found = (shape, str(bound.ty.dtype))
        if found != wanted:
            raise QnnError(f"converted to {found[1]}{found[0]}, but PyTorch computes {wanted[1]}{wanted[0]}")
        return self._shared.new(example, bound)

    # ---- control flow --------------------------------------------------------------------------------------------

    def _branch(self, node: Any) -> None:
        (condition,) = self._operands(node)
        blocks = list(node.blocks())
        if isinstance(condition, Decision):
            raising = [any(inner.kind() == "prim::RaiseException" for inner in block.nodes()) for block in blocks]
            if not any(raising):
                with blaming(lambda: where(node)):
                    self._bind(node, self._chosen(condition, blocks))
                return
            taken = blocks[0 if raising[1] else 1]  # a check, which the module leaves out
        else:
            taken = blocks[0 if self._known(node, condition) else 1]
        self._walk(taken)
        self._bind(node, [self._environment[output.debugName()] for output in taken.outputs()])

    def _chosen(self, condition: Decision, blocks: Sequence[Any]) -> list[Any]:
        """The results of one block or the other, which is known at run time."""
        results: list[list[Any]] = []

        def run(block: Any) -> list[relax.Expr]:
            results.append(self._apart(block))
            return chosen_values(results[-1])

        found = iter(branch(self.assembly, condition.expr, *(partial(run, block) for block in blocks)))
        return [
            either(one, other, condition.example, found, self._shared.new) for one, other in zip(*results, strict=True)
        ]

    def _apart(self, block: Any) -> list[Any]:
        """The results of a block that may not be run, or more than once: what it changes must be its own."""
        outer, self._outer, count = self._outer, set(map(id, self._environment.values())), len(self._shared)
        self._walk(block)
        self._outer = outer
        self._shared.forget(count)
        return [self._environment[output.debugName()] for output in block.outputs()]

    def _check_inside(self, node: Any, values: Sequence[Any]) -> None:
        """Raises UnsupportedOperatorError where a branch chosen at run time changes what was there before."""
        if self._outer is None:
            return
        if any(self._shared.is_of(value, self._outer) for value in values):
            raise UnsupportedOperatorError(
                f"{where(node)}: changes a tensor or list within a branch that is chosen at run time, or within such a "
                "loop; make a new value of it there"
            )

    def _fork(self, node: Any) -> None:
        """What runs beside the rest is computed at its place."""
        inner = node.g("Subgraph")
        self._torch._C._jit_pass_inline(inner)
        for place, value in zip(inner.inputs(), self._operands(node), strict=True):
            self._environment[place.debugName()] = value
        self._walk(inner)
        results = [self._environment[output.debugName()] for output in inner.outputs()]
        self._bind(node, results if len(results) == 1 else [tuple(results)])

    def _loop(self, node: Any) -> None:
        trips, condition, *carried = self._operands(node)
        (body,) = node.blocks()
        count = 0
        while count < self._known(node, trips):
            if isinstance(condition, Decision):
                with blaming(lambda: where(node)):
                    run = partial(self._one_round, body)
                    carried = Rounds(self.assembly, node, run, self._shared.new).after(count, trips, condition, carried)
                break
            if not self._known(node, condition):
                break
            self._enter(body, [count, *carried])
            self._walk(body)
            condition, *carried = [self._environment[output.debugName()] for output in body.outputs()]
            count += 1
            if count > current().unrolled:
                raise over("unrolled", f"{where(node)}: the loop")
        self._bind(node, carried)

    def _enter(self, body: Any, values: Sequence[Any]) -> None:
        for variable, value in zip(body.inputs(), values, strict=True):
            self._environment[variable.debugName()] = value

    def _one_round(self, body: Any, values: Sequence[Any]) -> list[Any]:
        self._enter(body, values)
        return self._apart(body)

    def _known(self, node: Any, value: Any) -> Any:
        if isinstance(value, Traced):
            raise UnsupportedOperatorError(
                f"{where(node)}: {node.kind()} depends on the values of a tensor, not only on its shape; "
                "trace the model with torch.jit.trace, or move the decision out of it"
            )
        return plain(value)
