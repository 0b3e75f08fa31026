"""Batch normalization behind a convolution or linear layer, folded while both train.

The normalization computes s·(y - mean) + shift with s = weight / sqrt(variance + eps). At run time s is part of the
weight, so it is w·s that must be rounded. While the statistics move (Krishnamoorthi 2018, section 3.2.2, without the
correction):

    z = normalization(conv(x, fake_quantize(w·s)) / s + bias) + round(b) - b        s of the moving statistics

normalizes by the batch in training and by the moving statistics in evaluation, where it equals what `freeze` makes it:

    z = conv(x, fake_quantize(w·s)) + round(b)        b = s·(bias - mean) + shift
"""

from __future__ import annotations

import torch

_SMALLEST = 1e-6


def norm_scale(weight: torch.Tensor | None, variance: torch.Tensor, eps: float) -> torch.Tensor:
    """s = weight / sqrt(variance + eps)."""
    s = torch.rsqrt(variance + eps)
    return s if weight is None else weight * s


def moving_scale(weight: torch.Tensor | None, variance: torch.Tensor, eps: float) -> torch.Tensor:
    """s without gradient, and 1 where it is too small to divide by: such channels (weights that start at zero) train
    with their own weights rounded."""
    s = norm_scale(weight, variance, eps).detach()
    return torch.where(s.abs() < _SMALLEST, 1, s)


def scaled(w: torch.Tensor, s: torch.Tensor, groups: int, transposed: bool) -> torch.Tensor:
    """The weight of a product with each output channel multiplied by s."""
    if not transposed:
        return w * s.reshape(-1, *[1] * (w.ndim - 1))
    # (in, out / groups, ...): the inputs of a group belong to its outputs
    by_group = w.reshape(groups, -1, *w.shape[1:])
    return (by_group * s.reshape(groups, 1, -1, *[1] * (w.ndim - 2))).reshape(w.shape)


def unscaled(y: torch.Tensor, s: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """y / s + bias along the channels, axis 1."""
    along = (-1, *[1] * (y.ndim - 2))
    y = y / s.reshape(along)
    return y if bias is None else y + bias.reshape(along)


def folded_bias(
    bias: torch.Tensor | None, mean: torch.Tensor, shift: torch.Tensor | None, s: torch.Tensor
) -> torch.Tensor:
    """s·(bias - mean) + shift."""
    total = (-mean if bias is None else bias - mean) * s
    return total if shift is None else total + shift


def corrected(z: torch.Tensor, bias: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
    """z + (rounded - bias) along the channels, axis 1: what rounding the folded bias changes."""
    return z + (rounded - bias).detach().reshape(-1, *[1] * (z.ndim - 2))
