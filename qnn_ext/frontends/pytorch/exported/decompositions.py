"""Operators written with others, which this frontend converts: where PyTorch has no decomposition for torch.export."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ....errors import UnsupportedOperatorError

_aten = torch.ops.aten


def _hypot(x: Any, y: Any) -> Any:
    return torch.sqrt(x * x + y * y)


def _erfc(x: Any) -> Any:
    """As accurate as erf, so without the digits of numbers near 0."""
    return 1 - torch.erf(x)


def _exp2(x: Any) -> Any:
    return torch.exp(x * math.log(2))


def _fmax(x: Any, y: Any) -> Any:
    """The larger number; NaN is none."""
    return torch.where(torch.isnan(x), y, torch.where(torch.isnan(y), x, torch.maximum(x, y)))


def _fmin(x: Any, y: Any) -> Any:
    return torch.where(torch.isnan(x), y, torch.where(torch.isnan(y), x, torch.minimum(x, y)))


def _copysign(x: Any, sign: Any) -> Any:
    """1 / −0 is negative."""
    sign = sign if isinstance(sign, torch.Tensor) else torch.full((), sign, dtype=x.dtype)
    negative = torch.where(sign == 0, 1 / sign, sign) < 0
    return torch.where(negative, -torch.abs(x), torch.abs(x))


def _cdist(x: Any, y: Any, p: float, _mode: Any) -> Any:
    return torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1)


def _scatter_add(x: Any, axis: int, index: Any, source: Any) -> Any:
    return _aten.scatter_reduce.two(x, axis, index, source, "sum")


def _bincount(x: Any, weights: Any = None, minlength: int = 0) -> Any:
    """How often each of 0 … minlength − 1 occurs, or the sum of the weights there. Larger numbers in x, for which the
    result would have to be longer, are refused when the model runs."""
    if not minlength:
        raise UnsupportedOperatorError(
            "bincount without minlength: nothing bounds the size of its result; give minlength=, and no larger numbers"
        )
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
    source = torch.ones(x.shape, dtype=dtype) if weights is None else weights.to(dtype)
    return _scatter_add(torch.zeros(minlength, dtype=dtype), 0, x.long(), source)


def _rrelu(x: Any, noise: Any, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, *_: Any) -> Any:
    """The mean slope. In training it is drawn, which is left as it is."""
    if training:
        return NotImplemented
    return torch.nn.functional.leaky_relu(x, (lower + upper) / 2), noise


# ---- elementwise -------------------------------------------------------------------------------------------------


def _ldexp(x: Any, exponent: Any) -> Any:
    return x * torch.pow(2.0, exponent.to(x.dtype))


_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)
_STEPS = 8  # up to where five terms of Stirling's series have 11 digits


def _lgamma(x: Any) -> Any:
    """log |Γ(x)|: of x + 8 by Stirling's series, less the logarithms of the factors between; below ½ by reflection,
    Γ(x) Γ(1 − x) = π / sin(πx)."""
    wide = x.double()
    reflected = wide < 0.5
    positive = torch.where(reflected, 1 - wide, wide)
    factors = positive
    for step in range(1, _STEPS):
        factors = factors * (positive + step)
    far = positive + _STEPS
    series = sum(c / far ** (2 * n + 1) for n, c in enumerate(_STIRLING))
    result = (far - 0.5) * torch.log(far) - far + 0.5 * math.log(2 * math.pi) + series - torch.log(factors)
    result = torch.where(torch.isinf(positive), positive, result)
    sine = torch.abs(torch.sin(math.pi * (wide - torch.floor(wide))))
    return torch.where(reflected, math.log(math.pi) - torch.log(sine) - result, result).to(x.dtype)


# Giles, Approximating the erfinv function, GPU Computing Gems Jade Edition: of w − 2.5 for w < 5, else of √w − 3
_NEAR = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_FAR = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip


def _erfinv(x: Any) -> Any:
    """x · p(−log(1 − x²)), as accurate as float32."""
    wide = x.double()
    w = -torch.log((1 - wide) * (1 + wide))
    near, far = w - 2.5, torch.sqrt(torch.relu(w)) - 3
    one, other = torch.zeros_like(w), torch.zeros_like(w)
    for a, b in zip(_NEAR, _FAR, strict=True):
        one, other = one * near + a, other * far + b
    result = wide * torch.where(w < 5, one, other)
    return torch.where(torch.abs(wide) == 1, wide * math.inf, result).to(x.dtype)


# ---- along an axis -----------------------------------------------------------------------------------------------


def _stable_sort(x: Any, *, stable: Any, dim: int = -1, descending: bool = False) -> Any:
    """Sorting is stable in any case."""
    return torch.sort(x, dim, descending)


def _kth_value(x: Any, k: int, axis: int = -1, keepdim: bool = False) -> Any:
    found = (one.narrow(axis, k - 1, 1) for one in torch.sort(x, axis)) if x.dim() else (x, torch.zeros_like(x).long())
    return tuple(one if keepdim or not x.dim() else one.squeeze(axis) for one in found)


def _nan_median(x: Any, axis: int = -1, keepdim: bool = False) -> Any:
    """The lower median of what is a number: NaN is sorted behind all numbers."""
    values, places = torch.sort(x, axis)
    count = torch.sum(torch.logical_not(torch.isnan(x)).long(), axis, keepdim=True)
    middle = torch.clamp(count - 1, min=0) // 2
    found = (torch.gather(one, axis, middle) for one in (values, places))
    return tuple(one if keepdim else one.squeeze(axis) for one in found)


def _scanned(values: tuple[Any, ...], axis: int, combine: Callable[..., tuple[Any, ...]]) -> tuple[Any, ...]:
    """The first element, the first two combined, the first three, …: in log₂ n steps, each over twice as many."""
    length, distance = values[0].shape[axis], 1
    while distance < length:
        before = tuple(one.narrow(axis, 0, length - distance) for one in values)
        behind = tuple(one.narrow(axis, distance, length - distance) for one in values)
        pairs = zip(values, combine(before, behind), strict=True)
        values = tuple(torch.cat([one.narrow(axis, 0, distance), new], axis) for one, new in pairs)
        distance *= 2
    return values


def _cumulative_extreme(goes_before: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """The extremes so far and the last places where they are; NaN is one.

    goes_before: whether one number is more extreme than another
    """

    def combine(before: tuple[Any, ...], behind: tuple[Any, ...]) -> tuple[Any, ...]:
        earlier = goes_before(before[0], behind[0])
        if before[0].is_floating_point():
            nan, later = torch.isnan(before[0]), torch.isnan(behind[0])
            earlier = torch.logical_and(torch.logical_or(earlier, nan), torch.logical_not(later))
        return tuple(torch.where(earlier, one, other) for one, other in zip(before, behind, strict=True))

    def run(x: Any, axis: int) -> Any:
        if not x.dim():
            return x.clone(), torch.zeros_like(x, dtype=torch.int64)
        axis %= x.dim()
        form = [-1 if one == axis else 1 for one in range(x.dim())]
        places = torch.arange(x.shape[axis]).reshape(form).expand(x.shape)
        return _scanned((x, places), axis, combine)

    return run


def _log_cum_sum_exp(x: Any, axis: int) -> Any:
    """Sums of exponentials so far, each by log(eᵃ + eᵇ)."""
    if not x.dim():
        return x.clone()
    return _scanned((x,), axis % x.dim(), lambda before, behind: (torch.logaddexp(before[0], behind[0]),))[0]


def _search_sorted(
    sequence: Any, x: Any, *, out_int32: bool = False, right: bool = False, side: Any = None, sorter: Any = None
) -> Any:
    """How many elements of a sorted row are less than each value (or not greater than it); NaN is behind all."""
    if sorter is not None:
        sequence = torch.gather(sequence, -1, sorter)
    values = x.unsqueeze(-1) if isinstance(x, torch.Tensor) else x
    rows = sequence if sequence.dim() == 1 else sequence.unsqueeze(-2)
    behind = rows > values if right or side == "right" else rows >= values
    return torch.sum(torch.logical_not(behind).long(), -1).to(torch.int32 if out_int32 else torch.int64)


# ---- parts replaced ----------------------------------------------------------------------------------------------


def _put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    """As of one row of all elements."""
    values = source.reshape(index.shape)
    return _aten.index_put.default(x.reshape(-1), [index], values, accumulate).reshape(x.shape)


def _masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    """The k-th element whose mask is true becomes the k-th of the source, which has at least as many."""
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    mask = mask.expand(shape)
    places = torch.cumsum(mask.reshape(-1).long(), 0) - 1
    places = torch.where(mask.reshape(-1), places, 0)
    return torch.where(mask, source.reshape(-1)[places].reshape(shape), x.expand(shape))


def _index_reduce(x: Any, axis: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Any:
    """Whole slices of the source, each at one index."""
    form = [-1 if one == axis % x.dim() else 1 for one in range(x.dim())]
    places = index.reshape(form).expand(source.shape)
    return _aten.scatter_reduce.two(x, axis, places, source, reduce, include_self=include_self)


# ---- products ----------------------------------------------------------------------------------------------------


def _trilinear(
    x: Any, y: Any, z: Any, expand_x: list[int], expand_y: list[int], expand_z: list[int], sums: list[int], *_: Any
) -> Any:
    """Σ x · y · z; torch.nn.Bilinear as one matrix product and one of each row."""
    if (expand_x, expand_y, expand_z, sums) == ([1, 3], [0], [1, 2], [2, 3]):
        return torch.sum(torch.einsum("ni,oij->noj", x, y) * z.unsqueeze(1), -1)
    for value in sorted(expand_x):
        x = x.unsqueeze(value)
    for value in sorted(expand_y):
        y = y.unsqueeze(value)
    for value in sorted(expand_z):
        z = z.unsqueeze(value)
    return torch.sum(x * y * z, sums)


def _dist(x: Any, y: Any, p: float = 2) -> Any:
    return torch.linalg.vector_norm(x - y, p)


OWN: dict[Any, Callable[..., Any]] = {
    _aten._cdist_forward.default: _cdist,
    _aten._trilinear.default: _trilinear,
    _aten.bincount.default: _bincount,
    _aten.copysign.Scalar: _copysign,
    _aten.copysign.Tensor: _copysign,
    _aten.cummax.default: _cumulative_extreme(torch.gt),
    _aten.cummin.default: _cumulative_extreme(torch.lt),
    _aten.dist.default: _dist,
    _aten.erfc.default: _erfc,
    _aten.erfinv.default: _erfinv,
    _aten.exp2.default: _exp2,
    _aten.fmax.default: _fmax,
    _aten.fmin.default: _fmin,
    _aten.hypot.default: _hypot,
    _aten.index_reduce.default: _index_reduce,
    _aten.kthvalue.default: _kth_value,
    _aten.ldexp.Tensor: _ldexp,
    _aten.lgamma.default: _lgamma,
    _aten.logcumsumexp.default: _log_cum_sum_exp,
    _aten.masked_scatter.default: _masked_scatter,
    _aten.nanmedian.dim: _nan_median,
    _aten.put.default: _put,
    _aten.rrelu_with_noise_functional.default: _rrelu,
    _aten.scatter_add.default: _scatter_add,
    _aten.searchsorted.Scalar: _search_sorted,
    _aten.searchsorted.Tensor: _search_sorted,
    _aten.sort.stable: _stable_sort,
}
