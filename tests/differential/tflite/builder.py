"""A TFLite graph under construction: operators take tensors that are there already, or new inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.conformance.tflite_models.builder import Graph, Q

from ..recipe import Case, Recipe
from ..rules import NARROWED, SHIFTED_OUT
from ..values import Draw

TRIALS = 3
QUANTIZED = ("int8", "uint8", "int16")


@dataclass(frozen=True)
class Value:
    """A tensor. `accident` and `steady` as in `Case`."""

    index: int
    shape: tuple[int, ...]
    dtype: str
    q: Q | None
    accident: str = ""
    steady: bool = True


class Builder:
    """Collects one model. `draw` is the source of everything random."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.draw, self.graph = recipe, Draw(recipe), Graph()
        self.values: list[Value] = []
        self.used: set[int] = set()
        self.limits: dict[int, tuple[int | None, int | None]] = {}
        self.inputs: list[Value] = []
        self.operators: Counter[str] = Counter()
        self.stateful = False

    # ---- tensors -------------------------------------------------------------------------------------------------

    def dtype(self, options: Sequence[str] = QUANTIZED) -> str:
        """The graph's dtype where the operator has it, else one that it has."""
        return self.recipe.dtype if self.recipe.dtype in options and self.draw.chance(0.8) else self.draw.pick(options)

    def q(self, dtype: str, about: float = 0.05, *, scale: float | None = None) -> Q | None:
        """Quantization of an activation; int16 has no zero point and a scale 256 times finer; None where none is."""
        if dtype not in QUANTIZED:
            return None
        scale = self.draw.scale(about) * self.draw.unit if scale is None else scale
        scale = float(np.float32(np.clip(scale / 256 if dtype == "int16" else scale, 1e-37, 1e37)))
        return Q(scale, 0 if dtype == "int16" else self.draw.zero_point(dtype))

    def fresh(
        self,
        dtype: str,
        shape: Sequence[int],
        q: Q | None = None,
        low: int | None = None,
        high: int | None = None,
        quantized: bool = True,
    ) -> Value:
        """A new input of the model; its values lie within low … high."""
        q = q or (self.q(dtype) if quantized else None)
        index = self.graph.input(shape, dtype, q)
        self.limits[index] = (low, high)
        self.inputs.append(self._keep(Value(index, tuple(shape), dtype, q)))
        return self.inputs[-1]

    def take(
        self,
        dtypes: Sequence[str] = QUANTIZED,
        rank: int | Sequence[int] | None = None,
        where: Callable[[Value], bool] = lambda value: True,
        shape: Sequence[int] | None = None,
    ) -> Value:
        """A tensor of such a dtype and rank that is there, the newest most often, or a new input of that shape."""
        ranks = range(1, 6) if rank is None else [rank] if isinstance(rank, int) else rank
        found = [
            v
            for v in self.values
            if v.dtype in dtypes
            and len(v.shape) in ranks
            and (shape is None or v.shape == tuple(shape))
            and (v.q is not None or v.dtype not in QUANTIZED)
            and where(v)
        ]
        if found and self.draw.chance(0.85):
            return found[-1] if self.draw.chance(0.6) else self.draw.pick(found)
        wanted = self.draw.shape(self.draw.pick(list(ranks))) if shape is None else shape
        return self.fresh(self.dtype(dtypes), wanted)

    def const(self, array: Any, dtype: str | None = None, q: Q | None = None) -> int:
        """A constant's index."""
        return self.graph.const(array, dtype, q)

    def operand(self, dtype: str, shape: Sequence[int], q: Q | None, constant: bool) -> Value:
        """A constant, or a new input."""
        if not constant:
            return self.fresh(dtype, shape, q, quantized=q is not None)
        return Value(self.const(self.draw.array(dtype, shape), q=q), tuple(shape), dtype, q)

    # ---- operators -----------------------------------------------------------------------------------------------

    def emit(
        self,
        operator: str,
        inputs: Sequence[Value | int],
        shapes: Sequence[Sequence[int]],
        dtypes: Sequence[str],
        qs: Sequence[Q | None],
        *,
        accident: str = "",
        steady: bool = True,
        **options: Any,
    ) -> list[Value]:
        """Adds an operator with several outputs."""
        sources = [value for value in inputs if isinstance(value, Value)]
        accident = next((value.accident for value in sources if value.accident), accident)
        accident = accident or shifted_out([value.q for value in sources], qs[0] if qs else None)
        accident = accident or beyond_int32(options.get("act", "none"), qs[0] if qs else None)
        steady = steady and all(value.steady for value in sources)
        made = [
            Value(self.graph.tensor(shape, dtype, q), tuple(int(n) for n in shape), dtype, q, accident, steady)
            for shape, dtype, q in zip(shapes, dtypes, qs, strict=True)
        ]
        self.used.update(value.index for value in sources)
        indices = [value.index if isinstance(value, Value) else value for value in inputs]
        self.graph.op(operator, indices, [value.index for value in made], **options)
        self.operators[operator] += 1
        return [self._keep(value) for value in made]

    def one(
        self,
        operator: str,
        inputs: Sequence[Value | int],
        shape: Sequence[int],
        dtype: str,
        q: Q | None,
        **options: Any,
    ) -> Value:
        """Adds an operator with one output."""
        return self.emit(operator, inputs, [shape], [dtype], [q], **options)[0]

    def _keep(self, value: Value) -> Value:
        self.values.append(value)
        return value

    # ---- the finished case ---------------------------------------------------------------------------------------

    def case(self) -> Case:
        """What no operator reads becomes an output."""
        results = [value for value in self.values if value.index not in self.used and value not in self.inputs]
        self.graph.packed.outputs = [value.index for value in results]
        self.draw.begin(self.recipe.seed)
        trials = [[self._feed(value) for value in self.inputs] for _ in range(TRIALS)]
        return Case(
            content=self.graph.build(),
            trials=trials,
            operators=self.operators,
            accidents=[value.accident for value in results],
            steady=[value.steady for value in results],
            stateful=self.stateful,
            facts={"scales": self.recipe.scales},
        )

    def _feed(self, value: Value) -> np.ndarray:
        return self.draw.array(value.dtype, value.shape, *self.limits[value.index])


MOST_MULTIPLIER = 2.0**22  # with the bits by which ADD and the comparisons shift before


def shifted_out(sources: Sequence[Q | None], result: Q | None) -> str:
    """`SHIFTED_OUT` where the scales make such a multiplier."""
    scales = [float(np.max(q.scale)) for q in sources if q is not None]
    if not scales:
        return ""
    largest = max(max(scales), float(np.prod(scales))) / (result.scale if result is not None else 1.0)
    return SHIFTED_OUT if largest >= MOST_MULTIPLIER else ""


def beyond_int32(act: str, result: Q | None) -> str:
    """`NARROWED` where the bound of a fused activation, divided by the scale, is no int32."""
    bounded = act in ("relu6", "relu_n1_to_1") and result is not None
    return NARROWED if bounded and 6 / result.scale >= 2.0**30 else ""  # type: ignore[union-attr]


Generator = Callable[[Builder], Any]
GENERATORS: dict[str, Generator] = {}


def generates(*names: str) -> Callable[[Generator], Generator]:
    """Register the decorated function for these operators; one registered for several gets the name as well."""

    def register(function: Generator) -> Generator:
        for name in names:
            if name in GENERATORS:
                raise ValueError(f"two generators for {name}")
            GENERATORS[name] = function if len(names) == 1 else _named(function, name)
        return function

    return register


def _named(function: Callable[..., Any], name: str) -> Generator:
    return lambda builder: function(builder, name)


def make(recipe: Recipe) -> Case:
    """The case of a recipe."""
    builder = Builder(recipe)
    for step in recipe.steps:
        builder.draw.begin(step.seed)
        GENERATORS[step.operator](builder)
    return builder.case()
