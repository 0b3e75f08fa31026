"""Convolutions, linear layers, matrix products and attention, with weights as PT2E writes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..builder import Value
from .builder import GENERATORS, Pt2eBuilder, Ref

generates = GENERATORS.generates


def weight(b: Pt2eBuilder, shape: tuple[int, ...], axis: int) -> tuple[Value, float]:
    """A dequantized weight, and the median of its scales: per channel or per tensor, with zero points rarely other than
    0, as integers or (without `fold_quantize`) as floats followed by a quantize."""
    dtype = b.draw.pick(["int8", "int8", "int8", "uint8", "int16"])
    low, high = b.draw.pick([(-8, 7), (-127, 127), b.limits_of(dtype)]) if dtype == "int8" else b.limits_of(dtype)
    values = np.clip(b.draw.weights(dtype, shape), low, high)
    about = 0.01 if dtype != "int16" else 1e-4
    symmetric = b.draw.chance(0.8) and dtype != "uint8"
    kind = getattr(torch, dtype)
    if b.draw.chance(0.6):
        scales = np.array([b.draw.scale(about) for _ in range(shape[axis])], np.float32)
        zeros = [0 if symmetric else int(np.clip(b.draw.zero_point(dtype), low, high)) for _ in scales]
        parameters: list[Any] = [b.const(scales), b.const(zeros, "int64"), axis]
        form, middle = "per_channel", float(np.median(scales))
    else:
        middle = b.draw.scale(about)
        parameters = [middle, 0 if symmetric else int(np.clip(b.draw.zero_point(dtype), low, high))]
        form = "per_tensor"
    source = b.const(values)
    if b.draw.chance(0.2):
        reals = (b.draw.rng.normal(0, 40, shape) * middle).astype(np.float32)
        name = f"quantized_decomposed.quantize_{form}.default"
        source = Ref(b.call(name, b.const(reals), *parameters, low, high, kind).key)
    name = f"quantized_decomposed.dequantize_{form}.default"
    return b.mark(b.call(name, source, *parameters, low, high, kind)), middle


def bias(b: Pt2eBuilder, x: Value, scale: float, count: int) -> Value | Ref | None:
    """No bias, a float one, or the int32 bias that some quantizers produce."""
    manner = b.draw.between(0, 2)
    if manner == 0:
        return None
    unit = float(np.clip((x.scale or b.draw.unit) * scale, 1e-37, 1e37))
    if manner == 1:
        return b.const(b.draw.floats((count,)) * np.float32(unit * 99), "float32")
    values = b.const(b.draw.integers("int32", (count,), -(2**14), 2**14))
    limits = b.limits_of("int32")
    return b.call("quantized_decomposed.dequantize_per_tensor.default", values, unit, 0, *limits, torch.int32)


def source(b: Pt2eBuilder, rank: int | tuple[int, ...], **rest: Any) -> tuple[Value, Value]:
    """A float operand, and the tensor that it has its scale from."""
    if b.draw.chance(0.15):
        x = b.take(("float32",), rank, **rest)
        return x, x
    q = b.quantized(rank, **rest)
    return b.dequantize(q), q


def steady(b: Pt2eBuilder, *operands: Value) -> bool:
    """Whether the sum is an integer sum."""
    return all(value.key in b.integral for value in operands)


def windows(b: Pt2eBuilder, spatial: tuple[int, ...]) -> dict[str, list[int]]:
    """Kernel, stride, padding and dilation for which a window fits in every dimension."""
    found: dict[str, list[int]] = {"kernel": [], "stride": [], "padding": [], "dilation": []}
    for extent in spatial:
        k, s, d = b.draw.pick([1, 2, 3, 3, 5]), b.draw.pick([1, 1, 2, 3]), b.draw.pick([1, 1, 1, 2])
        p = b.draw.between(0, min(k - 1, 2))
        if extent + 2 * p <= (k - 1) * d:
            k, d, p = 1, 1, 0
        for name, number in zip(found, (k, s, p, d), strict=True):
            found[name].append(number)
    return found


def groups_of(b: Pt2eBuilder, channels: int) -> int:
    """The number of groups: one, a few, or depthwise."""
    return int(b.draw.pick([g for g in (1, 1, 1, 2, 3, channels) if channels % g == 0]))


def image(b: Pt2eBuilder, rank: int, batch: float = 0.9) -> tuple[Value, Value, tuple[int, ...], int]:
    """An operand for windows over `rank` dimensions, mostly with a batch; and its extents and channels."""
    x, q = source(b, rank + 2 if b.draw.chance(batch) else rank + 1)
    return x, q, x.shape[-rank:], x.shape[-rank - 1]


CONVOLUTIONS = tuple(f"aten.conv{rank}d.{kind}" for rank in (1, 2, 3) for kind in ("default", "padding"))


@generates(*CONVOLUTIONS)
def convolution(b: Pt2eBuilder, name: str) -> None:
    rank = int(name[len("aten.conv")])
    x, q, spatial, channels = image(b, rank)
    found, groups = windows(b, spatial), groups_of(b, channels)
    count = groups * max(1, b.draw.extent(9) // groups)
    w, scale = weight(b, (count, channels // groups, *found["kernel"]), 0)
    padding: Any = found["padding"]
    if name.endswith("padding"):
        padding = b.draw.pick(["same", "valid"]) if not any(found["padding"]) else "same"
        found["stride"] = [1] * rank if padding == "same" else found["stride"]
    added = bias(b, q, scale, count)
    options = (added, found["stride"], padding, found["dilation"], groups)
    b.finish(b.call(name, x, w, *options, steady=steady(b, x, w)))


TRANSPOSED = ("aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input")


def transposition(b: Pt2eBuilder, rank: int, batch: float = 0.9) -> tuple[Value, Value, Any, list[Any]]:
    """Operand, weight, bias, and stride, padding, output padding, dilation and groups."""
    x, q, spatial, channels = image(b, rank, batch)
    groups = groups_of(b, channels)
    kernel = [b.draw.between(1, 3) for _ in spatial]
    stride = [b.draw.between(1, 3) for _ in spatial]
    dilation = [b.draw.pick([1, 1, 2]) for _ in spatial]
    padding = [b.draw.between(0, (k - 1) * d) for k, d in zip(kernel, dilation, strict=True)]
    extra = [b.draw.between(0, s - 1) for s in stride]  # PyTorch allows up to max(stride, dilation) − 1, TVM does not
    sizes = zip(spatial, stride, padding, dilation, kernel, extra, strict=True)
    if any((n - 1) * s - 2 * p + d * (k - 1) + e + 1 < 1 for n, s, p, d, k, e in sizes):
        padding = [0] * rank
    each = max(1, b.draw.extent(6) // groups)
    w, scale = weight(b, (channels, each, *kernel), 1)
    return x, w, bias(b, q, scale, groups * each), [stride, padding, extra, dilation, groups]


@generates(*TRANSPOSED)
def transposed(b: Pt2eBuilder, name: str) -> None:
    x, w, added, (stride, padding, extra, dilation, groups) = transposition(b, int(name[len("aten.conv_transpose")]))
    b.finish(b.call(name, x, w, added, stride, padding, extra, groups, dilation, steady=steady(b, x, w)))


@generates("aten.convolution.default")
def any_convolution(b: Pt2eBuilder) -> None:
    """The form that decompositions turn the others into."""
    rank = b.draw.between(1, 3)
    if b.draw.chance(0.5):
        x, w, added, (stride, padding, extra, dilation, groups) = transposition(b, rank, batch=1.0)
        options = (added, stride, padding, dilation, True, extra, groups)
    else:
        x, q = source(b, rank + 2)
        found, count = windows(b, x.shape[2:]), b.draw.extent(9)
        w, scale = weight(b, (count, x.shape[1], *found["kernel"]), 0)
        options = (bias(b, q, scale, count), found["stride"], found["padding"], found["dilation"], False, [0] * rank, 1)
    b.finish(b.call("aten.convolution.default", x, w, *options, steady=steady(b, x, w)))


# ---- matrices ----------------------------------------------------------------------------------------------------


@generates("aten.linear.default")
def linear(b: Pt2eBuilder) -> None:
    x, q = source(b, (1, 2, 3, 4))
    units = b.draw.extent()
    w, scale = weight(b, (units, x.shape[-1]), 0)
    b.finish(b.call("aten.linear.default", x, w, bias(b, q, scale, units), steady=steady(b, x, w)))


def matrix(b: Pt2eBuilder, shape: tuple[int, ...]) -> Value:
    """The other operand of a product: a weight with a scale per column, or another activation."""
    if len(shape) == 2 and b.draw.chance(0.5):
        return weight(b, shape, 1)[0]
    return b.real(len(shape), shape=shape)


@generates("aten.matmul.default")
def matmul(b: Pt2eBuilder) -> None:
    """Of vectors, matrices and stacks of matrices, which broadcast."""
    x = b.real((1, 2, 3, 4))
    depth, columns = x.shape[-1], b.draw.extent()
    batch = tuple(b.draw.pick([n, n, 1]) for n in x.shape[:-2])
    y = matrix(b, b.draw.pick([(depth,), (depth, columns), (*batch, depth, columns)]))
    b.finish(b.call("aten.matmul.default", x, y, steady=steady(b, x, y)))


@generates("aten.mm.default", "aten.bmm.default", "aten.mv.default", "aten.dot.default")
def product(b: Pt2eBuilder, name: str) -> None:
    rank = {"mm": 2, "bmm": 3, "mv": 2, "dot": 1}[name.split(".")[1]]
    x = b.real(rank)
    y = matrix(b, (x.shape[-1],) if "v" in name or "dot" in name else (*x.shape[:-2], x.shape[-1], b.draw.extent()))
    b.finish(b.call(name, x, y, steady=steady(b, x, y)))


@generates("aten.addmm.default", "aten.baddbmm.default")
def addmm(b: Pt2eBuilder, name: str) -> None:
    """β·c + α·a b; α and β are mostly 1."""
    x = b.real(2 if name.startswith("aten.addmm") else 3)
    y = matrix(b, (*x.shape[:-2], x.shape[-1], b.draw.extent()))
    unit = np.float32(b.samples[x.key].abs().max().clamp(max=1e30))
    addend = b.const(b.draw.floats(b.draw.pick([y.shape[-1:], (*x.shape[:-1], y.shape[-1])])) * unit, "float32")
    options = {"beta": b.draw.pick([0.5, 2, 0]), "alpha": b.draw.pick([1, -0.75])} if b.draw.chance(0.3) else {}
    b.finish(b.call(name, addend, x, y, steady=steady(b, x, y), **options))


@generates("aten._int_mm.default")
def integer_matmul(b: Pt2eBuilder) -> None:
    """As torchao writes dynamic layers: int32 results, scaled afterwards."""
    x = b.fresh("int8", b.draw.shape(2))
    y = b.const(b.draw.weights("int8", (x.shape[1], b.draw.extent())))
    total = b.call("aten._int_mm.default", x, y)
    if b.draw.chance(0.7):
        real = b.call("aten.to.dtype", total, torch.float32)
        b.finish(b.call("aten.mul.Tensor", real, b.const(b.draw.scale(0.01) * b.draw.unit, "float32")))


@generates("aten.scaled_dot_product_attention.default")
def attention(b: Pt2eBuilder) -> None:
    batch, heads, rows, columns, depth = (b.draw.extent(5) for _ in range(5))
    q = b.real(4, shape=(batch, heads, rows, depth))
    k = b.real(4, shape=(batch, heads, columns, depth))
    v = b.real(4, shape=(batch, heads, columns, b.draw.extent(5)))
    mask = b.const(b.draw.rng.normal(0, 1, (rows, columns)), "float32") if b.draw.chance(0.4) else None
    causal = mask is None and b.draw.chance(0.3)
    scale = b.draw.pick([None, 0.25])
    name = "aten.scaled_dot_product_attention.default"
    b.finish(b.call(name, q, k, v, mask, 0.0, causal, scale=scale, steady=False))
