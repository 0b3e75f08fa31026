"""How much errors in each channel of a tensor matter to a model's outputs.

Independent errors of energy 1 in the channels x_i of a tensor that a product Σ_i w_oi·x_i reads have energies
Σ_i w_oi² in its results, so that x_i has the importance Σ_o v_o·w_oi² if the results have v_o. An output has 1 / Σ y²,
functions count as the identity and gates as 1. What several operators read has the sum of what it is worth to each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..op.arguments import data_of
from ..op.base import constant_value, normalize_axis, shape_of
from ..op.loop import results_of
from ..passes.rewrite import bindings_of, op_name, operands
from .channels import weight_of


def importances(
    function: relax.Function, axes: Mapping[relax.Var, int], energies: Sequence[float]
) -> dict[relax.Var, np.ndarray]:
    """Of each tensor of `main`: (channels,), or () where that of single channels is not known.

    axes: of the channels of tensors; energies: Σ y² of each output
    """
    found: dict[Any, np.ndarray] = defaultdict(lambda: np.zeros(()))
    for result, energy in zip(results_of(function), energies, strict=False):
        if isinstance(result, relax.Var):
            found[result] = found[result] + (1 / energy if energy else 1.0)
    for binding in reversed(bindings_of(function)):
        for var, part in _passed_back(binding.var, binding.value, found[binding.var], axes):
            found[var] = found[var] + part
    return found


def _passed_back(
    var: relax.Var, value: Any, own: np.ndarray, axes: Mapping[relax.Var, int]
) -> Iterator[tuple[relax.Var, np.ndarray]]:
    """What a result of importance `own` makes of the tensors that it is computed from."""
    weight = weight_of(value, transposed=True)
    if weight is not None:
        yield data_of(value), weight.input_squares(own)
        return
    if op_name(value) == "concat":
        yield from _joined(var, value, own, axes)
        return
    for operand in operands(value):
        if not isinstance(operand, relax.Var):
            continue
        alike = var in axes and operand in axes
        if alike and shape_of(operand)[axes[operand]] == shape_of(var)[axes[var]]:
            yield operand, own * _factors(value, axes[var], var)
        else:
            yield operand, own.mean()


def _joined(
    var: relax.Var, value: relax.Call, own: np.ndarray, axes: Mapping[relax.Var, int]
) -> Iterator[tuple[relax.Var, np.ndarray]]:
    """Each field of a concatenation has its own channels of the result, if these are what is joined."""
    start, ndim = 0, len(shape_of(var))
    axis = normalize_axis(int(value.attrs.axis), ndim)
    for operand in operands(value):
        count = shape_of(operand)[axis]
        if isinstance(operand, relax.Var):
            along = own.size == shape_of(var)[axis] and operand in axes and axes[operand] % ndim == axis
            yield operand, own[start : start + count] if along and own.ndim else own.mean()
        start += count


def _factors(value: Any, axis: int, var: relax.Var) -> np.ndarray:
    """The squares of what a multiplication by a constant multiplies each channel by; 1 for any other value."""
    factor = next((array for arg in value.args if (array := constant_value(arg)) is not None), None)
    if op_name(value) != "multiply" or factor is None:
        return np.ones(())
    shape = shape_of(var)
    squares = np.square(np.broadcast_to(np.asarray(factor, np.float64), shape))
    return np.asarray(squares.mean(axis=tuple(i for i in range(len(shape)) if i != axis % len(shape))))
