"""A product's kernel as a nest of loops that its module writes, in place of the stages that TE knows.

The code for copies of the input and for sums is made of instructions and routines, where no schedule leads. TE still
says what is read and what the epilogue computes from each sum; `schedule_nest` takes that, and puts the nest where the
stages were. Kernels call the stages "columns", with the padding's value, and "sums".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.target import Target

from ...errors import TargetError
from ...numerics.annotations import BEHIND
from ..schedule_util import APART, changed_block, inline_epilogue, schedule_root_blocks
from .window import const

Expr = Any

PAD = "qnn_ext.pad"  # on the block of columns: the padding's value
_STAGES = {"columns", "sums"}


class Nest:
    """What a kernel's stages say.

    data, weights: the buffers that it reads
    pad:           the padding's value
    buffers:       of its own, for one tile
    """

    def __init__(self, columns: SBlock, sums: SBlock, output: SBlock) -> None:
        self.pad = int(columns.annotations[PAD])
        self.data = columns.reads[0].source
        self.weights = next(read.source for read in sums.reads if len(read.source.shape) > 1)
        self.buffers: list[Any] = []
        self._bias = sums.init.value.source if isinstance(sums.init.value, ir.TensorLoad) else None
        self._sums, self._output = sums.writes[0].source, output

    def buffer(self, name: str, shape: Sequence[int], dtype: str) -> Any:
        """A new buffer of the nest's own."""
        self.buffers.append(tirx.decl_buffer(tuple(shape), dtype, name, layout=None))
        return self.buffers[-1]

    def initial(self, channel: Expr) -> Expr:
        """The value that a channel's sums start at."""
        return tirx.const(0, "int32") if self._bias is None else self._bias[channel]

    def result(self, place: Sequence[Expr], total: Expr) -> tirx.Stmt:
        """What becomes of a sum: the epilogue at a place of the product's result."""
        variables = [iter_var.var for iter_var in self._output.iter_vars]
        if self._output.writes[0].source.same_as(self._sums):
            return tirx.BufferStore(self._sums, total, list(place))
        known = dict(zip(variables, place, strict=True))

        def load(node: ir.TensorLoad) -> Expr:
            return total if node.source.same_as(self._sums) else node

        def variable(var: tirx.Var) -> Expr:
            return known.get(var, var)

        body = tvm_ffi.structural_map(self._output.body, (ir.TensorLoad, load))
        return tvm_ffi.structural_map(body, (tirx.Var, variable))

    def block(self, nest: tirx.Stmt, order: Order | None) -> tirx.Stmt:
        """The nest as an opaque block, with how far behind its reads it writes, if it goes in an order."""
        others = [region.source for region in self._output.reads if not region.source.same_as(self._sums)]
        read = [self.data, self.weights, *([] if self._bias is None else [self._bias]), *others]
        distinct = [one for index, one in enumerate(read) if not any(one.same_as(other) for other in read[:index])]
        written = self._output.writes[0]
        regions = [ir.TensorRegion(one, [ir.Range(0, size) for size in one.shape], written.ty) for one in distinct]
        whole = ir.TensorRegion(written.source, [ir.Range(0, size) for size in written.source.shape], written.ty)
        notes = {} if order is None else {BEHIND: [self._behind(one, order) for one in distinct]}
        block = SBlock([], regions, [whole], "nest", nest, alloc_buffers=self.buffers, annotations=notes)
        return SBlockRealize([], True, block)

    def _behind(self, buffer: Any, order: Order) -> int:
        """The bytes by which a buffer must start behind the result to be read before it is overwritten; −1: it cannot
        share the result's memory."""
        store = self._output.body
        written = self._output.writes[0].source
        if not isinstance(store, tirx.BufferStore) or not self._is_at_place(store.indices):
            return -1
        item = tvm_ffi.dtype(str(written.dtype)).itemsize
        loads: list[ir.TensorLoad] = []
        tvm_ffi.structural_walk(store.value, (ir.TensorLoad, loads.append))
        loads = [load for load in loads if load.source.same_as(buffer)]
        distances = []
        if buffer.same_as(self.data):
            distances.append(order.behind_data(item, tvm_ffi.dtype(str(buffer.dtype)).itemsize))
        if loads:
            if not all(self._is_at_place(load.indices) for load in loads) or str(buffer.dtype) != str(written.dtype):
                return -1
            distances.append(order.behind_operands(item))
        return max(distances, default=-1)

    def _is_at_place(self, indices: Sequence[Expr]) -> bool:
        """Whether an element of a tensor of the result's shape is at the same place as the result."""
        variables = [iter_var.var for iter_var in self._output.iter_vars]
        shape = self._output.writes[0].source.shape
        return len(indices) == len(variables) and all(
            index.same_as(var) or int(size) == 1 for index, var, size in zip(indices, variables, shape, strict=True)
        )


@dataclass(frozen=True)
class Order:
    """The order in which a nest goes through memory, tile by tile.

    written: elements from the result's start to the last that is written by the end of each tile
    read:    elements from the data's start to the first that each tile reads
    begins:  elements to the first that each tile writes, and reads of the epilogue's other operands
    """

    written: np.ndarray
    read: np.ndarray
    begins: np.ndarray

    def behind_data(self, item: int, read_item: int) -> int:
        """The bytes by which the data must start behind the result, of items of these bytes. A tile has copied all that
        it reads before it writes."""
        return _distance((self.written * item)[:-1], (self.read * read_item)[1:])

    def behind_operands(self, item: int) -> int:
        """The same for an operand of the epilogue with the result's shape and items, which a tile reads and
        overwrites in turns."""
        return _distance(self.written * item, self.begins * item)


def _distance(written: np.ndarray, read: np.ndarray) -> int:
    """written: where the result ends before each read; read: where that begins."""
    needed = np.minimum.accumulate(read[::-1])[::-1]  # the first that this read or a later one needs
    return int(max(0, (written - needed).max(initial=0)))


def schedule_nest(
    sch: Schedule, target: Target, write: Callable[[Nest], tirx.Stmt], order: Order | None = None
) -> None:
    """Put the nest that `write` makes in place of a product's stages. Raises TargetError for results that are moved."""
    columns, sums = sch.get_sblock("columns"), sch.get_sblock("sums")
    output = inline_epilogue(sch, sums)
    if any(APART in sch.get(block).annotations for block in sch.get_consumers(output)):
        raise TargetError("its results are moved apart")
    schedule_root_blocks(sch, [columns, sums, output], target)
    nest = Nest(sch.get(columns), sch.get(sums), sch.get(output))
    stmt = nest.block(write(nest), order)
    root, last = sch.get_sblock("root"), sch.get(output).name_hint
    node = sch.get(root)
    body = [
        stmt if last in _names(part) else part for part in _parts(node.body) if not _names(part) & (_STAGES - {last})
    ]
    buffers = [buffer for buffer in node.alloc_buffers if buffer.name not in _STAGES]
    changed = changed_block(node, body=tirx.SeqStmt(body) if len(body) > 1 else body[0], alloc_buffers=buffers)
    sch.state.replace(sch.get_sref(root), changed, {node: changed})


def _parts(body: tirx.Stmt) -> list[tirx.Stmt]:
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def _names(part: tirx.Stmt) -> set[str]:
    found: set[str] = set()
    tvm_ffi.structural_walk(part, (SBlock, lambda block: found.add(block.name_hint)))
    return found


def start(index: Expr, size: int, total: int) -> Expr:
    """Where a tile of `size` of `total` things starts; the last one earlier, where tiles do not divide them."""
    return tirx.min(index * size, const(total - size)) if total % size else index * size


def loop(var: tirx.Var, extent: int, body: Sequence[tirx.Stmt], unrolled: bool = False) -> tirx.Stmt:
    """A loop; of a single round, only its body."""
    stmt = tirx.SeqStmt(list(body)) if len(body) > 1 else body[0]
    if extent > 1:
        kind = tirx.ForKind.UNROLLED if unrolled else tirx.ForKind.SERIAL
        return tirx.For(var, const(0), const(extent), kind, stmt)
    return tvm_ffi.structural_map(stmt, (tirx.Var, lambda other: const(0) if other.same_as(var) else other))
