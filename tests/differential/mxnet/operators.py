"""Quantized operators as `quantize_model_mkldnn` writes them, with the operators that oneDNN fuses into them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..builder import Value
from ..rules import APPROXIMATION, INFINITE_SCALE, LOWEST_INT32, NARROWED, PADDED_ROWS, QUANTIZED_FLOATS, bounded
from .builder import GENERATORS, Edge, MXNetBuilder, Nodes, data, ends, largest_of

generates = GENERATORS.generates
TWO_EXTENTS = 40


@generates("_contrib_quantize_v2")
def quantize(b: MXNetBuilder) -> None:
    """On inputs, or on dequantized tensors; without a calibrated range it is found at run time."""
    x = b.take(("float32",), rank=(1, 2, 3, 4))
    if b.draw.chance(0.8):
        b.quantize(x)
        return
    dtype = "int8"  # without a range, MXNet's uint8 takes 0 … max only
    accident = b.undefined or INFINITE_SCALE
    b.node("_contrib_quantize_v2", [data(x)], [x], x.shape, dtype, 0.0, accident, out_type=dtype)


@generates("_contrib_dequantize")
def dequantize(b: MXNetBuilder) -> None:
    x = b.take_q((1, 2, 3, 4))
    b.node("_contrib_dequantize", [data(x), *ends(x)], [x], x.shape, "float32")


@generates("_contrib_quantized_flatten")
def flatten(b: MXNetBuilder) -> None:
    x = b.take_q()
    shape = (x.shape[0], int(np.prod(x.shape[1:])))
    b.node("_contrib_quantized_flatten", [data(x), *ends(x)], [x], shape, x.dtype, x.scale)


@generates("_contrib_quantized_act")
def relu(b: MXNetBuilder) -> None:
    """On int8 only: MXNet reads uint8 results with int8's scale."""
    x = b.take_q(dtypes=("int8",))
    b.node("_contrib_quantized_act", [data(x), *ends(x)], [x], x.shape, "int8", x.scale, act_type="relu")


@generates("_contrib_quantized_pooling")
def pooling(b: MXNetBuilder) -> None:
    x = b.take_q(rank=4)
    n, c, *image = x.shape
    kind, everything = b.draw.pick(["max", "avg"]), b.draw.chance(0.15)
    attrs: dict[str, Any] = {"pool_type": kind, "global_pool": everything, "kernel": (1, 1)}
    size = [1, 1]
    if not everything:
        kernel = [min(b.draw.pick([1, 2, 3, 4]), extent) for extent in image]
        pad = [b.draw.between(0, (k - 1) // 2) for k in kernel]
        stride = [b.draw.between(1, k) for k in kernel]
        full = b.draw.chance(0.4)
        spans = [e + 2 * p - k for e, p, k in zip(image, pad, kernel, strict=True)]
        size = [(-(-span // s) if full else span // s) + 1 for span, s in zip(spans, stride, strict=True)]
        attrs |= {"kernel": tuple(kernel), "stride": tuple(stride), "pad": tuple(pad)}
        attrs |= {"pooling_convention": "full" if full else "valid", "count_include_pad": b.draw.chance(0.5)}
    shape = (n, c, *size)
    b.node("_contrib_quantized_pooling", [data(x), *ends(x)], [x], shape, x.dtype, x.scale, **attrs)


@generates("_contrib_quantized_concat")
def concat(b: MXNetBuilder) -> None:
    """On two or three tensors; tensors of different dtypes need different ranges, or MXNet does not run it."""
    x = b.take_q()
    axis = b.draw.between(1, len(x.shape) - 1)
    parts = [x]
    for _ in range(b.draw.between(1, 2)):
        shape = tuple(b.draw.extent(TWO_EXTENTS) if a == axis else n for a, n in enumerate(x.shape))
        parts.append(b.quantized_input(shape))
    if b.draw.chance(0.2):
        parts[-1] = x
    inputs = [data(part) for part in parts] + [end for part in parts for end in ends(part)]
    shape = tuple(sum(p.shape[a] for p in parts) if a == axis else n for a, n in enumerate(x.shape))
    dtype = "int8" if any(part.dtype == "int8" for part in parts) else "uint8"
    largest = max(part.scale or 0.0 for part in parts)
    b.node("_contrib_quantized_concat", inputs, parts, shape, dtype, largest, num_args=len(parts), dim=axis)


def quantized_sum(b: MXNetBuilder, calibrated: bool) -> Value:
    """On two tensors of the same shape."""
    x = b.take_q()
    y = x if b.draw.chance(0.1) else b.quantized_input(x.shape)
    attrs = b.calibrated() if calibrated else {}
    both = x.dtype if x.dtype == y.dtype else "int8"
    dtype = both if calibrated else "int32"
    largest = largest_of(attrs) if calibrated else (x.scale or 0.0) + (y.scale or 0.0)
    inputs = [data(x), data(y), *ends(x), *ends(y)]
    return b.node("_contrib_quantized_elemwise_add", inputs, [x, y], x.shape, dtype, largest, **attrs)


@generates("_contrib_quantized_elemwise_add")
def add(b: MXNetBuilder) -> None:
    quantized_sum(b, calibrated=True)


@generates("_contrib_requantize")
def requantize(b: MXNetBuilder) -> None:
    """On an int32 sum; its range is calibrated, or found at run time."""
    x = quantized_sum(b, calibrated=False)
    attrs: dict[str, Any] = {}
    dtype = "int8"
    if b.draw.chance(0.7):
        dtype = b.draw.pick(["int8", "uint8"])
        attrs = b.calibrated(low_too=dtype == "int8")
        attrs["out_type"] = "auto" if dtype == "uint8" else "int8"
    largest, accident = (largest_of(attrs), None) if attrs else (0.0, LOWEST_INT32)
    b.node("_contrib_requantize", [data(x), *ends(x)], [x], x.shape, dtype, largest, accident, **attrs)


@generates("_contrib_quantized_embedding")
def embedding(b: MXNetBuilder) -> None:
    """Indices are floats, and out-of-range ones are clipped."""
    rows, width = b.draw.extent(), b.draw.extent()
    x = b.fresh("float32", b.draw.shape(b.draw.between(1, 3)))
    table = b.draw.weights("int8", (rows, width))
    limit = np.float32(b.limit())
    inputs = [data(x), b.param(table), b.param(np.array([-limit])), b.param(np.array([limit]))]
    attrs = {"input_dim": rows, "output_dim": width}
    shape = (*x.shape, width)
    accident = b.undefined
    b.node("_contrib_quantized_embedding", inputs, [x], shape, "int8", float(limit), accident, **attrs)


@generates("_contrib_quantized_batch_norm")
def batch_norm(b: MXNetBuilder) -> None:
    x = b.take_q(rank=4)
    vectors = statistics(b, x.shape[1])
    attrs: dict[str, Any] = b.calibrated()
    attrs |= {"eps": b.draw.pick([1e-5, 1e-3, 0.02]), "fix_gamma": "False"}
    inputs = [data(x), *vectors, *ends(x)]
    largest = largest_of(attrs)
    accident = NARROWED if max(x.scale or 0.0, 1.0) / largest >= 2.0**16 else None
    b.node("_contrib_quantized_batch_norm", inputs, [x], x.shape, "int8", largest, accident, **attrs)


def statistics(b: MXNetBuilder, channels: int) -> list[Edge]:
    """Gamma, beta, moving mean and variance."""
    rng = b.draw.rng
    gamma, beta, mean = rng.normal(1, 0.5, channels), rng.normal(0, 1, channels), rng.normal(0, 1, channels)
    arrays = [array.astype(np.float32) for array in (gamma, beta, mean, rng.uniform(0.1, 2, channels))]
    return [b.param(array, auxiliary=index > 1) for index, array in enumerate(arrays)]


# ---- fused products ----------------------------------------------------------------------------------------------

# what oneDNN fuses after a convolution: the operator, its attributes, whether results are never negative
BEHIND_CONVOLUTION: dict[str, tuple[str, dict[str, Any], bool]] = {
    "relu": ("Activation", {"act_type": "relu"}, True),
    "relu6": ("clip", {"a_min": 0.0, "a_max": 6.0}, True),
    "leaky": ("LeakyReLU", {"act_type": "leaky", "slope": 0.1}, False),
}
BEHIND_DENSE: dict[str, tuple[str, dict[str, Any], bool]] = {
    "relu": ("Activation", {"act_type": "relu"}, True),
    "abs": ("abs", {}, True),
    "square": ("square", {}, True),
    "clip": ("clip", {"a_min": 0.0, "a_max": 2.0}, True),
    "sigmoid": ("Activation", {"act_type": "sigmoid"}, True),
    "tanh": ("Activation", {"act_type": "tanh"}, False),
}


def float_weights(b: MXNetBuilder, shape: tuple[int, ...]) -> np.ndarray:
    """Weights that MXNet quantizes itself, with one scale or one per channel; some channels are all zero."""
    scales = np.array([b.draw.scale(0.1) for _ in range(shape[0])]) if b.draw.chance(0.7) else b.draw.scale(0.1)
    if b.draw.chance(0.1):
        scales = scales * (b.draw.rng.random(shape[0]) < 0.8)
    values = b.draw.rng.normal(0, 1, shape)
    return np.asarray(values * np.reshape(scales, (-1, *[1] * (len(shape) - 1))), np.float32)


@generates("_sg_mkldnn_conv")
def convolution(b: MXNetBuilder) -> None:
    """With or without bias, batch normalization, activation and residual sum; grouped, strided, dilated."""
    x = b.take_q(rank=4)
    n, c, *image = x.shape
    kernel = [b.draw.pick([1, 1, 2, 3]) for _ in image]
    pad = [max(b.draw.pick([0, 1]), -(-max(0, k - e) // 2)) for k, e in zip(kernel, image, strict=True)]
    stride = [b.draw.pick([1, 1, 2]) for _ in image]
    groups = b.draw.pick([g for g in (1, 1, 1, 2, c) if c % g == 0])
    channels = groups * max(1, b.draw.extent(16) // groups)
    size = [(e + 2 * p - k) // s + 1 for e, p, k, s in zip(image, pad, kernel, stride, strict=True)]
    shape = (n, channels, *size)
    weight = float_weights(b, (channels, c // groups, *kernel))
    spread = (x.scale or 1.0) * float(np.median(np.abs(weight))) * np.sqrt(weight[0].size)
    has_bias, has_norm, has_sum = b.draw.chance(0.7), b.draw.chance(0.3), b.draw.chance(0.3)
    total = b.quantized_input(shape) if has_sum else None
    inputs, sub = [data(x), b.param(weight)], Nodes()
    operands: list[Edge] = [[sub.add("null", "data0"), 0, 0], [sub.add("null", "weight0"), 0, 0]]
    if has_bias:
        inputs.append(b.param((b.draw.rng.normal(0, 1, channels) * spread).astype(np.float32)))
        operands.append([sub.add("null", "bias0"), 0, 0])
    window = {"kernel": tuple(kernel), "pad": tuple(pad), "stride": tuple(stride), "num_group": groups}
    last = sub.add("Convolution", "conv", operands, num_filter=channels, no_bias=not has_bias, **window)
    attrs: dict[str, Any] = {"quantized": "true", **b.calibrated(about=spread * 2 + 1e-30)}
    if has_norm:
        inputs += statistics(b, channels)
        vectors: list[Edge] = [[sub.add("null", f"norm{i}"), 0, 0] for i in range(4)]
        last = sub.add("BatchNorm", "norm", [[last, 0, 0], *vectors], 3, fix_gamma="False", eps=1e-3)
        attrs["with_bn"] = "true"
    last, positive = _activation_and_sum(b, sub, last, attrs, total)
    inputs += ([data(total)] if total else []) + ends(x) + (ends(total) if total else [])
    dtype = "uint8" if positive else "int8"
    sources = [x, total] if total else [x]
    heads = sub.json([[last, 0, 0]])
    padded = PADDED_ROWS if total and x.dtype == "uint8" and groups == 1 and pad[0] >= kernel[0] else None
    b.node("_sg_mkldnn_conv", inputs, sources, shape, dtype, largest_of(attrs), padded, subgraph=heads, **attrs)


def _activation_and_sum(
    b: MXNetBuilder, sub: Nodes, last: int, attrs: dict[str, Any], total: Value | None
) -> tuple[int, bool]:
    """[relu] → [sum] → [activation]; returns whether the result is never negative."""
    if total is not None:
        if b.draw.chance(0.3):
            last = sub.add("Activation", "early", [[last, 0, 0]], act_type="relu")
            attrs["with_act"] = "true"
        other = sub.add("null", "other")
        last = sub.add("elemwise_add", "sum", [[last, 0, 0], [other, 0, 0]])
        attrs["with_sum"] = "true"
    if b.draw.chance(0.5):
        return last, False
    kind = "relu" if total is not None else b.draw.pick(list(BEHIND_CONVOLUTION))
    op, options, positive = BEHIND_CONVOLUTION[kind]
    attrs["with_act" if total is None else "with_postsum_act"] = "true"
    return sub.add(op, "act", [[last, 0, 0]], **options), positive


@generates("_sg_mkldnn_fully_connected")
def dense(b: MXNetBuilder) -> None:
    """With scales per tensor or per channel, an elementwise operator or none, integer or float results."""
    x = b.take_q()
    flat = b.draw.chance(0.7)
    depth = int(np.prod(x.shape[1:])) if flat else x.shape[-1]
    units, has_bias, each = b.draw.extent(), b.draw.chance(0.7), b.draw.chance(0.4)
    weight = float_weights(b, (units, depth))
    spread = (x.scale or 1.0) * float(np.median(np.abs(weight))) * np.sqrt(depth)
    bias = (b.draw.rng.normal(0, 1, units) * spread).astype(np.float32)
    inputs = _dense_inputs(b, x, weight, bias if has_bias else None, each)
    sub = Nodes()
    names = ["data0", "weight0", "bias0"] if has_bias else ["data0", "weight0"]
    operands: list[Edge] = [[sub.add("null", name), 0, 0] for name in names]
    last = sub.add("FullyConnected", "dense", operands, num_hidden=units, no_bias=not has_bias, flatten=flat)
    attrs: dict[str, Any] = {"quantized": "True"}
    if each:
        attrs["channel_wise_quantize"] = "True"
    positive, approximated = False, False
    if b.draw.chance(0.5):
        kind = b.draw.pick(list(BEHIND_DENSE))
        op, options, positive = BEHIND_DENSE[kind]
        last = sub.add(op, "act", [[last, 0, 0]], **options)
        attrs["with_eltwise"] = "True"
        approximated = kind in ("sigmoid", "tanh")
    shape = (x.shape[0], units) if flat else (*x.shape[:-1], units)
    finish: Callable[..., Value] = lambda dtype, largest, rule: b.node(  # noqa: E731
        "_sg_mkldnn_fully_connected", inputs, [x], shape, dtype, largest, rule if approximated else None,
        subgraph=sub.json([[last, 0, 0]]), **attrs,
    )  # fmt: skip
    if b.draw.chance(0.3):
        attrs["enable_float_output"] = "True"
        finish("float32", None, bounded(APPROXIMATION, 2e-6, 2e-5))
    else:
        attrs |= b.calibrated(about=spread * 2 + 1e-30)
        finish("uint8" if positive else "int8", largest_of(attrs), QUANTIZED_FLOATS)


def _dense_inputs(b: MXNetBuilder, x: Value, weight: np.ndarray, bias: np.ndarray | None, each: bool) -> list[Edge]:
    """Float parameters with per-channel scales, else integers with their ranges."""
    if each:
        parameters = [b.param(weight)] + ([b.param(bias)] if bias is not None else [])
        return [data(x), *parameters, *ends(x)]
    arrays = [weight] if bias is None else [weight, bias]
    inputs, ranges = [data(x)], ends(x)
    for array in arrays:
        limit = np.float32(np.abs(array).max() or 1.0)
        steps = np.clip(np.rint(array * np.float32(127.5) / limit), -128, 127)
        inputs.append(b.param(steps.astype(np.int8)))
        ranges += [b.param(np.array([-limit])), b.param(np.array([limit]))]
    return inputs + ranges
