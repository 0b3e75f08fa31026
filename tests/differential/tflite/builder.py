"""A TFLite graph under construction: operators take existing tensors or new inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.conformance.tflite_models.builder import Graph, Q

from .. import builder as common
from ..recipe import Case, Recipe
from ..rules import HOSTILE, NARROWED, SHIFTED_OUT, UNDEFINED_BOUND, Rule, inherited

QUANTIZED = ("int8", "uint8", "int16")


@dataclass(frozen=True)
class Value:
    """A tensor. `accident` and `steady` as in `Case`."""

    index: int
    shape: tuple[int, ...]
    dtype: str
    q: Q | None
    accident: Rule | None = None
    steady: bool = True

    @property
    def key(self) -> int:
        return self.index


class Builder(common.Builder):
    """Collects one model. `draw` is the source of all randomness."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        self.graph = Graph()
        self.stateful = False

    # ---- tensors -------------------------------------------------------------------------------------------------

    def dtype(self, options: Sequence[str] = QUANTIZED) -> str:
        """The graph's dtype where the operator supports it, else one that it supports."""
        return super().dtype(options)

    def q(self, dtype: str, about: float = 0.05, *, scale: float | None = None) -> Q | None:
        """The quantization of an activation; int16 has no zero point and a scale 256 times finer; or None."""
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
        self.inputs.append(Value(index, tuple(shape), dtype, q))
        self.values.append(self.inputs[-1])
        return self.inputs[-1]

    def take(
        self,
        dtypes: Sequence[str] = QUANTIZED,
        rank: int | Sequence[int] | None = None,
        where: Callable[[Value], bool] = lambda value: True,
        shape: Sequence[int] | None = None,
    ) -> Value:
        """An existing tensor of one of these dtypes and ranks, most often the newest, or a new input of that shape."""
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
        """Adds a constant; returns its index."""
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
        accident: Rule | None = None,
        steady: bool = True,
        **options: Any,
    ) -> list[Value]:
        """Adds an operator with several outputs."""
        sources = [value for value in inputs if isinstance(value, Value)]
        accident = accident or shifted_out([value.q for value in sources], qs[0] if qs else None)
        accident = accident or beyond_int32(options.get("act", "none"), qs[0] if qs else None)
        accident = inherited([value.accident for value in sources], accident)
        steady = steady and all(value.steady for value in sources)
        made = [
            Value(self.graph.tensor(shape, dtype, q), tuple(int(n) for n in shape), dtype, q, accident, steady)
            for shape, dtype, q in zip(shapes, dtypes, qs, strict=True)
        ]
        self.used.update(value.index for value in sources)
        indices = [value.index if isinstance(value, Value) else value for value in inputs]
        self.graph.op(operator, indices, [value.index for value in made], **options)
        self.operators[operator] += 1
        self.place(made, accident)
        return made

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

    @property
    def may_be_nan(self) -> bool:
        """Whether floats computed so far may be NaN or infinite."""
        return self.recipe.hostile or bool(self.operators.keys() & UNBOUNDED)

    def narrowed(self, x: Value, beyond: bool) -> Rule | None:
        """The rule for floats that become integers, some of which may be `beyond` the range."""
        if x.dtype != "float32":
            return None
        if self.may_be_nan if x not in self.inputs else self.recipe.hostile:
            return HOSTILE
        return NARROWED if beyond or x not in self.inputs else None

    # ---- the finished case ---------------------------------------------------------------------------------------

    def case(self) -> Case:
        """Tensors that no operator reads become outputs."""
        self.graph.packed.outputs = [value.index for value in self.results()]
        return replace(super().case(self.graph.build(), scales=self.recipe.scales), stateful=self.stateful)


UNBOUNDED = {  # whose results may be NaN, or infinite, with differences that are NaN
    "DIV", "EXP", "FLOOR_DIV", "FLOOR_MOD", "L2_NORMALIZATION", "LOG", "MUL", "POW", "REDUCE_PROD", "RSQRT", "SQRT",
    "SQUARE", "SQUARED_DIFFERENCE",
}  # fmt: skip
MOST_MULTIPLIER = 2.0**22  # with the bits by which ADD and the comparisons shift first
MOST_WIDE_MULTIPLIER = 2.0**14  # for 64-bit sums, as in 16-bit products


def shifted_out(sources: Sequence[Q | None], result: Q | None, most: float = MOST_MULTIPLIER) -> Rule | None:
    """`SHIFTED_OUT` where the scales make a multiplier of `most` or more."""
    scales = [float(np.max(q.scale)) for q in sources if q is not None]
    if not scales:
        return None
    largest = max(max(scales), float(np.prod(scales))) / (result.scale if result is not None else 1.0)
    return SHIFTED_OUT if largest >= most else None


def beyond_int32(act: str, result: Q | None) -> Rule | None:
    """`UNDEFINED_BOUND` where the bound of a fused activation, divided by the scale, does not fit into int32."""
    bounded = act in ("relu6", "relu_n1_to_1") and result is not None
    return UNDEFINED_BOUND if bounded and 6 / result.scale >= 2.0**30 else None  # type: ignore[union-attr]


Generator = Callable[[Builder], Any]
GENERATORS: dict[str, Generator] = {}


def generates(*names: str) -> Callable[[Generator], Generator]:
    """Register the decorated function for these operators; one registered for several is also passed the name."""

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
