"""Conditions that a script computes from the values of tensors, and the results of the branches that they choose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ....errors import UnsupportedOperatorError
from ....op.base import constant
from ...assembly import Assembly
from ..common import import_torch
from .evaluate import evaluate, where
from .run_time_sizes import Count
from .values import BatchSizes, Traced, constant_of, plain, qparams_of, traced_in

_OF_ELEMENTS = ("aten::Bool", "aten::Float", "aten::Int", "aten::ScalarImplicit", "aten::FloatImplicit", "aten::item")
_OF_DECISIONS: dict[str, Callable[..., relax.Expr]] = {
    "aten::__not__": relax.op.logical_not,
    "aten::__and__": relax.op.logical_and,
    "aten::__or__": relax.op.logical_or,
}
_DECIDES = {"aten::__and__": False, "aten::__or__": True}
"""The operand that alone decides the result."""


_NUMBERS = ("aten::Float", "aten::FloatImplicit", "aten::ScalarImplicit", "aten::item")
_WITH_TENSORS = frozenset((
    "aten::add", "aten::add_", "aten::sub", "aten::sub_", "aten::mul", "aten::mul_", "aten::div", "aten::div_",
    "aten::rsub", "aten::gt", "aten::ge", "aten::lt", "aten::le", "aten::eq", "aten::ne",
))  # fmt: skip
"""Operators that round a number, which is a double, to the dtype of their result: one that was a float32 stays."""


@dataclass(eq=False)
class Decision(Traced):
    """Whether a condition holds: `example` is a bool, `expr` a bool scalar."""


@dataclass(eq=False)
class Number(Traced):
    """A number that tensors are computed with: `example` is a float, `expr` a float32 scalar."""


def decision(assembly: Assembly, node: Any, kind: str, operands: Sequence[Any]) -> Decision | bool | None:
    """The truth of a tensor's only element, or what follows from such. None for all other operators."""
    if not any(isinstance(value, Decision) for value in operands):
        value = operands[0] if operands else None
        if kind not in _OF_ELEMENTS or not isinstance(value, Traced) or isinstance(value, (Count, BatchSizes)):
            return None
        if kind == "aten::Bool" and value.example.numel() == 1 and value.example.dtype == import_torch().bool:
            return Decision(bool(value.example), assembly.emit(relax.op.reshape(value.expr, [])))
        if kind == "aten::item" or assembly.builder.sizes.of(value.expr):
            return None
    if _DECIDES.get(kind) in operands:
        return _DECIDES[kind]
    if kind in _OF_DECISIONS:
        truths = [one.expr if isinstance(one, Decision) else constant(np.bool_(one)) for one in operands]
        example = evaluate(node, [plain(one) for one in operands], is_constant=False)
        return Decision(bool(example), assembly.emit(_OF_DECISIONS[kind](*truths)))
    raise UnsupportedOperatorError(
        f"{where(node)}: makes a number of a tensor's values, or decides by them, which are not known at "
        "import; trace the model with torch.jit.trace, which keeps the example's, or leave this part out of it"
    )


def number_beside_tensors(assembly: Assembly, node: Any, kind: str, operands: Sequence[Any]) -> Number | None:
    """A float32 tensor's only element as a number that is computed with tensors alone; None for all else, as between
    two numbers PyTorch computes in double."""
    value = operands[0] if operands else None
    if kind not in _NUMBERS or not isinstance(value, Traced) or isinstance(value, (Count, BatchSizes, Decision)):
        return None
    if isinstance(value, Number):
        return value
    if value.example.dtype != import_torch().float32 or value.example.numel() != 1:
        return None
    if assembly.builder.sizes.of(value.expr) or not _is_beside_tensors(node.output()):
        return None
    return Number(value.example.item(), assembly.emit(relax.op.reshape(value.expr, [])))


def _is_beside_tensors(number: Any) -> bool:
    for use in number.uses():
        user = use.user
        if user.kind() in _NUMBERS:
            if not _is_beside_tensors(user.output()):
                return False
        elif user.kind() not in _WITH_TENSORS or use.offset != 1 or user.inputsAt(0).type().kind() != "TensorType":
            return False
    return True


def chosen_values(results: Sequence[Any]) -> list[relax.Expr]:
    """Those results of a branch that may differ from the other one's, as expressions: tensors and truths."""
    return [_as_expr(value) for value in results if is_chosen(value)]


def is_chosen(value: Any) -> bool:
    """Whether a value may be one or another at run time: a tensor or a truth."""
    return isinstance(value, (Traced, import_torch().Tensor, bool))


def _as_expr(value: Any) -> relax.Expr:
    if isinstance(value, Traced):
        return value.expr
    return constant(np.bool_(value)) if isinstance(value, bool) else constant_of(value)


def either(
    one: Any, other: Any, first: bool, found: Iterator[relax.Expr], traced: Callable[[Any, relax.Expr], Traced]
) -> Any:
    """A result of two branches of which the example takes the first or the second.

    found:  what is chosen at run time, of all `chosen_values`
    traced: makes a value of an example and its expression
    """
    truths, tensors = (Decision, bool), (Traced, import_torch().Tensor)
    if isinstance(one, truths) and isinstance(other, truths):
        truth = next(found)
        known = isinstance(one, bool) and one is other
        return one if known else Decision(bool(plain(one if first else other)), truth)
    if isinstance(one, tensors):
        examples = [plain(one), plain(other)]
        if isinstance(one, Count) or not isinstance(other, tensors) or isinstance(other, truths):
            raise UnsupportedOperatorError("a branch chosen at run time returns a number, the other one a tensor")
        if qparams_of(examples[0]) != qparams_of(examples[1]):
            raise UnsupportedOperatorError("the branches of a condition return tensors of different QParams")
        return traced(examples[0 if first else 1], next(found))
    if type(one) is not type(other) or one != other or any(traced_in(one)):
        raise UnsupportedOperatorError(
            "the branches of a condition computed at run time return different numbers, or lists of tensors; "
            "only tensors may differ"
        )
    return one
