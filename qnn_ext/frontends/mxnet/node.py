"""Node: what a converter sees of one operator: inputs as Relax expressions, attributes as Python values, ranges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from tvm import relax

from ...errors import ModelFormatError
from ...op.base import constant, constant_value, shape_of
from ..assembly import Conversion
from . import attributes
from .assembly import MxnetAssembly
from .scales import Range
from .symbol import Graph, Operator

T = TypeVar("T")
_REQUIRED: Any = object()


class Node(Conversion):
    """One operator under conversion."""

    assembly: MxnetAssembly

    def __init__(self, assembly: MxnetAssembly, operator: Operator, inputs: list[relax.Expr]) -> None:
        super().__init__(assembly, operator.label)
        self.operator = operator
        self.inputs = inputs
        self.name = operator.name

    # ---- inputs ----------------------------------------------------------------------------------------------------

    def input(self, index: int) -> relax.Expr:
        """The input's value. Raises ModelFormatError when it is absent."""
        if not 0 <= index < len(self.inputs):
            raise self.malformed(f"input {index} is missing")
        return self.inputs[index]

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """The input's shape."""
        return shape_of(self.input(index))

    def dtype(self, index: int = 0) -> str:
        """The input's dtype."""
        return str(self.input(index).ty.dtype)

    def constant(self, index: int) -> np.ndarray:
        """The input's value, which must be known at import. Raises UnsupportedOperatorError otherwise."""
        value = constant_value(self.input(index))
        if value is None:
            raise self.unsupported(f"input {index} computed at run time; it must be a parameter")
        return value

    def vector(self, index: int, length: int) -> np.ndarray:
        """A parameter with one float per channel. Raises ModelFormatError when it is anything else."""
        value = self.constant(index)
        if value.shape != (length,) or value.dtype != np.float32:
            raise self.malformed(
                f"input {index} must be float32 of shape ({length},), found {value.dtype} {value.shape}"
            )
        if not np.isfinite(value).all():
            raise self.malformed(f"input {index} has values that are not finite")
        return value

    def check_rank(self, *ranks: int) -> None:
        """Raise ModelFormatError unless input 0 has one of these numbers of dimensions, none of them 0."""
        shape = self.shape(0)
        if len(shape) not in ranks or 0 in shape:
            raise self.malformed(f"the input must have {' or '.join(map(str, ranks))} dimensions, found shape {shape}")

    # ---- ranges of quantized tensors -------------------------------------------------------------------------------

    def range(self, index: int) -> Range:
        """The real range given by inputs `index` (min) and `index` + 1 (max). Raises UnsupportedOperatorError when it
        is only known at run time."""
        low, high = (constant_value(self.input(i)) for i in (index, index + 1))
        if low is None or high is None:
            raise self.unsupported(
                "an input range computed at run time (calib_mode='none'); quantize the model again "
                "with calib_mode='naive' or 'entropy'"
            )
        if low.size != 1 or high.size != 1 or not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise self.malformed(f"inputs {index} and {index + 1} must be one finite number each")
        return Range(np.float32(low.item()), np.float32(high.item()))

    def range_is_known(self, index: int) -> bool:
        """Whether the range at inputs `index` and `index` + 1 is known at import."""
        return all(constant_value(self.input(i)) is not None for i in (index, index + 1))

    def calibrated(self) -> Range | None:
        """The attributes min_calib_range and max_calib_range."""
        if not (self.has("min_calib_range") and self.has("max_calib_range")):
            return None
        return Range(np.float32(self.real("min_calib_range")), np.float32(self.real("max_calib_range")))

    def with_range(self, value: relax.Expr, span: Range) -> list[relax.Expr]:
        """The three outputs of a quantized operator: integers, min, max."""
        return [value, constant(span.low.reshape(1)), constant(span.high.reshape(1))]

    # ---- attributes ------------------------------------------------------------------------------------------------

    def has(self, key: str) -> bool:
        """Whether the attribute is given and is not None."""
        return self.operator.attrs.get(key, "None") != "None"

    def text(self, key: str, default: str = _REQUIRED) -> str:
        """An attribute as text."""
        return self._attribute(key, default, lambda text: text.strip('"'))

    def flag(self, key: str, default: bool = False) -> bool:
        """A boolean."""
        return self._attribute(key, default, attributes.flag)

    def integer(self, key: str, default: int = _REQUIRED) -> int:
        """A whole number."""
        return self._attribute(key, default, attributes.integer)

    def real(self, key: str, default: float = _REQUIRED) -> float:
        """A finite number."""
        return self._attribute(key, default, attributes.real)

    def integers(self, key: str, default: tuple[int, ...] = _REQUIRED) -> tuple[int, ...]:
        """A tuple of whole numbers."""
        return self._attribute(key, default, attributes.integers)

    def optional_integers(self, key: str) -> tuple[int | None, ...]:
        """A tuple of whole numbers or None."""
        return self._attribute(key, _REQUIRED, attributes.optional_integers)

    def window(self, key: str, rank: int, default: int, least: int) -> tuple[int, ...]:
        """`rank` numbers, each at least `least`; an empty tuple means the default everywhere."""
        values = self.integers(key, ()) or (default,) * rank
        if len(values) != rank or min(values) < least:
            raise self.malformed(f"attribute {key} must be {rank} integers of at least {least}, found {values}")
        return values

    def choice(self, key: str, default: str, *supported: str) -> str:
        """One of the supported strings. Raises UnsupportedOperatorError for any other."""
        value = self.text(key, default)
        if value not in supported:
            raise self.unsupported(f"{key}={value}; supported: {', '.join(supported)}")
        return value

    def axis(self, key: str, default: int, rank: int) -> int:
        """An axis in 0 … rank − 1."""
        value = self.integer(key, default)
        if not -rank <= value < rank:
            raise self.malformed(f"{key}={value} is out of range for {rank} dimensions")
        return value % rank

    def _attribute(self, key: str, default: Any, parse: Callable[[str], T]) -> T:
        if not self.has(key):
            if default is _REQUIRED:
                raise self.malformed(f"attribute {key} is missing")
            return default
        try:
            return parse(self.operator.attrs[key])
        except ModelFormatError as error:
            raise self.malformed(f"attribute {key} {error}") from None

    # ---- fused operators -------------------------------------------------------------------------------------------

    @property
    def subgraph(self) -> Graph:
        """The operators fused into this one. Raises ModelFormatError when there is no subgraph."""
        if len(self.operator.subgraphs) != 1:
            raise self.malformed(f"it must have one subgraph, found {len(self.operator.subgraphs)}")
        return self.operator.subgraphs[0]

    def fused(self, *names: str) -> Node | None:
        """An operator of the subgraph, for its attributes."""
        operator = self.subgraph.operator(*names)
        return None if operator is None else Node(self.assembly, operator, [])
