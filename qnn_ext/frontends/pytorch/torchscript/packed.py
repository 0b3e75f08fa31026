"""Packed parameters: the weights of a quantized layer as PyTorch returns them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ....errors import UnsupportedOperatorError
from ..common import import_torch
from .values import array_of


@dataclass(frozen=True)
class Weights:
    """weight: integers, (O, I, …), transposed convolutions (I, O, …); scale float64 and zero_point int32: scalars or
    one per output channel; bias: float32 (O,) or None."""

    weight: np.ndarray
    scale: np.ndarray
    zero_point: np.ndarray
    bias: np.ndarray | None


@dataclass(frozen=True)
class ConvParameters:
    """A convolution's packed parameters; the tuples hold one number per spatial dimension."""

    weights: Weights
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    output_padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transpose: bool


def unpack_weights(weight: Any, bias: Any) -> Weights:
    """A quantized weight tensor with its bias. Raises UnsupportedOperatorError for unknown quantization schemes."""
    torch = import_torch()
    if not weight.is_quantized:
        raise UnsupportedOperatorError(f"weights of dtype {weight.dtype}, where quantized ones are expected")
    if weight.qscheme() == torch.per_tensor_affine:
        scale, zero = np.float64(weight.q_scale()), np.int32(weight.q_zero_point())
    elif weight.qscheme() == torch.per_channel_affine:
        scale = weight.q_per_channel_scales().double().numpy()
        zero = weight.q_per_channel_zero_points().numpy().astype(np.int32)
    else:
        raise UnsupportedOperatorError(
            f"weights of scheme {weight.qscheme()}; only per-tensor and per-channel are supported"
        )
    values = array_of(weight)
    if values.dtype not in (np.int8, np.uint8):
        raise UnsupportedOperatorError(f"weights of dtype {weight.dtype}; only qint8 is supported")
    return Weights(values, np.asarray(scale), np.asarray(zero), None if bias is None else array_of(bias))


def unpack(packed: Any) -> tuple[Any, Any]:
    """Weight and bias of packed parameters. Raises UnsupportedOperatorError where PyTorch does not give them back."""
    try:
        weight, bias = packed.unpack()
    except RuntimeError as error:
        raise UnsupportedOperatorError(
            f"PyTorch gives no weights back that it packed for this engine ({str(error).splitlines()[0]}); import the "
            'model from its file with engine="fbgemm"'
        ) from error
    return weight, bias


def unpack_linear(packed: Any) -> Weights:
    """The parameters of quantized::linear and its dynamic sibling."""
    return unpack_weights(*unpack(packed))


def unpack_conv(packed: Any) -> ConvParameters:
    """The parameters of quantized::conv*; 1-d ones are stored as 2-d with height 1."""
    weight, bias = unpack(packed)

    def numbers(values: Any) -> tuple[int, ...]:
        return tuple(int(value) for value in values)

    found = ConvParameters(
        unpack_weights(weight, bias),
        numbers(packed.stride()),
        numbers(packed.padding()),
        numbers(packed.output_padding()),
        numbers(packed.dilation()),
        int(packed.groups()),
        bool(packed.transpose()),
    )
    if found.transpose and weight.dim() == 4:
        _check_unpacking(weight, found)
    return found


def _check_unpacking(weight: Any, geometry: ConvParameters) -> None:
    """fbgemm unpacks some transposed convolutions in another layout than it packs them, with whatever was in memory:
    those with kernels of two rows and no padding, if the numbers of channels are multiples of eight.

    Raises UnsupportedOperatorError where weights of this shape do not come back as they were.
    """
    torch = import_torch()
    for seed in range(3):
        values = np.random.default_rng(seed).integers(-128, 128, tuple(weight.shape), np.int8)
        sample = torch._make_per_tensor_quantized_tensor(torch.from_numpy(values), 1.0, 0)
        options = (geometry.stride, geometry.padding, geometry.output_padding, geometry.dilation, geometry.groups)
        back, _ = torch.ops.quantized.conv_transpose2d_prepack(sample, None, *options).unpack()
        if not np.array_equal(array_of(back), values):
            raise UnsupportedOperatorError(
                f"PyTorch's engine fbgemm does not give back weights of shape {values.shape} that it packed, and "
                "writes wrong ones into files; quantize the model with another engine: "
                'torch.backends.quantized.engine = "x86", or "qnnpack"'
            )
