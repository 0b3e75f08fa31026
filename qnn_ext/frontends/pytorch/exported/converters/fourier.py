"""Discrete Fourier transforms, and what makes complex numbers of real ones and real ones of complex.

A complex tensor is held as its real and its imaginary part. A transform is a product with the matrices of cosines and
sines, which are made in float64 and rounded once, along one axis after the other: what the real part of the result does
not depend on is never computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from .....errors import UnsupportedOperatorError
from .....op.base import constant, shape_of
from ....exponentials import exponentials
from ..registry import converter
from ..values import ComplexValue, dtype_of, scalar


def _complex(x: Any) -> ComplexValue:
    return x if isinstance(x, ComplexValue) else ComplexValue(x)


def _exponentials(importer: Any, length: int, count: int, dtype: str) -> tuple[relax.Expr, relax.Expr]:
    """The matrices of a transform."""
    cosines, sines = (constant(table.astype(dtype)) for table in exponentials(length, count, importer.label))
    return cosines, sines


def _along(importer: Any, x: relax.Expr, matrix: relax.Expr, axis: int) -> relax.Expr:
    """y[…, k, …] = Σ x[…, n, …] matrix[n, k] along an axis."""
    ndim = len(shape_of(x))
    if axis == ndim - 1:
        return importer.emit(relax.op.matmul(x, matrix))
    swapped = [ndim - 1 if one == axis else axis if one == ndim - 1 else one for one in range(ndim)]
    moved = importer.emit(relax.op.permute_dims(x, swapped))
    return importer.emit(relax.op.permute_dims(importer.emit(relax.op.matmul(moved, matrix)), swapped))


def _transformed(importer: Any, x: ComplexValue, axis: int, forward: bool, count: int | None = None) -> ComplexValue:
    """y[k] = Σ x[n] exp(∓2πi n k / length) for k < count, by default for all, along an axis."""
    length, dtype = shape_of(x.real)[axis], dtype_of(x.real)
    cosines, sines = _exponentials(importer, length, length if count is None else count, dtype)

    def times(part: relax.Expr, matrix: relax.Expr) -> relax.Expr:
        return _along(importer, part, matrix, axis)

    real, imaginary = times(x.real, cosines), times(x.real, sines)
    if forward:  # 0 − x: of 0 it is +0, as PyTorch's is
        imaginary = importer.emit(relax.op.subtract(scalar(0, dtype), imaginary))
    if x.imaginary is None:
        return ComplexValue(real, imaginary)
    other = times(x.imaginary, sines)
    real = importer.emit((relax.op.add if forward else relax.op.subtract)(real, other))
    return ComplexValue(real, importer.emit(relax.op.add(imaginary, times(x.imaginary, cosines))))


def _normalized(
    importer: Any, part: relax.Expr | None, normalization: int, lengths: Sequence[int]
) -> relax.Expr | None:
    """normalization: 0 for none, 1 for a division by the root of the number of elements, 2 by their number"""
    if part is None or normalization == 0:
        return part
    count = math.prod(lengths)
    factor = 1 / math.sqrt(count) if normalization == 1 else 1 / count
    return importer.emit(relax.op.multiply(part, scalar(factor, dtype_of(part))))


def _axes(x: ComplexValue, dims: Sequence[int]) -> list[int]:
    return [dim % len(shape_of(x.real)) for dim in dims]


@converter("aten._fft_c2c.default", complex_numbers=True)
def _fft(importer: Any, x: Any, dims: Sequence[int], normalization: int, forward: bool) -> ComplexValue:
    """The transform of complex numbers along axes."""
    value = _complex(x)
    axes = _axes(value, dims)
    lengths = [shape_of(value.real)[axis] for axis in axes]
    for axis in reversed(axes):
        value = _transformed(importer, value, axis, forward)
    parts = (_normalized(importer, part, normalization, lengths) for part in (value.real, value.imaginary))
    return ComplexValue(*parts)


@converter("aten._fft_r2c.default", complex_numbers=True)
def _fft_of_reals(
    importer: Any, x: relax.Expr, dims: Sequence[int], normalization: int, onesided: bool
) -> ComplexValue:
    """The transform of real numbers; onesided: of the last axis only the first half, which has all there is to know."""
    value = ComplexValue(x)
    *axes, last = _axes(value, dims)
    lengths = [shape_of(x)[axis] for axis in (*axes, last)]
    value = _transformed(importer, value, last, True, lengths[-1] // 2 + 1 if onesided else None)
    for axis in reversed(axes):
        value = _transformed(importer, value, axis, True)
    parts = (_normalized(importer, part, normalization, lengths) for part in (value.real, value.imaginary))
    return ComplexValue(*parts)


@converter("aten._fft_c2r.default", complex_numbers=True)
def _fft_to_reals(importer: Any, x: Any, dims: Sequence[int], normalization: int, length: int) -> relax.Expr:
    """The inverse of `_fft_r2c` with onesided: y[n] = Σ w[k] (Re x[k] cos(2π n k / length) − Im x[k] sin(…)), where
    w[k] is 1 for the ends of a whole spectrum, and 2 for what has a mirror image."""
    value = _complex(x)
    *axes, last = _axes(value, dims)
    for axis in reversed(axes):
        value = _transformed(importer, value, axis, False)
    half, dtype = length // 2 + 1, dtype_of(value.real)
    if shape_of(value.real)[last] != half:
        raise UnsupportedOperatorError(f"a spectrum of {shape_of(value.real)[last]} for {length} samples")
    cosines, sines = (table.T for table in exponentials(length, half, importer.label))
    weight = np.full((half, 1), 2.0)
    weight[[0, *([half - 1] if length % 2 == 0 else [])]] = 1
    result = _along(importer, value.real, constant((weight * cosines).astype(dtype)), last)
    if value.imaginary is not None:
        other = _along(importer, value.imaginary, constant((weight * sines).astype(dtype)), last)
        result = importer.emit(relax.op.subtract(result, other))
    lengths = [*(shape_of(value.real)[axis] for axis in axes), length]
    return _normalized(importer, result, normalization, lengths)


@converter("aten.real.default", complex_numbers=True)
def _real(importer: Any, x: Any) -> relax.Expr:
    return _complex(x).real


@converter("aten.imag.default", complex_numbers=True)
def _imaginary(importer: Any, x: Any) -> relax.Expr:
    return _complex(x).imaginary_part()


@converter("aten.view_as_real.default", complex_numbers=True)
def _view_as_real(importer: Any, x: Any) -> relax.Expr:
    """Real and imaginary part along a last axis."""
    pair = _complex(x)
    return relax.op.stack([pair.real, pair.imaginary_part()], axis=-1)


@converter("aten.view_as_complex.default", complex_numbers=True)
def _view_as_complex(importer: Any, x: relax.Expr) -> ComplexValue:
    axis = len(shape_of(x)) - 1
    parts = (importer.emit(relax.op.strided_slice(x, [axis], [part], [part + 1])) for part in range(2))
    return ComplexValue(*(importer.emit(relax.op.squeeze(part, [axis])) for part in parts))
