"""What the TE stages of operators read: operands, constants that become tensors, and elements of both at indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import te, tirx

from ...errors import UnsupportedOperatorError
from ...numerics import tir
from ...numerics.wrapping import KINDS, wrapped
from ...qparams import dtype_range
from ...targets.features import current_backend

Expr = Any

SCALARS = 16  # in an array: as many int32 or float32 as a constant takes at least


@dataclass
class Constants:
    """Constant tensors of one PrimFunc: placeholders, with the arrays the caller has to pass for them."""

    placeholders: list[te.Tensor] = field(default_factory=list)
    arrays: list[np.ndarray] = field(default_factory=list)
    _scalars: dict[str, _Scalars] = field(default_factory=dict)

    def add(self, array: np.ndarray) -> te.Tensor:
        """A placeholder for `array`, shared between equal arrays."""
        array = np.ascontiguousarray(array)
        growing = {id(scalars.array) for scalars in self._scalars.values()}
        for placeholder, known in zip(self.placeholders, self.arrays, strict=True):
            if known.dtype == array.dtype and np.array_equal(known, array) and id(known) not in growing:
                return placeholder
        return self._added(array)

    def scalar(self, value: np.generic) -> Expr:
        """A number as an element of an array of them. Kernels that differ only in such numbers share their code."""
        dtype = str(value.dtype)
        scalars = self._scalars.get(dtype)
        if scalars is None or scalars.used == SCALARS:
            array = np.zeros(SCALARS, dtype)
            scalars = self._scalars[dtype] = _Scalars(self._added(array), array)
        scalars.array[scalars.used] = value
        scalars.used += 1
        return element(scalars.placeholder, [scalars.used - 1])

    def _added(self, array: np.ndarray) -> te.Tensor:
        placeholder = te.placeholder(array.shape, str(array.dtype), name=f"const{len(self.arrays)}")
        self.placeholders.append(placeholder)
        self.arrays.append(array)
        return placeholder


@dataclass
class _Scalars:
    """An array of scalars, the first `used` of which have their values."""

    placeholder: te.Tensor
    array: np.ndarray
    used: int = 0


@dataclass(frozen=True)
class Operand:
    """One argument of an operator: a te.Tensor computed before, or a constant array; the other is None.

    bound: a bound on the absolute values, if more is known than the dtype; see `largest`
    """

    tensor: Any
    value: Any
    bound: float | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(int, self.tensor.shape[:])) if self.tensor is not None else self.value.shape

    @property
    def dtype(self) -> str:
        return str(self.tensor.dtype) if self.tensor is not None else str(self.value.dtype)

    @property
    def largest(self) -> float:
        """A bound on the absolute values; infinity for floats about which nothing is known."""
        if self.bound is not None:
            return self.bound
        if self.value is not None:
            return float(np.abs(self.value.astype(np.float64)).max(initial=0.0))
        if self.dtype == "bool":
            return 1.0
        return math.inf if "float" in self.dtype else float(max(map(abs, dtype_range(self.dtype))))

    def constant(self) -> np.ndarray:
        """The value, needed at compile time. Raises UnsupportedOperatorError if it is not constant."""
        if self.value is None:
            raise UnsupportedOperatorError("scales and zero points of this operator must be constant")
        return self.value


class Stage:
    """One elementwise operator under construction, at the output element with the given indices."""

    def __init__(self, constants: Constants, indices: Sequence[Expr]) -> None:
        self.constants = constants
        self.indices = tuple(indices)

    def read(self, operand: Operand, immediate: bool = True) -> Expr:
        """The operand's element, with NumPy's broadcasting; for a constant scalar the number itself, if it may be an
        `immediate`."""
        if operand.value is not None and operand.value.size == 1:
            if not immediate:
                return element(self.constants.add(operand.value.reshape(1)), [0])
            return tirx.const(operand.value.reshape(-1)[0].item(), operand.dtype)
        tensor = operand.tensor if operand.tensor is not None else self.constants.add(operand.value)
        shape = operand.shape
        tail = self.indices[len(self.indices) - len(shape) :]
        return element(tensor, [0 if size == 1 else index for size, index in zip(shape, tail, strict=True)])

    def along(self, array: np.ndarray, axis: int) -> Expr:
        """The element of a per-channel vector for this output element; a scalar is an immediate."""
        array = np.asarray(array)
        if array.size == 1:
            return tirx.const(array.reshape(-1)[0].item(), str(array.dtype))
        return element(self.constants.add(array.reshape(-1)), [self.indices[axis % len(self.indices)]])

    def factor(self, array: np.ndarray, axis: int) -> Expr:
        """The same for what products are multiplied with, which differs from layer to layer: in a CPU's kernels a
        scalar is data, too."""
        array = np.asarray(array)
        if array.size != 1 or array.dtype not in ("float32", "int32") or current_backend().grid:
            return self.along(array, axis)
        return self.constants.scalar(array.reshape(-1)[0])

    def parameter(self, operand: Operand, axis: int) -> Expr:
        """A scale or zero point: constant or computed at run time, scalar or along `axis`."""
        if operand.value is not None:
            return self.along(operand.value, axis)
        index = [] if not operand.shape else [0 if operand.shape == (1,) else self.indices[axis % len(self.indices)]]
        return element(operand.tensor, index)

    def shifted(self, data: Operand, zero_point: Operand, axis: int) -> Expr:
        """data − zero_point in int32, or in int64 for int64 data."""
        wide = "int64" if data.dtype == "int64" else "int32"
        x = self.read(data).astype(wide)
        if zero_point.value is not None and not zero_point.value.any():
            return x
        return defined(x - self.parameter(zero_point, axis).astype(wide), shifted_limit(data, zero_point))


def shifted_limit(data: Operand, zero_point: Operand) -> float:
    """A bound on |data − zero_point|."""
    return data.largest + zero_point.largest


def defined(x: Expr, limit: float) -> Expr:
    """A sum, difference or product of integers with absolute values up to `limit`; wraps if that might overflow."""
    dtype = tir.dtype_of(x)
    if not isinstance(x, KINDS) or "int" not in dtype or limit <= dtype_range(dtype)[1]:
        return x
    return wrapped(x, current_backend().widest_integer)


def element(tensor: te.Tensor, indices: Sequence[Expr]) -> Expr:
    """tensor[indices] as a PrimExpr; a te.TensorSlice lacks half of its operators."""
    return tensor(*indices)
