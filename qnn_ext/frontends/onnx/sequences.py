"""Sequences of tensors. Their lengths are known at import; no tensor of the module holds one.

Tensors of one shape that a loop or a split makes are stacked in one tensor, so that a loop may read them by a position
known only at run time. A loop that appends to a sequence has what it appends as stacked outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ...errors import UnsupportedOperatorError
from ...limits import check
from ...op import compound
from ...op.base import constant, normalize_axis, shape_of
from ..recurrent import part_of, stacked
from ..run_time import checked_indices
from .node import Node


@dataclass(frozen=True)
class Run:
    """Tensors of one shape along axis 0 of one tensor."""

    tensors: relax.Expr

    @property
    def count(self) -> int:
        return shape_of(self.tensors)[0]


@dataclass(frozen=True)
class TensorSequence:
    """parts: tensors, and runs of them, in order
    state: the state of a loop that they follow, whose own tensors are those of earlier rounds; None if there is none
    """

    parts: tuple[relax.Expr | Run, ...] = ()
    state: object = None

    @property
    def length(self) -> int:
        return sum(part.count if isinstance(part, Run) else 1 for part in self.parts)

    def items(self, node: Node) -> list[relax.Expr]:
        """The tensors, each by itself."""
        check("unrolled", self.length, f"{node.label}: the sequence")
        found: list[relax.Expr] = []
        for part in self.parts:
            if isinstance(part, Run):
                found += [part_of(node.emit, part.tensors, index) for index in range(part.count)]
            else:
                found.append(part)
        return found

    def stack(self, node: Node) -> relax.Expr:
        """The tensors along a new first axis."""
        whole = [part.tensors if isinstance(part, Run) else stacked(node.emit, [part], 0) for part in self.parts]
        types = {f"{value.ty.dtype} of shape {shape_of(value)[1:]}" for value in whole}
        if len(types) != 1:
            found = " and ".join(sorted(types)) or "no tensors"
            raise node.unsupported(f"a sequence with {found}, where its tensors must have one shape")
        return whole[0] if len(whole) == 1 else node.emit(relax.op.concat(whole, 0))


class LoopSequenceError(UnsupportedOperatorError):
    """A loop does more with a sequence than to append to it."""


def sequence_of(node: Node) -> TensorSequence:
    """The first input, a sequence whose tensors are all at hand."""
    found = node.input(0)
    if not isinstance(found, TensorSequence):
        raise node.malformed("input 0 is a tensor; it must be a sequence")
    if found.state is not None:
        raise LoopSequenceError("a sequence that a loop appends to, read in that loop")
    return found


def _empty(node: Node) -> TensorSequence:
    return TensorSequence()


def _construct(node: Node) -> TensorSequence:
    return _of_one_dtype(node, TensorSequence(tuple(node.input(index) for index in range(len(node.inputs)))))


def _insert(node: Node) -> TensorSequence:
    found, tensor = node.input(0), node.input(1)
    if not isinstance(found, TensorSequence):
        raise node.malformed("input 0 is a tensor; it must be a sequence")
    if not node.has_input(2):
        return _of_one_dtype(node, TensorSequence((*found.parts, tensor), found.state))
    items = sequence_of(node).items(node)
    items.insert(_position(node, 2, len(items) + 1), tensor)
    return _of_one_dtype(node, TensorSequence(tuple(items)))


def _of_one_dtype(node: Node, sequence: TensorSequence) -> TensorSequence:
    tensors = [part.tensors if isinstance(part, Run) else part for part in sequence.parts]
    dtypes = sorted({str(tensor.ty.dtype) for tensor in tensors})
    if len(dtypes) > 1:
        raise node.malformed(f"the tensors of a sequence have one dtype, found {' and '.join(dtypes)}")
    return sequence


def _erase(node: Node) -> TensorSequence:
    items = sequence_of(node).items(node)
    del items[_position(node, 1, len(items)) if node.has_input(1) else _within(node, -1, len(items))]
    return TensorSequence(tuple(items))


def _at(node: Node) -> relax.Expr:
    sequence = sequence_of(node)
    if not node.is_constant(1):
        tensors, index = sequence.stack(node), compound.reshape(node.input(1), (), node.emit)
        index = checked_indices(node.emit, index, sequence.length, node.label, negative=True)
        return relax.op.take(tensors, index, axis=0, mode="clip")
    position = _position(node, 1, sequence.length)
    for part in sequence.parts:
        count = part.count if isinstance(part, Run) else 1
        if position < count:
            return part_of(node.emit, part.tensors, position) if isinstance(part, Run) else part
        position -= count
    raise AssertionError("the position is within the length")


def _length(node: Node) -> relax.Expr:
    return constant(np.int64(sequence_of(node).length))


def _position(node: Node, index: int, length: int) -> int:
    """An input that is a constant position below `length`; negative ones count from the end."""
    values = node.integers(index)
    if len(values) != 1:
        raise node.malformed(f"a position must be a scalar, found {len(values)} values")
    return _within(node, values[0], length)


def _within(node: Node, position: int, length: int) -> int:
    if not -length <= position < length:
        raise node.malformed(f"position {position} is out of range for a sequence with {length} places")
    return position % length


def _concat(node: Node) -> relax.Expr:
    sequence, new_axis = sequence_of(node), bool(node.attribute("new_axis", 0))
    if not sequence.length:
        raise node.malformed("an empty sequence cannot be joined")
    if new_axis:
        tensors = sequence.stack(node)
        axis = normalize_axis(int(node.attribute("axis", 0)), len(shape_of(tensors)))
        return compound.permute(tensors, _moved(len(shape_of(tensors)), axis), node.emit)
    wholes = [_joined(node, part) if isinstance(part, Run) else part for part in sequence.parts]
    axis = normalize_axis(int(node.attribute("axis", 0)), len(shape_of(wholes[0])))
    return wholes[0] if len(wholes) == 1 else relax.op.concat(wholes, axis)


def _joined(node: Node, run: Run) -> relax.Expr:
    """The tensors of a run along the axis of the attribute."""
    count, *shape = shape_of(run.tensors)
    axis = normalize_axis(int(node.attribute("axis", 0)), len(shape))
    tensors = compound.permute(run.tensors, _moved(len(shape) + 1, axis), node.emit)
    return compound.reshape(tensors, (*shape[:axis], count * shape[axis], *shape[axis + 1 :]), node.emit)


def _moved(rank: int, axis: int) -> list[int]:
    """The order of axes that moves the first one to `axis`."""
    return [*range(1, axis + 1), 0, *range(axis + 1, rank)]


def _split(node: Node) -> TensorSequence:
    value, shape = node.input(0), list(node.shape())
    axis = normalize_axis(int(node.attribute("axis", 0)), len(shape))
    keep, size = bool(node.attribute("keepdims", 1)) or node.has_input(1), shape[axis]
    sizes = node.integers(1) if node.has_input(1) else [1]
    if not node.has_input(1) or not node.shape(1):  # parts of one size, but for the last one
        if sizes[0] < 1:
            raise node.malformed(f"parts of {sizes[0]} elements")
        sizes = [min(sizes[0], size - begin) for begin in range(0, size, sizes[0])]
    if sum(sizes) != size or any(part < 0 for part in sizes):
        raise node.malformed(f"parts of {sizes} elements along an axis of {size}")
    if not sizes:
        return TensorSequence()
    if len(set(sizes)) == 1:
        parts = compound.reshape(value, (*shape[:axis], len(sizes), sizes[0], *shape[axis + 1 :]), node.emit)
        order = [axis, *range(axis), *range(axis + 1, len(shape) + 1)]
        tensors = compound.permute(parts, order, node.emit)
        rest = [*shape[:axis], *([sizes[0]] if keep else []), *shape[axis + 1 :]]
        return TensorSequence((Run(compound.reshape(tensors, (len(sizes), *rest), node.emit)),))
    check("unrolled", len(sizes), f"{node.label}: the sequence")
    ends = np.cumsum(sizes)
    slices = [relax.op.strided_slice(value, [axis], [int(e - s)], [int(e)]) for s, e in zip(sizes, ends, strict=True)]
    return TensorSequence(tuple(node.emit(one) for one in slices))


def _identity(node: Node) -> TensorSequence:
    found = node.input(0)
    return found  # type: ignore[return-value]


SEQUENCES: dict[str, Callable[[Node], Any]] = {
    "ConcatFromSequence": _concat,
    "SequenceAt": _at,
    "SequenceConstruct": _construct,
    "SequenceEmpty": _empty,
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    "SplitToSequence": _split,
}


def converter_of(operator: str, inputs: Sequence[Any]) -> Callable[[Node], Any] | None:
    """What converts an operator on sequences; None for one on tensors. Raises UnsupportedOperatorError for sequences
    where a tensor must be."""
    places = [index for index, value in enumerate(inputs) if isinstance(value, TensorSequence)]
    if operator == "Identity" and places:
        return _identity
    takes = operator in SEQUENCES and operator not in ("SequenceConstruct", "SplitToSequence")
    if wrong := [index for index in places if index or not takes]:
        raise UnsupportedOperatorError(f"input {wrong[0]} is a sequence; only a tensor is supported there")
    return SEQUENCES.get(operator)


# ---- as states of loops --------------------------------------------------------------------------------------------


def appended(node: Node, state: object, new: Any) -> list[relax.Expr]:
    """What one round of a loop appends to a sequence: a list of one tensor, in which they are stacked, or of none.

    state: the sequence's; new: what the body returns for it
    """
    if not isinstance(new, TensorSequence) or new.state is not state:
        raise LoopSequenceError("a sequence that a loop replaces")
    return [new.stack(node)] if new.parts else []


def extended(node: Node, initial: TensorSequence, rounds: relax.Expr) -> TensorSequence:
    """A sequence after a loop, from what each round has appended, (rounds, tensors in a round, …)."""
    trips, count, *shape = shape_of(rounds)
    if not trips:
        return initial
    run = Run(compound.reshape(rounds, (trips * count, *shape), node.emit))
    return TensorSequence((*initial.parts, run), initial.state)


def only_tensors(values: Sequence[Any], what: str) -> list[relax.Expr]:
    """The values, none of which may be a sequence. Raises UnsupportedOperatorError."""
    if any(isinstance(value, TensorSequence) for value in values):
        raise UnsupportedOperatorError(f"a sequence as {what} is not supported, only tensors")
    return list(values)
