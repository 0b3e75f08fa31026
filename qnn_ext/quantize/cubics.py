"""Float functions between a product and a quantize become sixteen cubics each: `R.qnn.piecewise`.

Sigmoid, SiLU, GELU, Mish and any other chain of elementwise operators on one tensor alone is a function of that tensor.
If that is an accumulator, a table would need it quantized first, which costs accuracy (1 dB of the SQNR of a network
with SiLU); evaluating the function exactly costs time. But its results are quantized: errors of a sixteenth of a step
do not matter, and the range of the integers bounds the arguments for which it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
from tvm import IRModule, relax

from .. import op as qnn
from ..numerics.piecewise import ROWS, SEGMENTS, evaluated
from ..op.base import call_attributes, constant_value, shape_of
from ..op.evaluate import evaluate
from ..op.relax_table import traits_of
from ..op.traits import Kind
from ..passes.rewrite import Rebuild, consumers, emit_named, op_name, operands
from ..qparams import dtype_range

TOLERANCE = 1 / 16
"""The largest error, in steps of the result's integers."""

_MOST_OF_MEAN = 4  # of factors: where the largest is beyond, it decides

_GRID = np.logspace(-3, 4, 2000)
_SAMPLES = 24  # of each cubic
_PARTS = (1.0, 0.75, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08)  # of the range, for all segments but the last
_MARGIN = 1 / 512  # keeps the lowest argument from being rounded to a segment below the first
_CARRIES_ERRORS = ("add", "subtract", "maximum", "minimum", "clip", "nn.relu", "nn.relu6", "nn.leakyrelu")


def with_cubics(mod: IRModule) -> IRModule:
    """`mod`, a QDQ graph, with functions of one float tensor as cubics wherever these are faster, and accurate enough
    for the 8-bit integers that the result is quantized to."""
    return _Functions(mod).run()


@dataclass(frozen=True)
class Target:
    """The integers that a function's results, or sums with them, are quantized to.

    low, high: the real values beyond which results are clipped; direct: whether nothing else reads the function
    """

    step: float
    low: float
    high: float
    direct: bool = False

    def joined(self, other: Target) -> Target:
        return Target(min(self.step, other.step), min(self.low, other.low), max(self.high, other.high))

    @property
    def widened(self) -> Target:
        """For a summand: what its sums cannot exceed, it may."""
        size = self.high - self.low
        return Target(self.step, self.low - size, self.high + size)


class _Work(IntEnum):
    """What computes a function: bounds, which integers have too; arithmetic, after which cubics save the division by
    the scale; or operators that are slower than cubics."""

    BOUNDS = 0
    ARITHMETIC = 1
    FUNCTION = 2


class _Functions:
    def __init__(self, mod: IRModule) -> None:
        self._new = Rebuild(mod["main"])
        self._bindings = self._new.bindings
        self._values = {binding.var: binding.value for binding in self._bindings}
        self._readers = consumers(self._new.function, self._bindings)
        self._sources: dict[Any, Any] = {}  # variable -> the one that it is a function of
        self._work: dict[Any, _Work] = {}  # what computes it from there
        self._integers: set[Any] = set()  # variables that are dequantized, or moved since
        self._targets: dict[Any, Target | None] = {}

    def run(self) -> IRModule:
        new = self._new
        unscaled: dict[Any, Any] = {}  # function -> its cubics in steps of its integers
        for binding in self._bindings:
            self._find(binding.var, binding.value)
        for binding in reversed(self._bindings):
            self._targets[binding.var] = self._quantized(binding.var)
        with new.main():
            for binding in self._bindings:
                var, value = binding.var, binding.value
                if op_name(value) == "qnn.quantize" and value.args[0] in unscaled:
                    quantize = qnn.quantize(
                        unscaled[value.args[0]], np.float32(1), value.args[2], **call_attributes(value)
                    )
                    new.bind(var, quantize)
                    continue
                target = self._target(var) if self._leaves(var) else None
                found = None if target is None else cubics(self._function(var), target)
                if target is None or found is None:
                    new.keep(binding)
                    continue
                call = qnn.piecewise(new.environment.get(self._sources[var], self._sources[var]), *found)
                result = emit_named(new.builder, call, str(var.name))
                new.environment[var] = result
                if target.direct:
                    unscaled[var] = result
        return new.live_module()

    # ---- which functions there are -------------------------------------------------------------------------------

    def _find(self, var: Any, value: Any) -> None:
        name, traits = op_name(value), traits_of(value)
        tensors = [arg for arg in operands(value) if isinstance(arg, relax.Var)]
        if name == "qnn.dequantize" or (traits.carries and tensors and self._integers.issuperset(tensors)):
            self._integers.add(var)
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self._integers:
            self._integers.add(var)
        if traits.kind is not Kind.POINTWISE or traits.cheap is None or not tensors:
            return
        constants = [constant_value(arg) for arg in value.args if not isinstance(arg, relax.Var)]
        sources = {self._sources.get(tensor, tensor) for tensor in tensors}
        if len(sources) > 1 or any(array is not None and array.size != 1 for array in constants):
            return
        (source,) = sources
        if source in self._integers or not _is_float32(source) or shape_of(var) != shape_of(source):
            return
        self._sources[var] = source
        own = _Work.BOUNDS if traits.clips is not None or traits.selects else _Work.ARITHMETIC
        if not traits.cheap or name == "divide":
            own = _Work.FUNCTION
        self._work[var] = max(own, *(self._work.get(tensor, own) for tensor in tensors))

    def _leaves(self, var: Any) -> bool:
        """Whether a function that takes some work is read as something other than a step of another one."""
        if self._work.get(var, _Work.BOUNDS) is _Work.BOUNDS or not _is_float32(var):
            return False
        source = self._sources[var]
        return not all(source.same_as(self._sources.get(reader)) for reader in self._read_by(var))

    def _read_by(self, var: Any) -> list[Any]:
        """The variables computed from this one; None stands for the result of the module."""
        bindings = self._bindings
        return [bindings[index].var if index < len(bindings) else None for index in self._readers[var]]

    def _target(self, var: Any) -> Target | None:
        """What a function's results are quantized to, None if not all of them are quantized to 8 bits."""
        found, readers = self._targets.get(var), self._read_by(var)
        if found is None:
            return None
        if len(readers) == 1 and op_name(self._values[readers[0]]) == "qnn.quantize":
            return replace(found, direct=True)
        return found.widened if self._work[var] is _Work.FUNCTION else None

    def _quantized(self, var: Any) -> Target | None:
        """What all readers of a variable quantize it to, moved and with errors as large."""
        found: Target | None = None
        for reader in self._read_by(var):
            value = self._values.get(reader)
            name = op_name(value)
            if name == "qnn.quantize":
                target = _target_of(value)
            elif name in _CARRIES_ERRORS or traits_of(value).carries or isinstance(value, relax.TupleGetItem):
                target = self._targets.get(reader)
            elif name == "multiply":
                target = _behind_factors(value, self._targets.get(reader))
            else:
                target = None
            if target is None:
                return None
            found = target if found is None else found.joined(target)
        return found

    def _function(self, var: Any) -> Callable[[np.ndarray], np.ndarray]:
        """The function that computes a variable from its source."""
        source, steps, pending = self._sources[var], set(), [var]
        while pending:
            step = pending.pop()
            if step not in steps and not step.same_as(source):
                steps.add(step)
                pending += [arg for arg in operands(self._values[step]) if isinstance(arg, relax.Var)]
        order = [binding.var for binding in self._bindings if binding.var in steps]

        def function(x: np.ndarray) -> np.ndarray:
            environment = {source: x.astype(np.float32).reshape(-1)}
            with np.errstate(all="ignore"):
                for step in order:
                    environment[step] = np.asarray(evaluate(None, self._values[step], environment)).reshape(-1)
            return environment[var].reshape(x.shape).astype(np.float64)

        return function


def _is_float32(var: Any) -> bool:
    return isinstance(var.ty, relax.TensorType) and str(var.ty.dtype) == "float32"


def _behind_factors(multiply: relax.Call, target: Target | None) -> Target | None:
    """What a tensor is quantized to whose channels, times positive factors, are quantized to `target`: in the mean of
    squares over channels, as noise adds up, and so that no channel's errors exceed a quarter of its step."""
    factors = next((array for array in map(constant_value, multiply.args) if array is not None), None)
    if target is None or factors is None or not (factors > 0).all():
        return None
    least, most = float(factors.min()), float(factors.max())
    mean = float(np.sqrt(np.square(factors, dtype=np.float64).mean()))
    return Target(target.step / max(mean, most / _MOST_OF_MEAN), target.low / least, target.high / least)


def _target_of(quantize: relax.Call) -> Target | None:
    scale, zero_point = (constant_value(arg) for arg in quantize.args[1:])
    dtype = call_attributes(quantize)["out_dtype"]
    if scale is None or zero_point is None or scale.size != 1 or dtype not in ("int8", "uint8"):
        return None
    step, zero = float(scale.item()), int(zero_point.item())
    low, high = dtype_range(dtype)
    return Target(step, (low - zero) * step, (high - zero) * step)


# ---- the cubics -----------------------------------------------------------------------------------------------


def cubics(function: Callable[[np.ndarray], np.ndarray], target: Target) -> tuple[np.ndarray, ...] | None:
    """The arguments of `qnn.piecewise` behind its data for this function of float32, None where sixteen cubics are
    not accurate enough; in steps of the target's integers if nothing else reads them."""
    ends = _ends(function, target)
    if ends is None:
        return None
    unit = target.step if target.direct else 1.0
    best, error = None, TOLERANCE * target.step / unit
    for width in _widths(*ends, _bend(function, *ends)):
        candidate = _fitted(lambda x: function(x) / unit, *ends, width)
        found = _error(lambda x: function(x) / unit, candidate)
        if found <= error:
            best, error = candidate, found
    return best


def _ends(function: Callable[[np.ndarray], np.ndarray], target: Target) -> tuple[float, float] | None:
    """The arguments between which the function changes within the target's range; None if it never does, or is not
    defined everywhere."""
    x = np.concatenate([-_GRID[::-1], [0.0], _GRID])
    y = np.clip(function(x), target.low, target.high)
    if np.isnan(y).any():
        return None
    slack = TOLERANCE / 4 * target.step

    def end(order: int) -> float | None:
        """The last argument, in this order, up to which the function stays at its first value: maybe a corner."""
        places, values = x[::order], y[::order]
        changed = np.abs(values - values[0]) > slack
        if not changed.any():
            return None
        first = max(int(changed.argmax()), 1)
        outside, inside = places[first - 1], places[first]
        for _ in range(16):
            middle = (outside + inside) / 2
            value = np.clip(function(np.asarray([middle])), target.low, target.high).item()
            outside, inside = (outside, middle) if abs(value - values[0]) > slack else (middle, inside)
        return float(np.float32(outside))

    low, high = end(1), end(-1)
    return None if low is None or high is None or not low < high else (low, high)


def _bend(function: Callable[[np.ndarray], np.ndarray], low: float, high: float) -> float:
    """Where the function bends most: that of SELU has a corner there."""
    for _ in range(3):
        x = np.linspace(low, high, 129).astype(np.float32).astype(np.float64)
        steepness = np.diff(function(x)) / np.maximum(np.diff(x), 1e-30)
        place = int(np.abs(np.diff(steepness)).argmax()) + 1
        low, high = x[place - 1], x[place + 1]
    return float(x[place])


def _widths(low: float, high: float, bend: float) -> list[float]:
    """The widths of segments to try, and for each the nearest one with which a segment ends at the bend."""
    plain = [(high - low) * part / SEGMENTS for part in _PARTS]
    counts = [round((bend - low) / width) for width in plain]
    return plain + [(bend - low) / (count - _MARGIN) for count in counts if count > 0]


def _fitted(function: Callable[[np.ndarray], np.ndarray], low: float, high: float, width: float) -> tuple[Any, ...]:
    """Cubics through the Chebyshev nodes of each segment, which are equally wide but for the last one, and for those
    beyond the end."""
    edges = low + width * (np.arange(SEGMENTS + 1) - _MARGIN)
    edges[0], edges[-1] = low, max(high, edges[-2] + width)
    middle, half = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
    nodes = np.cos(np.pi * (np.arange(ROWS) + 0.5) / ROWS)
    values = function(middle[:, None] + half[:, None] * nodes)
    # Σ aₖ·((x − middle) / half)ᵏ, and the same by powers of x
    a0, a1, a2, a3 = np.linalg.solve(nodes[:, None] ** np.arange(ROWS), values.T) / half ** np.arange(ROWS)[:, None]
    c1 = a1 - 2 * a2 * middle + 3 * a3 * middle**2
    c0 = a0 - a1 * middle + a2 * middle**2 - a3 * middle**3
    coefficients = np.stack([c0, c1, a2 - 3 * a3 * middle, a3])
    factor = np.float32(1 / width)
    offset = np.float32(_MARGIN - 0.5 - low * float(factor))
    return coefficients.astype(np.float32), np.float32(low), np.float32(high), factor, offset


def _error(function: Callable[[np.ndarray], np.ndarray], candidate: tuple[Any, ...]) -> float:
    """The largest error between the ends; infinite where the operator does not take the arguments."""
    _, low, high, factor, offset = candidate
    if not float(low) * float(factor) + float(offset) >= -0.499:
        return np.inf
    inner = np.linspace(low, min(high, low + SEGMENTS / factor), SEGMENTS * _SAMPLES, dtype=np.float32)
    x = np.concatenate([inner, np.linspace(inner[-1], high, SEGMENTS * _SAMPLES, dtype=np.float32)])
    return float(np.abs(evaluated(x, *candidate) - function(x)).max())
