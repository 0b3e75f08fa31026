"""Two pairs of QuantizeLinear and DequantizeLinear in a row, which ONNX Runtime merges into one.

    Q(s₁, z₁) → DQ(s₁, z₁) → Q(s₂, z₂) → DQ(s₂, z₂)   becomes   Q(s, z) → DQ(s, z)

s and z are those of the range that both pairs have in common. So values are rounded once, and in other places than the
file says. ONNX Runtime's default does so for scalar constants of 8 and 16 bits in the main graph, once it has removed
what computes nothing between the pairs, such as a cast of float32 to float32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .folding import constant_node
from .reader import Model, Operator, copies, values_read

_DTYPES = (np.int8, np.uint8, np.int16, np.uint16)
_SAME = 1e-20  # scales that differ by less are the same


def merge_double_pairs(model: Model) -> Model:
    """The model with one pair instead of each two that ONNX Runtime merges."""
    merging = _Merging(model)
    for operator in model.operators:
        merging.merge_behind(operator.index)
    if len(merging.operators) == len(model.operators):
        return model
    constants = model.constants | merging.constants
    return replace(model, operators=tuple(merging.operators.values()), constants=constants)


class _Merging:
    """operators: as they are by now, by their index; constants: of merged pairs"""

    def __init__(self, model: Model) -> None:
        self.operators = {operator.index: operator for operator in model.operators}
        self.constants: dict[str, np.ndarray] = {}
        self._model = model
        self._uses = Counter(name for operator in model.operators for name in values_read(operator) if name)
        self._uses.update(value.name for value in model.outputs)
        self._writers = {name: operator.index for operator in model.operators for name in operator.outputs}
        self._readers = {name: operator.index for operator in model.operators for name in operator.inputs[:1]}

    def merge_behind(self, index: int) -> None:
        """Merge the pair that begins with this operator with the one behind it, and the result with the next."""
        while (found := self._two_pairs(self.operators.get(index))) is not None:
            first, between, last = found
            common = _common(self._parameters(first), self._parameters(last))
            if common is None:
                return
            names = (f"{last.outputs[0]}/scale", f"{last.outputs[0]}/zero_point")
            self.constants.update(zip(names, common, strict=True))
            for removed in between:
                del self.operators[removed.index]
            self.operators[index] = replace(first, inputs=(first.inputs[0], *names))
            self.operators[last.index] = replace(last, inputs=(first.outputs[0], *names))
            self._readers[first.outputs[0]] = last.index

    def _two_pairs(self, first: Operator | None) -> tuple[Operator, list[Operator], Operator] | None:
        """The first and last operator of two pairs, and what is between them."""
        middle = self._reader(first)
        if first is None or middle is None or not self._is_pair(first, middle):
            return None
        between = [middle]
        while (behind := self._reader(between[-1])) is not None and _computes_nothing(behind):
            between.append(behind)
        last = self._reader(behind)
        if behind is None or last is None or not self._is_pair(behind, last):
            return None
        return first, [*between, behind], last

    def _reader(self, operator: Operator | None) -> Operator | None:
        """What alone reads an operator's only result, as its data."""
        if operator is None or len(operator.outputs) != 1 or self._uses[operator.outputs[0]] != 1:
            return None
        return self.operators.get(self._readers.get(operator.outputs[0], -1))

    def _is_pair(self, quantize: Operator, dequantize: Operator) -> bool:
        """Whether they are one with scalar parameters."""
        if (quantize.op_type, dequantize.op_type) != ("QuantizeLinear", "DequantizeLinear"):
            return False
        parameters, others = self._parameters(quantize), self._parameters(dequantize)
        if len(parameters) != 2 or len(others) != 2 or any(one.size != 1 for one in (*parameters, *others)):
            return False
        scale, zero_point = parameters
        same = all(
            one.dtype == other.dtype and one.item() == other.item()
            for one, other in zip(parameters, others, strict=True)
        )
        return same and scale.dtype == np.float32 and zero_point.dtype in _DTYPES

    def _parameters(self, operator: Operator) -> list[np.ndarray]:
        """Scale and zero point, as far as they are given as constants."""
        found = (self._constant(name) for name in operator.inputs[1:])
        return [value for value in found if value is not None]

    def _constant(self, name: str) -> np.ndarray | None:
        if name in self._model.narrow_dtypes:
            return None
        value = self.constants.get(name, self._model.constants.get(name))
        writer = self.operators.get(self._writers.get(name, -1))
        return constant_node(writer) if value is None and writer is not None and writer.op_type == "Constant" else value


def _computes_nothing(operator: Operator) -> bool:
    """Whether it returns float32 data as they are."""
    return copies(operator, "float32") or (operator.op_type == "Dropout" and len(operator.inputs) < 3)


def _common(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray] | None:
    """Scale and zero point of the range that two pairs have in common; None if ONNX Runtime does not merge them."""
    (scale, zero_point), (other_scale, other_zero_point) = one, other
    if zero_point.dtype != other_zero_point.dtype:
        return None
    if zero_point.item() == other_zero_point.item() and abs(scale.item() - other_scale.item()) < _SAME:
        return scale, zero_point
    ends = np.iinfo(zero_point.dtype)
    low = max(_real(ends.min, *parameters) for parameters in (one, other))
    high = min(_real(ends.max, *parameters) for parameters in (one, other))
    common = (high - low) / np.float32(ends.max - ends.min)
    if not common > 0:
        return None
    zero = np.float32(ends.min) - low / common
    zero = np.trunc(zero + np.copysign(np.float32(0.5), zero))
    return np.asarray(common), np.asarray(zero, zero_point.dtype)


def _real(value: int, scale: np.ndarray, zero_point: np.ndarray) -> np.float32:
    return np.float32(np.float32(value - int(zero_point.item())) * np.float32(scale.item()))
