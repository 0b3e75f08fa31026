"""The traits that passes need from each kind of operator: without one, a pass silently does less, or the wrong thing.

`missing(traits)` names the passes that lack a trait of an operator; tests call it for every operator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..op.traits import Kind, Traits


@dataclass(frozen=True)
class Need:
    """A pass, the operators whose traits it reads, and whether they have the trait it needs.

    of:     whether the pass reads the traits of such an operator at all
    known:  whether the trait is there
    reason: what the pass gets from it, for messages
    """

    needed_by: str
    of: Callable[[Traits], bool]
    known: Callable[[Traits], bool]
    reason: str


def _has_parameters(traits: Traits) -> bool:
    return any(data.scale or data.zero_point for data in traits.data) or traits.output is not None


NEEDS = (
    Need(
        "legalize",
        lambda traits: traits.shift_invariant,
        lambda traits: all(data.zero_point for data in traits.data),
        "the zero point that moves with each operand",
    ),
    Need(
        "legalize, hoist",
        lambda traits: traits.carries and traits.arguments[:1] != ("*arguments",),
        lambda traits: bool(traits.data),
        "the data whose values come out again",
    ),
    Need(
        "legalize, coverage, fold",
        lambda traits: traits.product is not None,
        lambda traits: len(traits.data) == 2 and traits.kind in (Kind.PRODUCT, Kind.ACCUMULATOR),
        "the two operands that are multiplied",
    ),
    Need(
        "layout, sink",
        lambda traits: traits.kind is Kind.POINTWISE,
        lambda traits: bool(traits.data),
        "the operands that broadcast against each other",
    ),
    Need(
        "layout",
        lambda traits: traits.kind in (Kind.SUM, Kind.SELECTION) and not _has_parameters(traits),
        lambda traits: bool(traits.layouts) or traits.reduces,
        "the windows or axes that it works over",
    ),
    Need(
        "qdq_to_integer, realize, equalize",
        lambda traits: (
            (traits.kind in (Kind.MOVE, Kind.SELECTION) or traits.layouts == ("layout", "out_layout"))
            and traits.output is None
        ),
        lambda traits: traits.moved_axis is not None,
        "where its channels are in the result",
    ),
    Need(
        "qdq_to_integer",
        lambda traits: traits.clips is not None,
        lambda traits: traits.kind is Kind.POINTWISE and len(traits.data) == 1,
        "the tensor that it limits",
    ),
    Need(
        "fuse, lower",
        lambda traits: traits.kind is Kind.ACCUMULATOR,
        lambda traits: len(traits.data) == 2,
        "the operands of the kernel",
    ),
    Need(
        "fuse",
        lambda traits: traits.kind is Kind.SIDE_TERM,
        lambda traits: len(traits.data) == 1,
        "the tensor of the product that it sums over",
    ),
)


def missing(traits: Traits) -> list[str]:
    """The passes that would find an operator without a trait they need, and what they need it for."""
    return [f"{need.needed_by}: {need.reason}" for need in NEEDS if need.of(traits) and not need.known(traits)]
