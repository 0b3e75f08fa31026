"""A graph under construction, in any format: operators take existing tensors or new inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from .recipe import Case, Recipe
from .rules import HOSTILE, NARROWED, Rule, inherited
from .values import Draw

TRIALS = 3


@dataclass(frozen=True)
class Value:
    """A tensor. `scale` is None if it is not quantized; `accident` and `steady` as in `Case`."""

    key: Any
    shape: tuple[int, ...]
    dtype: str
    scale: float | None = None
    zero: int = 0
    accident: Rule | None = None
    steady: bool = True

    @property
    def quantized(self) -> bool:
        return self.scale is not None


class Builder:
    """The tensors and operator counts of one graph. A format adds how inputs and operators are written."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.draw = recipe, Draw(recipe)
        self.values: list[Value] = []
        self.inputs: list[Value] = []
        self.used: set[Any] = set()
        self.limits: dict[Any, tuple[int | None, int | None]] = {}
        self.operators: Counter[str] = Counter()
        self.finished: list[Value] = []
        self.cuts = cuts(recipe)

    @property
    def exact(self) -> bool:
        """Whether float sums of products are exact in this graph, in every order."""
        return self.recipe.scales == "power_of_two"

    def declare(self, shape: tuple[int, ...], dtype: str, scale: float | None, zero: int) -> Any:
        """Write a new input; returns its key."""
        raise NotImplementedError

    @property
    def undefined(self) -> Rule | None:
        """`HOSTILE` where floats may be NaN or infinite, which integers cannot be."""
        return HOSTILE if self.recipe.hostile else None

    def dtype(self, options: Sequence[str]) -> str:
        """The graph's dtype where the operator supports it, else one that it supports."""
        return self.recipe.dtype if self.recipe.dtype in options and self.draw.chance(0.8) else self.draw.pick(options)

    def scale(self, about: float = 0.05) -> float:
        """A scale of the graph."""
        return float(np.float32(np.clip(self.draw.scale(about) * self.draw.unit, 1e-37, 1e37)))

    def fresh(
        self, dtype: str, shape: Sequence[int], quantized: bool = False, low: int | None = None, high: int | None = None
    ) -> Value:
        """A new input of the model; its values lie within low … high."""
        scale, zero = (self.scale(), self.draw.zero_point(dtype)) if quantized else (None, 0)
        value = Value(self.declare(tuple(shape), dtype, scale, zero), tuple(shape), dtype, scale, zero)
        self.limits[value.key] = (low, high)
        self.inputs.append(value)
        self.values.append(value)
        return value

    def take(
        self,
        dtypes: Sequence[str],
        rank: int | Sequence[int] = (1, 2, 3, 4),
        quantized: bool = False,
        shape: Sequence[int] | None = None,
        where: Callable[[Value], bool] = lambda value: True,
    ) -> Value:
        """A tensor of one of these dtypes and ranks, most often the newest, or a new input of that shape."""
        ranks = [rank] if isinstance(rank, int) else list(rank)
        fits = [v for v in self.values if v.dtype in dtypes and len(v.shape) in ranks and v.quantized == quantized]
        found = [v for v in fits if (shape is None or v.shape == tuple(shape)) and where(v)]
        if found and self.draw.chance(0.85):
            return found[-1] if self.draw.chance(0.6) else self.draw.pick(found)
        wanted = self.draw.shape(self.draw.pick(ranks)) if shape is None else shape
        return self.fresh(self.dtype(dtypes), wanted, quantized)

    def keep(
        self,
        operator: str,
        key: Any,
        shape: Sequence[int],
        dtype: str,
        sources: Sequence[Value],
        scale: float | None = None,
        zero: int = 0,
        accident: Rule | None = None,
        steady: bool = True,
        island: bool = False,
        keeps: bool = False,
    ) -> Value:
        """An operator's result, which inherits the rules of its sources.

        island: whether it is a step within a group of operators, so that the graph must continue with it
        keeps:  whether it only holds values of its first source, so that the same bounds apply
        """
        rules = [value.accident for value in sources]
        accident = rules[0] if keeps else inherited(rules, accident)
        steady = steady and all(value.steady for value in sources)
        self.used.update(value.key for value in sources)
        self.operators[operator] += 1
        shape = tuple(int(extent) for extent in shape)
        value = Value(key, shape, dtype, scale, zero, accident, steady)
        self.place([value], None if island else accident)
        return value

    def place(self, values: Sequence[Any], accident: Rule | None) -> None:
        """Offer values to later operators, unless a rule applies to them and the graph is cut there."""
        (self.finished if self.cuts and accident is not None else self.values).extend(values)

    def results(self) -> list[Value]:
        """The values that no operator reads."""
        made = [value for value in self.values if value not in self.inputs]
        return [value for value in (*made, *self.finished) if value.key not in self.used]

    def case(self, content: Any, **facts: Any) -> Case:
        """The finished case for `content`, which the frontend imports."""
        self.draw.begin(self.recipe.seed)
        arrays = [[self.draw.array(v.dtype, v.shape, *self.limits[v.key]) for v in self.inputs] for _ in range(TRIALS)]
        results = self.results()
        accidents, steady = [value.accident for value in results], [value.steady for value in results]
        return Case(content, arrays, self.operators, accidents, steady, facts=facts)


def cuts(recipe: Recipe) -> bool:
    """Whether operators of this graph never take results that a rule applies to, so that nothing is exempt because of
    earlier operators: true in three of four graphs."""
    return crc32(f"cut of {recipe.seed}".encode()) % 4 > 0


def beyond_int32(largest: float, scale: float) -> Rule | None:
    """`NARROWED` where results of up to `largest` in size, before they are clipped, may not fit into int32."""
    return NARROWED if largest / scale >= 2.0**28 else None


class Registry(dict[str, Callable[[Any], Any]]):
    """Generators by operator; a function registered for several names is also passed the name."""

    def generates(self, *names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            for name in names:
                if name in self:
                    raise ValueError(f"two generators for {name}")
                self[name] = function if len(names) == 1 else _named(function, name)
            return function

        return register


def _named(function: Callable[..., Any], name: str) -> Callable[[Any], Any]:
    return lambda builder: function(builder, name)
