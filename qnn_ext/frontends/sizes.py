"""Sizes known only at run time: which axes of which values have one.

Such a tensor is computed at the largest size it can have, and its actual size is an int64 scalar of the module; what is
beyond the size may be anything. `Sizes` sees every call that an importer emits. Operators that treat the positions
along such an axis alike pass its size on, those that work across it get it filled up with values that do not count, and
all others are refused (`size_rules`). `data_dependent.py` has what frontends build.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from tvm import relax

from ..errors import UnsupportedOperatorError
from ..op.base import constant, constant_value, shape_of
from ..passes.rewrite import op_name


@dataclass(frozen=True, eq=False)
class Size:
    """A size between 0 and `most`.

    value:  int64 scalar
    origin: the operator that it comes from, for messages
    base, factor: value = factor · base
    rest: (n, size) where the value is n − size, as that of padding up to n
    """

    value: relax.Expr
    most: int
    origin: str
    base: relax.Expr
    factor: int = 1
    rest: tuple[int, Size] | None = None

    def same(self, other: Size) -> bool:
        """Whether both are known to be equal."""
        return self.base.same_as(other.base) and self.factor == other.factor


Axes: TypeAlias = dict[int, Size]
"""The axes of a tensor whose sizes are known only at run time."""


class Sizes:
    """The values of one import whose sizes are known only at run time."""

    def __init__(self, builder: Any, rule: Callable[[Sizes, relax.Call], tuple[relax.Expr, Axes]]) -> None:
        """builder: emits calls, whose sizes `rule` finds; a `building.Builder`"""
        self.builder = builder
        self._rule = rule
        self._axes: dict[Any, Axes] = {}
        self._elements: dict[Any, np.ndarray] = {}
        self._memo: dict[Any, Any] = {}

    # ---- what is known -------------------------------------------------------------------------------------------

    @property
    def none(self) -> bool:
        """Whether no value has such a size."""
        return not self._axes and not self._elements

    def of(self, value: Any) -> Axes:
        """The axes of a tensor, or of all fields of a tuple, with such sizes."""
        return self._axes.get(value, {}) if self._axes and isinstance(value, relax.Var) else {}

    def set(self, value: relax.Expr, axes: Mapping[int, Size]) -> relax.Expr:
        """Say which axes of a variable that nothing has read yet have such sizes; returns the variable."""
        for axis, size in axes.items():
            if isinstance(value.ty, relax.TensorType) and shape_of(value)[axis] != size.most:
                raise refusal(size, f"a tensor with it that has {shape_of(value)[axis]} elements there")
        if axes:
            self._axes[value] = dict(axes)
        else:
            self._axes.pop(value, None)
        return value

    def elements(self, value: Any) -> np.ndarray | None:
        """The elements of an integer or bool tensor as an array of them and sizes; None if they are not all known to
        be."""
        known = constant_value(value)
        if known is not None:
            return known.astype(object) if known.dtype.kind in "iub" else None
        return self._elements.get(value) if isinstance(value, relax.Var) else None

    def tensor(self, elements: np.ndarray, dtype: str = "int64") -> relax.Expr:
        """A tensor of integers and sizes."""
        flat = elements.reshape(-1).tolist()
        if not any(isinstance(element, Size) for element in flat):
            return constant(elements.astype(dtype))
        parts = [
            self.emit(relax.op.reshape(one.value, (1,))) if isinstance(one, Size) else constant(np.array([one]))
            for one in flat
        ]
        result = self.emit(relax.op.concat(parts, 0))
        result = self.emit(relax.op.astype(result, dtype)) if dtype != "int64" else result
        result = self.emit(relax.op.reshape(result, elements.shape))
        self._elements[result] = elements
        return result

    def declare(self, value: relax.Expr, most: int, origin: str) -> None:
        """Say that a tensor of one integer, which is from 0 to `most`, is a size."""
        scalar = self.emit(relax.op.reshape(value, ())) if shape_of(value) else value
        wide = scalar if str(value.ty.dtype) == "int64" else self.emit(relax.op.astype(scalar, "int64"))
        element = np.empty(shape_of(value), object)
        element[...] = self.size(wide, most, origin)
        self._elements[value] = element

    def any_in(self, expr: Any) -> bool:
        """Whether an expression reads a value with such a size."""
        return bool(self._axes) and any(self.of(leaf) for leaf in leaves(expr))

    def refuse(self, values: Sequence[Any], what: str) -> None:
        """Raises UnsupportedOperatorError if one of these values has such a size."""
        for value in values:
            for size in self.of(value).values():
                raise refusal(size, what)

    @contextmanager
    def block(self) -> Iterator[None]:
        """A context for what is emitted into a function of its own, which what follows cannot use."""
        memo = self._memo
        self._memo = dict(memo)
        try:
            yield
        finally:
            self._memo = memo

    # ---- building ------------------------------------------------------------------------------------------------

    def emit(self, expr: relax.Expr, axes: Mapping[int, Size] | None = None) -> relax.Expr:
        """Bind an expression as it is; its result has these sizes."""
        return self.set(self.builder.emit_plain(expr), axes or {})

    def once(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """What `make` returned for this key, of expressions and numbers, before."""
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    def size(self, value: relax.Expr, most: int, origin: str) -> Size:
        """A size by its value, an int64 scalar."""
        return Size(value, most, origin, value)

    # ---- arithmetic: of sizes and integers ------------------------------------------------------------------------

    def _derived(self, key: tuple[Any, ...], expr: Callable[[], relax.Expr], most: int, origin: str) -> Size:
        return self.once(key, lambda: self.size(self.emit(expr()), most, origin))

    def plus(self, one: Any, two: Any) -> Any:
        """one + two."""
        if isinstance(one, int):
            one, two = two, one
        if isinstance(one, int) or two == 0:
            return one + two if isinstance(one, int) else one
        most = one.most + getattr(two, "most", two)
        if most < 0:
            raise refusal(one, "a size below 0")
        return self._derived(
            ("plus", one.value, _key(two)), lambda: relax.op.add(one.value, _value(two)), most, one.origin
        )

    def minus(self, one: Any, two: Any) -> Any:
        """one − two, for one or both integers."""
        if isinstance(two, int):
            return self.plus(one, -two)
        if isinstance(one, Size):
            raise TypeError("the difference of two sizes")

        def make() -> Size:
            value = self.emit(relax.op.subtract(constant(np.int64(one)), two.value))
            return Size(value, one, two.origin, value, rest=(one, two))

        return self.once(("minus", one, two.value), make)

    def times(self, one: Any, two: Any) -> Any:
        """one · two."""
        if isinstance(one, int):
            one, two = two, one
        if isinstance(one, int) or two == 0:
            return one * two if isinstance(one, int) else 0
        if isinstance(two, Size):
            most = one.most * two.most
            return self._derived(
                ("times", one.value, two.value), lambda: relax.op.multiply(one.value, two.value), most, one.origin
            )
        return self._multiple(one, one.factor * two, one.most * two)

    def divided(self, size: Size, divisor: int, what: str) -> Size:
        """size / divisor, for a size that is known to be a multiple."""
        if size.factor % divisor:
            raise refusal(size, what)
        return self._multiple(size, size.factor // divisor, size.most // divisor)

    def quotient(self, size: Size, divisor: int) -> Size:
        """size / divisor, rounded down."""
        return self._derived(
            ("quotient", size.value, divisor),
            lambda: relax.op.floor_divide(size.value, constant(np.int64(divisor))),
            size.most // divisor,
            size.origin,
        )

    def _multiple(self, size: Size, factor: int, most: int) -> Size:
        def make() -> Size:
            value = size.base
            if factor != 1:
                value = self.emit(relax.op.multiply(size.base, constant(np.int64(factor))))
            return Size(value, most, size.origin, size.base, factor)

        return self.once(("multiple", size.base, factor), make)

    def least(self, one: Any, two: Any) -> Any:
        """min(one, two)."""
        if isinstance(one, int):
            one, two = two, one
        if isinstance(one, int):
            return min(one, two)
        if (isinstance(two, int) and two >= one.most) or (isinstance(two, Size) and two.same(one)):
            return one
        most = min(one.most, getattr(two, "most", two))
        return self._derived(
            ("least", one.value, _key(two)), lambda: relax.op.minimum(one.value, _value(two)), most, one.origin
        )

    def greatest(self, one: Any, two: Any) -> Any:
        """max(one, two)."""
        if isinstance(one, int):
            one, two = two, one
        if isinstance(one, int):
            return max(one, two)
        most = max(one.most, getattr(two, "most", two))
        return self._derived(
            ("greatest", one.value, _key(two)), lambda: relax.op.maximum(one.value, _value(two)), most, one.origin
        )

    def valid(self, size: Size, length: int) -> relax.Expr:
        """Which of `length` positions are below the size, bool (length,)."""
        positions = constant(np.arange(length, dtype=np.int64))
        return self.once(("valid", size.value, length), lambda: self.emit(relax.op.less(positions, size.value)))

    def filled(self, data: relax.Expr, value: Any, axes: Axes | None = None) -> relax.Expr:
        """`data` with a number, or a scalar of its dtype, in place of what is beyond sizes, its own unless given."""
        own, shape = self.of(data), shape_of(data)
        for axis, size in (own if axes is None else axes).items():
            wide = tuple(shape[axis] if index == axis else 1 for index in range(len(shape)))
            mask = self.emit(relax.op.reshape(self.valid(size, shape[axis]), wide))
            fill = value if isinstance(value, relax.Expr) else constant(np.asarray(value, str(data.ty.dtype)))
            data = self.emit(relax.op.where(mask, data, fill), own)
        return data

    # ---- calls ---------------------------------------------------------------------------------------------------

    def carried(self, call: relax.Call) -> tuple[relax.Expr, Axes]:
        """What to emit for a call that reads such values, and the sizes of its result (of all fields of a tuple).

        Raises UnsupportedOperatorError if the call cannot be computed.
        """
        return self._rule(self, call)

    def refused(self, call: relax.Call, reason: str = "") -> UnsupportedOperatorError:
        """The error for a call that cannot be computed."""
        size = next(size for leaf in leaves(call) for size in self.of(leaf).values())
        return refusal(size, reason or f"{op_name(call)} along such a dimension")

    def result_shape(self, call: relax.Call) -> tuple[int, ...]:
        """The shape of a call's result, of the largest size."""
        return shape_of(self.builder.normalize_plain(call))


def refusal(size: Size, what: str) -> UnsupportedOperatorError:
    """The error for what is not supported where a size is known only at run time."""
    return UnsupportedOperatorError(
        f"a dimension has a size known only at run time, at most {size.most}, which comes from {size.origin}; {what} "
        "is not supported: end the model before this operator and compute the rest outside"
    )


def _key(value: Any) -> Any:
    return value.value if isinstance(value, Size) else value


def _value(value: Any) -> relax.Expr:
    return value.value if isinstance(value, Size) else constant(np.int64(value))


def leaves(expr: Any) -> Iterator[Any]:
    """What an expression reads, through calls and tuples within it."""
    if isinstance(expr, relax.Call):
        for arg in expr.args:
            yield from leaves(arg)
    elif isinstance(expr, relax.Tuple):
        for field in expr.fields:
            yield from leaves(field)
    elif isinstance(expr, relax.TupleGetItem):
        yield from leaves(expr.tuple_value)
    else:
        yield expr
