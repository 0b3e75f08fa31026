"""What recurrent operators over whole sequences share: their axes, and the two directions. It converts no operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import relax

from ..node import Node, shape_of
from .lstm_float import Matrix
from .shape import reshape


def is_time_major(node: Node) -> bool:
    """Whether tensors are (time, batch, …) and not (batch, time, …). Raises ModelFormatError for any other rank of the
    node's first input."""
    shape = node.shape(0)
    if len(shape) != 3 or 0 in shape:
        raise node.malformed(f"the input must have 3 dimensions, found shape {shape}")
    return bool(node.options["time_major"])


def steps_first(node: Node, index: int, time_major: bool) -> relax.Expr:
    """An input as (time, batch, depth)."""
    return exchanged(node, node.input(index), time_major)


def exchanged(node: Node, data: relax.Expr, time_major: bool) -> relax.Expr:
    """From the operator's order to (time, batch, …), and back."""
    first, second, depth = shape_of(data)
    if time_major:
        return data
    if 1 in (first, second):
        return reshape(node, data, [second, first, depth])
    return node.emit(relax.op.permute_dims(data, [1, 0, 2]))


def products(product: Callable[[relax.Expr], relax.Expr], node: Node, sequence: relax.Expr) -> relax.Expr:
    """A function of rows, computed for all steps at once: (time, batch, depth) -> (time, batch, gates · units)."""
    time, batch, depth = shape_of(sequence)
    result = node.emit(product(reshape(node, sequence, [time * batch, depth])))
    return reshape(node, result, [time, batch, shape_of(result)[1]])


# ---- two directions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sources:
    """What each direction reads.

    own:     the number of its input
    crossed: what both read besides, through weights of their own, (time, batch, depth)
    """

    own: tuple[int, int]
    crossed: relax.Expr | None


def sources(node: Node, auxiliary: int, weights: int, time_major: bool) -> Sources:
    """The auxiliary input, without weights, is what the second direction reads in place of the first input, as stacked
    layers do whose directions are not joined between them; with weights, both directions read it, too."""
    if not node.has_input(auxiliary):
        return Sources((0, 0), None)
    if node.shape(auxiliary)[:2] != node.shape(0)[:2] or len(node.shape(auxiliary)) != 3:
        raise node.malformed(f"the auxiliary input {node.shape(auxiliary)} does not match the input {node.shape(0)}")
    if any(node.has_input(index) for index in range(weights, node.input_count)):
        return Sources((0, 0), steps_first(node, auxiliary, time_major))
    return Sources((0, auxiliary), None)


def plus_crossed(node: Node, own: relax.Expr, matrix: Matrix, crossed: relax.Expr) -> relax.Expr:
    """The gates' part that depends on the inputs alone, with that of the auxiliary input added."""
    expected = shape_of(own)[2], shape_of(crossed)[2]
    if matrix.values.shape != expected:
        raise node.malformed(f"the weights of the auxiliary input must be {expected}, found {matrix.values.shape}")
    return node.emit(relax.op.add(own, products(matrix.product, node, crossed)))


def renumbered(node: Node, inputs: Sequence[int]) -> Node:
    """The node as if its inputs were only these, in this order: one direction as an operator of its own."""
    return Node(node.assembly, replace(node.operator, inputs=tuple(node.operator.inputs[index] for index in inputs)))


def merged(node: Node, outputs: list[relax.Expr]) -> list[relax.Expr]:
    """The outputs of both directions, or one of them joined."""
    return [node.emit(relax.op.concat(outputs, 2))] if node.options["merge_outputs"] else outputs
