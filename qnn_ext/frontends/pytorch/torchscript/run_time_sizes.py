"""Sizes known only at run time: how many elements nonzero finds or a mask selects. The example has one such size, which
must not enter the module: scripts get a `Count` in its place.

Operators that read a tensor with such a size are all converted as torch.export's are (`remaining.py`), for any size.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...sizes import Size, Sizes
from ..common import import_torch
from .plumbing import QUESTIONS
from .values import Traced, flattened, traced_in

NO_NUMBER = object()
_SELECTING = ("aten::nonzero", "aten::nonzero_numpy", "aten::argwhere", "aten::masked_select", "torchvision::nms")


@dataclass(eq=False)
class Count(Traced):
    """A number that follows from a size known only at run time.

    example: the number for the example inputs
    expr:    None
    tensor:  what has the size
    compute: its number, from a torch tensor like it
    """

    tensor: Any = None
    compute: Callable[[Any], Any] = lambda tensor: None


def is_sized(sizes: Sizes, operands: Sequence[Any]) -> bool:
    """Whether an operator reads such a size or a tensor with one."""
    return any(isinstance(value, Count) or sizes.of(value.expr) for value in traced_in(list(operands)))


def makes_sizes(kind: str, operands: Sequence[Any]) -> bool:
    """Whether an operator's result has such a size, because its values say which elements there are."""
    torch = import_torch()
    if kind == "aten::index":
        examples = [one.example for one in traced_in(operands[1])]
        return any(one.dtype in (torch.bool, torch.uint8) for one in examples)
    return kind in _SELECTING or (kind == "aten::where" and len(operands) == 1)


# ---- numbers -----------------------------------------------------------------------------------------------------

_UNCHANGED = (
    "prim::NumToTensor", "aten::Int", "aten::IntImplicit", "aten::ScalarImplicit", "aten::item", "aten::detach",
)  # fmt: skip
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "aten::add": operator.add,
    "aten::sub": operator.sub,
    "aten::mul": operator.mul,
    "aten::floordiv": operator.floordiv,
    "aten::floor_divide": operator.floordiv,
    "prim::min": lambda one, two: import_torch().sym_min(one, two),
    "prim::max": lambda one, two: import_torch().sym_max(one, two),
}


def number(sizes: Sizes, kind: str, operands: Sequence[Any], example: Callable[[], Any]) -> Any:
    """What an operator that `is_sized` says of a tensor, or computes from Counts; NO_NUMBER for all other operators.

    example: its result for the example inputs
    """
    first = operands[0]
    if not isinstance(first, Count) and isinstance(first, Traced):
        return _of_tensor(sizes, kind, first, operands[1:], example)
    if kind in _UNCHANGED and isinstance(first, Count):
        return Count(example(), None, tensor=first.tensor, compute=first.compute)
    pair, options = list(operands[:2]), list(operands[2:])
    sources = {value.tensor for value in pair if isinstance(value, Count)}
    plain = all(isinstance(value, (int, Count)) for value in pair)
    if kind not in _ARITHMETIC or len(sources) != 1 or not plain or options not in ([], [1]):
        return NO_NUMBER
    one, two = (value.compute if isinstance(value, Count) else _constant(value) for value in pair)
    function = _ARITHMETIC[kind]
    return Count(example(), None, tensor=sources.pop(), compute=lambda tensor: function(one(tensor), two(tensor)))


def _of_tensor(sizes: Sizes, kind: str, tensor: Traced, options: Sequence[Any], example: Callable[[], Any]) -> Any:
    if kind not in QUESTIONS:
        return NO_NUMBER
    if kind == "aten::stride":
        sizes.refuse([tensor.expr], kind)
    if kind == "aten::numel":
        return Count(example(), None, tensor=tensor, compute=lambda found: found.numel())
    if kind not in ("aten::size", "aten::len", "prim::shape"):
        return example()
    dims = [
        Count(size, None, tensor=tensor, compute=_size_of(axis)) if axis in sizes.of(tensor.expr) else size
        for axis, size in enumerate(tensor.example.shape)
    ]
    if kind == "aten::len":
        return dims[0]
    return dims[options[0]] if options else dims


def _size_of(axis: int) -> Callable[[Any], Any]:
    return lambda tensor: tensor.shape[axis]


def _constant(value: int) -> Callable[[Any], int]:
    return lambda tensor: value


def sources(values: Sequence[Any]) -> list[Traced]:
    """The tensors whose sizes the Counts among some values are."""
    return [value.tensor for value in flattened(values) if isinstance(value, Count)]


# ---- tensors -----------------------------------------------------------------------------------------------------

_COUNTS = (3, 5, 7, 11, 13, 17, 19, 23)  # sizes that an operator is traced with, different for independent ones


class Examples:
    """Tensors to trace an operator with: like those of the example inputs, but with other sizes where these are known
    only at run time."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._counts: dict[Any, int] = {}

    def of(self, value: Any, tensor: Any) -> tuple[Any, set[int]]:
        """A tensor for an operand and the axes of any size; tensor: the operand's own example."""
        axes = self._sizes.of(value.expr) if isinstance(value, Traced) else {}
        if not axes:
            return tensor, set()
        shape = [self._count(axes[axis]) if axis in axes else size for axis, size in enumerate(tensor.shape)]
        return tensor.new_zeros(shape), set(axes)

    def _count(self, size: Size) -> int:
        index = self._counts.setdefault(size.base, len(self._counts))
        return size.factor * _COUNTS[index % len(_COUNTS)]
