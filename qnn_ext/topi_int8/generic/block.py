"""Read-only view of the blocks of a TE-made PrimFunc: loops, kinds, accesses, and what one iteration costs.

Expressions are told apart by `type(node) is …`: TVM's classes have a metaclass that makes `isinstance` slow where the
answer is no.

Only the plain form is understood: one perfect nest of serial loops of constant extent per block, each loop bound to one
block iterator. Anything else (extern calls, nested blocks, symbolic shapes) is reported as not plain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, TensorLoad
from tvm.s_tir import SBlock, Schedule
from tvm.sym import detect_linear_equation

from ...numerics.held import HELD
from ...numerics.multiply import MULTIPLY
from ...numerics.piecewise import SEGMENTS
from ...numerics.saturate import SATURATE

_realize = tvm.get_global_func("s_tir.schedule.GetSBlockRealize")

_CHEAP_CALLS = {
    HELD,
    MULTIPLY,
    SATURATE,
    "tirx.call_llvm_pure_intrin",
    "prim.if_then_else",
    "tirx.reinterpret",
    "tirx.likely",
    "prim.likely",
    "tirx.nearbyint",
    "tirx.fabs",
    "tirx.isnan",
    "tirx.floor",
}
_PURE = 1  # TCallEffectKind: 0 annotation, 1 pure, above that reads or writes state
_CALL_COST = 100  # a scalar library call against one addition, of which a vector instruction does 16
_DIVIDE_COST = 4
_NODE_COSTS: dict[type, int] = {
    **dict.fromkeys((tirx.Div, tirx.FloorDiv, tirx.FloorMod, tirx.Mod), _DIVIDE_COST),
    **dict.fromkeys((tirx.Var, tirx.IntImm, tirx.FloatImm), 0),
}
_SCATTERED_COST = 16  # a load per element instead of one per vector


@dataclass(frozen=True)
class Loop:
    """One loop of a block: its handle, the block iterator it drives, "S" or "R", and its extent."""

    rv: Any
    var: tirx.Var
    kind: str
    extent: int


@dataclass(frozen=True, eq=False)
class Block:
    """One block of a function, in its current schedule."""

    rv: Any
    node: SBlock
    loops: tuple[Loop, ...]

    @property
    def spatial(self) -> list[Loop]:
        return [loop for loop in self.loops if loop.kind == "S"]

    @property
    def reduce(self) -> list[Loop]:
        return [loop for loop in self.loops if loop.kind == "R"]

    @property
    def iterations(self) -> int:
        return prod(loop.extent for loop in self.loops)

    @property
    def stores(self) -> list[tirx.BufferStore]:
        return [statement for statement in _statements(self.node) if isinstance(statement, tirx.BufferStore)]

    @property
    def store(self) -> tirx.BufferStore | None:
        """The single store of the block, None for tuple reductions."""
        return self.stores[0] if len(self.stores) == 1 else None

    @cached_property
    def nodes(self) -> list[Expr]:
        return expressions(self.node.body)

    @cached_property
    def loads(self) -> list[TensorLoad]:
        return [node for node in self.nodes if type(node) is TensorLoad]

    @property
    def conditional(self) -> bool:
        return any(call_name(node) == "prim.if_then_else" for node in self.nodes)

    @cached_property
    def cost(self) -> int:
        """Simple operations per iteration: casts, arithmetic, calls, scattered loads; index arithmetic counts too."""
        inner = self.loops[-1].var if self.loops and not self.reduce else None
        scattered = sum(1 for load in self.loads if inner is not None and stride_of(load.indices, inner) == "far")
        return 1 + sum(_node_cost(node) for node in self.nodes) + _SCATTERED_COST * scattered

    @property
    def total_cost(self) -> int:
        return self.iterations * self.cost

    @property
    def largest_buffer(self) -> int:
        """Elements of the largest tensor the block touches."""
        buffers = [load.source for load in self.loads] + [store.buffer for store in self.stores]
        return max(prod(map(int, buffer.shape[:])) for buffer in buffers)

    def computes_in(self, dtype: str) -> bool:
        """Whether values, as opposed to indices, are loaded or stored in this dtype or converted to it."""
        values = [*(store.value for store in self.stores), *self.loads]
        values += [node for node in self.nodes if type(node) is tirx.Cast]
        return any(str(value.ty.dtype) == dtype for value in values)

    @property
    def narrows(self) -> bool:
        """Whether it saturates to 8 bits, which CPUs do several registers at a time."""
        return any(call_name(node) == SATURATE for node in self.nodes)

    @property
    def tables(self) -> bool:
        """Whether it reads tables of bytes."""
        return any(is_table(load) for load in self.loads)

    @property
    def segments(self) -> bool:
        """Whether it reads the coefficients of piecewise functions."""
        return any(is_segments(load) for load in self.loads)

    def conditioned_vars(self) -> list[tirx.Var]:
        """Block iterators on which the condition of an if_then_else depends."""
        conditions = [node.args[0] for node in self.nodes if call_name(node) == "prim.if_then_else"]
        return [loop.var for loop in self.loops if any(uses(condition, loop.var) for condition in conditions)]


def blocks_of(sch: Schedule) -> list[Block]:
    """The plain blocks under the root of the function `sch` works on, in program order."""
    return blocks_and_tail(sch)[0]


def blocks_and_tail(sch: Schedule) -> tuple[list[Block], int]:
    """These blocks, and how many of the last have only plain ones behind them, so that they may share loops."""
    children = [read_block(sch, rv) for rv in sch.get_child_blocks(sch.get_sblock("root"))]
    tail = list(takewhile(lambda block: block is not None, reversed(children)))
    return [block for block in children if block is not None], len(tail)


def read_block(sch: Schedule, rv: Any, below: Any = None) -> Block | None:
    """The view of one block, or None if it is not plain; with `below`, only of its loops inside that loop.

    Loops of extent 1 that drive no iterator alone, as `compute_at` leaves them, are skipped.
    """
    node = sch.get(rv)
    if _is_opaque(node):
        return None
    handles = sch.get_loops(rv)
    if below is not None:
        outside = [sch.get(handle).same_as(sch.get(below)) for handle in handles].index(True)
        handles = handles[outside + 1 :]
    iterators = list(zip(node.iter_vars[:], _realize(sch, rv).iter_values[:], strict=True))
    loops = []
    for handle in handles:
        loop = sch.get(handle)
        driven = [iterator for iterator, value in iterators if value.same_as(loop.loop_var)]
        if not driven and isinstance(loop.extent, tirx.IntImm) and int(loop.extent) == 1:
            continue
        kind = (
            {tirx.IterVar.DataPar: "S", tirx.IterVar.CommReduce: "R"}.get(int(driven[0].iter_type)) if driven else None
        )
        constant = isinstance(loop.extent, tirx.IntImm) and isinstance(loop.min, tirx.IntImm)
        if kind is None or not constant or int(loop.kind) != int(tirx.ForKind.SERIAL):
            return None
        loops.append(Loop(handle, driven[0].var, kind, int(loop.extent)))
    if below is None and len(loops) != len(iterators):
        return None
    return Block(rv, node, tuple(loops))


def expressions(root: Any) -> list[Expr]:
    """All expressions below a statement or expression, in post order, repeated where they occur repeatedly."""
    nodes: list[Expr] = []
    tvm_ffi.structural_walk(root, (Expr, nodes.append), order="post")
    return nodes


def expanded_size(block: Block, buffer: Any = None, producer: int = 0) -> int:
    """Expressions in a block if every `let` were expanded wherever its variable occurs: TVM's code generation
    simplifies that many.

    producer: what each load of `buffer` counts for
    """
    values = {node.var: node.value for node in block.nodes if type(node) is tirx.Let}
    if values:
        return _expanded_size(block.nodes, values, {}, buffer, producer)
    repeated = 0 if buffer is None else sum(load.source.same_as(buffer) for load in block.loads)
    return len(block.nodes) + repeated * producer


def _expanded_size(
    nodes: list[Expr], values: dict[tirx.Var, Expr], known: dict[tirx.Var, int], buffer: Any, producer: int
) -> int:
    """values: those of the variables; known: their sizes found so far"""
    size = len(nodes)
    for node in nodes:
        if isinstance(node, TensorLoad) and buffer is not None and node.source.same_as(buffer):
            size += producer
        elif isinstance(node, tirx.Var) and node in values:
            if node not in known:
                known[node] = _expanded_size(expressions(values[node]), values, known, buffer, producer)
            size += known[node]
    return size


def uses(expr: Any, var: tirx.Var) -> bool:
    """Whether `var` occurs in `expr`."""
    if isinstance(expr, tirx.Var):
        return bool(expr.same_as(var))
    found: list[tirx.Var] = []
    tvm_ffi.structural_walk(expr, (tirx.Var, found.append))
    return any(other.same_as(var) for other in found)


def distinct_loads(block: Block, buffer: tirx.Buffer) -> int:
    """How many different elements of `buffer` one iteration reads."""
    distinct: list[TensorLoad] = []
    for load in block.loads:
        if load.source.same_as(buffer) and not any(tvm_ffi.structural_equal(load, other) for other in distinct):
            distinct.append(load)
    return len(distinct)


def stride_of(indices: Sequence[Any], var: tirx.Var) -> str:
    """How an access moves with `var`: "none", "unit" (the next element in memory) or "far".

    In blocks of a layout [..., var // n, ..., var % n] the next element counts as "unit".
    """
    indices = indices[:]
    if not any(uses(index, var) for index in indices):
        return "none"
    blocks = [index for index in indices if isinstance(index, tirx.FloorDiv) and index.a.same_as(var)]
    last = indices[-1]
    if len(blocks) == 1 and isinstance(last, tirx.FloorMod) and last.a.same_as(var):
        return "unit"
    if any(uses(index, var) for index in indices[:-1]):
        return "far"
    linear = detect_linear_equation(indices[-1], [var])
    unit = len(linear) == 2 and isinstance(linear[0], tirx.IntImm) and int(linear[0]) == 1
    return "unit" if unit else "far"


def is_table(load: TensorLoad) -> bool:
    """Whether an 8-bit value is the index into 256 bytes."""
    return has_size(load.source, 256) and str(load.ty.dtype) in ("int8", "uint8") and _is_computed(load.indices[0])


def has_size(buffer: tirx.Buffer, size: int) -> bool:
    """Whether a buffer has one axis, of this size."""
    shape = buffer.shape
    return len(shape) == 1 and isinstance(shape[0], tirx.IntImm) and int(shape[0]) == size


def is_segments(load: TensorLoad) -> bool:
    """Whether a computed index selects one of the coefficients of a piecewise function."""
    return has_size(load.source, SEGMENTS) and str(load.ty.dtype) == "float32" and _is_computed(load.indices[0])


def _is_computed(index: Any) -> bool:
    return len(expressions(index)) > 1


def _is_opaque(node: SBlock) -> bool:
    if not all(isinstance(statement, tirx.BufferStore | tirx.Bind) for statement in _statements(node)):
        return True
    calls: list[Call] = []
    tvm_ffi.structural_walk(node.body, (Call, calls.append))
    return not all(map(_is_pure, calls))


def _statements(node: SBlock) -> list[tirx.Stmt]:
    return list(node.body.seq) if isinstance(node.body, tirx.SeqStmt) else [node.body]


def _is_pure(call: Call) -> bool:
    if call_name(call) in _CHEAP_CALLS:
        return True
    effect = call.op.get_attr("TCallEffectKind") if isinstance(call.op, tvm.ir.Op) else None
    return effect is not None and int(effect) <= _PURE


def call_name(node: Any) -> str:
    return getattr(node.op, "name", "") if type(node) is Call else ""


def _node_cost(node: Any) -> int:
    if type(node) is Call:
        return 1 if call_name(node) in _CHEAP_CALLS else _CALL_COST
    return _NODE_COSTS.get(type(node), 1)
