"""Ranges to scales and zero points, and the module that observes a tensor and rounds it as the integers will."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

SMALLEST_SCALE = 2.0**-23  # of a tensor that is always zero; its reciprocal and int32 biases stay finite


@dataclass(frozen=True)
class Scheme:
    """The integers that stand for a tensor: q = clip(rint(x / scale) + zero_point, low, high).

    unsigned: of an affine scheme, whether q starts at 0; else the range is that of two's complement
    """

    bits: int
    symmetric: bool
    power_of_two: bool
    unsigned: bool

    @property
    def limits(self) -> tuple[int, int]:
        """Smallest and largest integer."""
        half = 2 ** (self.bits - 1)
        if self.symmetric:
            return 1 - half, half - 1
        return (0, 2 * half - 1) if self.unsigned else (-half, half - 1)

    @property
    def dtype(self) -> torch.dtype:
        """The 8-bit dtype that holds them."""
        return torch.uint8 if self.unsigned and not self.symmetric else torch.int8

    def parameters(self, minimum: torch.Tensor, maximum: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale (float32) and zero point (int32) of a range, elementwise. Zero is always represented exactly.

        symmetric:     scale = max(|min|, |max|) / (2^(b-1) - 1)
        power of two:  scale = 2^(floor(log2 max(|min|, |max|)) - (b - 2))
        affine:        scale = (max - min) / (2^b - 1),  zero point = low - rint(min / scale)
        """
        low, high = self.limits
        if self.symmetric:
            largest = torch.maximum(minimum.abs(), maximum.abs())
            if self.power_of_two:
                # largest / mantissa is 2^(floor(log2) + 1), exactly
                mantissa = torch.frexp(largest).mantissa
                scale = torch.where(largest > 0, largest / mantissa, 0) * 2.0 ** (1 - self.bits)
            else:
                scale = largest / high
            return scale.clamp(min=SMALLEST_SCALE), torch.zeros_like(scale, dtype=torch.int32)
        minimum, maximum = minimum.clamp(max=0), maximum.clamp(min=0)
        scale = ((maximum - minimum) / (high - low)).clamp(min=SMALLEST_SCALE)
        zero_point = (low - torch.round(minimum / scale)).clamp(low, high)
        return scale, zero_point.to(torch.int32)


class FakeQuantize(nn.Module):
    """Rounds a tensor to the values that its integers stand for, and observes its range.

    forward: (clip(rint(x / scale) + zero_point, low, high) - zero_point) · scale. The gradient passes straight through
    where q is not clipped, and is zero elsewhere. Tensors pass unchanged until a range is known.

    axis:     the channels that have a scale of their own, of a tensor with `channels` of them; None for one scale
    averaging_constant: weight of a new batch in the range, None for the extremes of all batches
    current:  the range is that of the tensor just now, in training and in evaluation: weights
    """

    minimum: torch.Tensor
    maximum: torch.Tensor

    def __init__(
        self,
        scheme: Scheme,
        axis: int | None = None,
        channels: int = 1,
        averaging_constant: float | None = None,
        current: bool = False,
    ) -> None:
        super().__init__()
        self.scheme, self.axis, self.averaging_constant, self.current = scheme, axis, averaging_constant, current
        shape = () if axis is None else (channels,)
        self.register_buffer("minimum", torch.full(shape, torch.inf))
        self.register_buffer("maximum", torch.full(shape, -torch.inf))
        self.frozen = False
        self._observed = False

    @property
    def observed(self) -> bool:
        """Whether the range is known."""
        if not self._observed:
            self._observed = bool((self.minimum <= self.maximum).all())
        return self._observed

    def parameters_of_range(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale and zero point of the range observed."""
        return self.scheme.parameters(self.minimum, self.maximum)

    def observe(self, x: torch.Tensor) -> None:
        """Take the range of a tensor into account."""
        others = [axis for axis in range(x.ndim) if axis != self.axis]
        x = x.detach().float()
        least, greatest = (x.amin(others), x.amax(others)) if others else (x, x)
        if not self.current:
            if self.averaging_constant is not None:
                first = torch.isinf(self.minimum) & torch.isinf(self.maximum)
                least = torch.where(first, least, torch.lerp(self.minimum, least, self.averaging_constant))
                greatest = torch.where(first, greatest, torch.lerp(self.maximum, greatest, self.averaging_constant))
            else:
                least, greatest = torch.minimum(least, self.minimum), torch.maximum(greatest, self.maximum)
        self.minimum.copy_(least)
        self.maximum.copy_(greatest)
        self._observed = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The rounded tensor, in the dtype of x."""
        if not self.frozen and (self.training or self.current):
            self.observe(x)
        if not self.observed:
            return x
        scale, zero_point = self.parameters_of_range()
        low, high = self.scheme.limits
        if self.axis is None:
            return torch.fake_quantize_per_tensor_affine(x.float(), scale, zero_point, low, high).to(x.dtype)
        return torch.fake_quantize_per_channel_affine(x.float(), scale, zero_point, self.axis, low, high).to(x.dtype)

    def extra_repr(self) -> str:
        """The scheme, and the axis of channels."""
        return f"{self.scheme}, axis={self.axis}"


class FakeBias(nn.Module):
    """Rounds a bias to int32 in units of the product of the scales of data and weight, as runtimes add it to sums.

    forward: rint(bias / scale) · scale, with the bias's gradient; unchanged where int32 cannot hold it.
    """

    def __init__(self, data: FakeQuantize, weight: FakeQuantize) -> None:
        super().__init__()
        self._quantizers = (data, weight)  # in a tuple: they are no modules of this one

    @property
    def scale(self) -> torch.Tensor:
        """Of the whole bias, or of each channel."""
        data, weight = (quantizer.parameters_of_range()[0] for quantizer in self._quantizers)
        return data * weight

    def integers(self, bias: torch.Tensor) -> torch.Tensor | None:
        """The bias as int32; None if it does not fit."""
        integers = torch.round(bias / self.scale)
        return integers.to(torch.int32) if bool(self._fits(integers)) else None

    def forward(self, bias: torch.Tensor) -> torch.Tensor:
        """The rounded bias."""
        if not all(quantizer.observed for quantizer in self._quantizers):
            return bias
        with torch.no_grad():
            scale = self.scale
            integers = torch.round(bias / scale)
            error = torch.where(self._fits(integers), integers * scale - bias, 0)
        return bias + error

    def _fits(self, integers: torch.Tensor) -> torch.Tensor:
        return (integers.abs() < 2.0**31).all()
