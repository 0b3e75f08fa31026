"""Every form of quantize and dequantize: per channel, parameters in tensors, parameters chosen at run time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .builder import GENERATORS, QUANTIZED, Pt2eBuilder
from .products import weight

generates = GENERATORS.generates
DECOMPOSED = "quantized_decomposed"


@generates(f"{DECOMPOSED}.quantize_per_tensor.default")
def quantize(b: Pt2eBuilder) -> None:
    """Mostly at the edge of the model; sometimes to int32."""
    x = b.take(("float32",))
    if b.draw.chance(0.8):
        b.quantize(x)
        return
    limits = b.limits_of("int32")
    scale, zero = b.observed(x, "int32", limits)
    name = f"{DECOMPOSED}.quantize_per_tensor.default"
    b.call(name, x, scale * 1e3, int(np.clip(zero, -99, 99)), *limits, torch.int32)


@generates(f"{DECOMPOSED}.dequantize_per_tensor.default")
def dequantize(b: Pt2eBuilder) -> None:
    """To float32, mostly for the result of a model."""
    b.dequantize(b.quantized())


@generates(f"{DECOMPOSED}.quantize_per_tensor.tensor", f"{DECOMPOSED}.quantize_per_tensor.tensor2",
           f"{DECOMPOSED}.dequantize_per_tensor.tensor", f"{DECOMPOSED}.dequantize_per_tensor.tensor2")  # fmt: skip
def with_tensors(b: Pt2eBuilder, name: str) -> None:
    """Scale and zero point (and limits) as tensors of one element, in float32 or float64."""
    kind = name.split(".")[2]
    if "dequantize" in name:
        x = b.quantized()
        assert x.scale is not None
        scale, zero, limits, dtype = x.scale, x.zero, b.limits_of(x.dtype), x.dtype
    else:
        x, dtype = b.real(), b.dtype(QUANTIZED)
        limits = b.limits_of(dtype)
        scale, zero = b.observed(x, dtype, limits)
    ends: list[Any] = [b.const(end, "int64") for end in limits] if kind == "tensor2" else list(limits)
    wide = b.draw.pick(["float32", "float64"])
    scale = float(np.dtype(wide).type(scale))
    parameters = (b.const(scale, wide), b.const(zero, "int64"), *ends, getattr(torch, dtype))
    result = b.call(name, x, *parameters, scale=scale, zero=zero)
    if "dequantize" in name:
        b.finish(b.mark(result), x)


@generates(f"{DECOMPOSED}.quantize_per_channel.default", f"{DECOMPOSED}.dequantize_per_channel.default")
def per_channel(b: Pt2eBuilder, name: str) -> None:
    """Of activations, quantized and straight back, so that no integers remain with scales unknown to later steps."""
    x = b.real()
    axis = b.draw.between(0, len(x.shape) - 1)
    dtype = b.dtype(("int8", "uint8", "int16"))
    limits = b.limits_of(dtype)
    pairs = [b.observed(x, dtype, limits) for _ in range(x.shape[axis])]
    scales, zeros = zip(*pairs, strict=True)
    wide = b.draw.pick(["float32", "float32", "float64"])
    parameters = (b.const(scales, wide), b.const(zeros, "int64"), axis, *limits, getattr(torch, dtype))
    q = b.call(f"{DECOMPOSED}.quantize_per_channel.default", x, *parameters)
    if "dequantize" in name or b.draw.chance(0.5):
        options = {"out_dtype": torch.float32} if wide == "float64" else {}
        b.finish(b.mark(b.call(f"{DECOMPOSED}.dequantize_per_channel.default", q, *parameters, **options)))


# ---- run-time parameters -----------------------------------------------------------------------------------------


@generates(f"{DECOMPOSED}.choose_qparams.tensor", f"{DECOMPOSED}.choose_qparams_symmetric.tensor")
def dynamic(b: Pt2eBuilder, name: str) -> None:
    """A linear layer with dynamic activations, or no layer."""
    x = b.take(("float32",), (2, 3)) if b.draw.chance(0.7) else b.real()
    dtype = b.draw.pick(["int8", "uint8"] if "symmetric" not in name else ["int8"])
    limits = b.draw.pick([b.limits_of(dtype), (-127, 127) if dtype == "int8" else (0, 127)])
    eps = b.draw.pick([2.0**-12, float(np.finfo(np.float32).eps)])
    scale, zero = b.results_of(name, x, *limits, eps, getattr(torch, dtype))
    parameters = (scale, zero, *limits, getattr(torch, dtype))
    q = b.call(f"{DECOMPOSED}.quantize_per_tensor.tensor", x, *parameters)
    behind(b, b.mark(b.call(f"{DECOMPOSED}.dequantize_per_tensor.tensor", q, *parameters)))


PER_TOKEN = ("choose_qparams_per_token_asymmetric", "_choose_qparams_per_token_asymmetric_impl",
             "choose_qparams_per_token", "quantize_per_token", "dequantize_per_token")  # fmt: skip


@generates(*(f"{DECOMPOSED}.{name}.default" for name in PER_TOKEN))
def per_token(b: Pt2eBuilder, name: str) -> None:
    """One scale per row, and mostly one zero point per row, with which products run in float."""
    chooser = name if "choose" in name else f"{DECOMPOSED}.choose_qparams_per_token_asymmetric.default"
    x = b.take(("float32",), (2, 3))
    scale, zero = b.results_of(chooser, x, torch.int8)
    parameters = (scale, zero, -128, 127, torch.int8)
    q = b.call(f"{DECOMPOSED}.quantize_per_token.default", x, *parameters)
    x = b.call(f"{DECOMPOSED}.dequantize_per_token.default", q, *parameters, torch.float32)
    behind(b, b.mark(x) if chooser.endswith("per_token.default") else x)


def behind(b: Pt2eBuilder, x: Any) -> None:
    """The layer that dynamic quantization is meant for."""
    if len(x.shape) > 1 and b.draw.chance(0.8):
        w, _ = weight(b, (b.draw.extent(), x.shape[-1]), 0)
        x = b.call("aten.linear.default", x, w, None, steady=x.key in b.integral)
    b.finish(x)


@generates(f"{DECOMPOSED}.dequantize_per_channel_group.default")
def groups(b: Pt2eBuilder) -> None:
    """4-bit weights with one scale per group of a row."""
    size, count, rows = b.draw.pick([2, 4, 8]), b.draw.between(1, 4), b.draw.extent()
    q = b.const(b.draw.integers("int8", (rows, size * count), -8, 7))
    scales = np.array([[b.draw.scale(0.05) for _ in range(count)] for _ in range(rows)], np.float32)
    zeros = b.const(np.zeros((rows, count)), "int32") if b.draw.chance(0.5) else None
    name = f"{DECOMPOSED}.dequantize_per_channel_group.default"
    w = b.call(name, q, b.const(scales), zeros, -8, 7, torch.int8, size, torch.float32)
    x = b.real(2, shape=(b.draw.extent(9), size * count))
    b.finish(b.call("aten.linear.default", x, w, None, steady=False))
