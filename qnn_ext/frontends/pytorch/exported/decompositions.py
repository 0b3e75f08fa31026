"""Operators written with others, which this frontend converts: where PyTorch has no decomposition for torch.export."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

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
    """x, and at index[i, …] along the axis source[i, …] added for each."""
    axis %= max(x.dim(), 1)
    places = [
        torch.arange(size).reshape([-1 if one == other else 1 for other in range(index.dim())])
        for one, size in enumerate(index.shape)
    ]
    places[axis : axis + 1] = [index]
    used = source[tuple(slice(0, size) for size in index.shape)]
    return _aten.index_put.default(x, places, used, True)


def _rrelu(x: Any, noise: Any, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, *_: Any) -> Any:
    """The mean slope. In training it is drawn, which is left as it is."""
    if training:
        return NotImplemented
    return torch.nn.functional.leaky_relu(x, (lower + upper) / 2), noise


OWN: dict[Any, Callable[..., Any]] = {
    _aten._cdist_forward.default: _cdist,
    _aten.copysign.Scalar: _copysign,
    _aten.copysign.Tensor: _copysign,
    _aten.erfc.default: _erfc,
    _aten.exp2.default: _exp2,
    _aten.fmax.default: _fmax,
    _aten.fmin.default: _fmin,
    _aten.hypot.default: _hypot,
    _aten.rrelu_with_noise_functional.default: _rrelu,
    _aten.scatter_add.default: _scatter_add,
}
