"""Pooling, resizing, normalization, reductions and softmax."""

from __future__ import annotations

import numpy as np

from tests.conformance.tflite_models.builder import Q

from ..rules import (
    APPROXIMATION,
    FLOAT_STEPS,
    FLOAT_SUMS,
    LARGEST_SUM,
    LAST_CHANNEL,
    NAN_LOST,
    NAN_POSITION,
    SHIFTED_OUT,
)
from .builder import MOST_MULTIPLIER, QUANTIZED, Builder, generates
from .elementwise import activation
from .products import windows

ANY = (*QUANTIZED, "float32")


@generates("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D")
def pool(b: Builder, name: str) -> None:
    x = b.take(("float32",) if name == "L2_POOL_2D" else ANY, rank=4)
    n, h, w, c = x.shape
    geometry, padding, size = windows(b, h, w)
    if padding == "VALID":  # pooling windows have no dilation
        size = [(e - k) // s + 1 for e, (k, s, _) in zip((h, w), geometry, strict=True)]
    (kh, sh, _), (kw, sw, _) = geometry
    exact = x.dtype != "float32" or name == "MAX_POOL_2D"
    accident = None if exact else LARGEST_SUM
    if x.dtype == "float32" and name == "MAX_POOL_2D" and b.may_be_nan:
        accident = NAN_LOST
    b.one(
        name, [x], (n, *size, c), x.dtype, x.q, padding=padding, strideH=sh, strideW=sw, filterHeight=kh,
        filterWidth=kw, act=activation(b) if name != "L2_POOL_2D" else "none", accident=accident,
        steady=exact,
    )  # fmt: skip


@generates("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")
def resize(b: Builder, name: str) -> None:
    x = b.take(ANY, rank=4)
    size = (b.draw.between(1, 11), b.draw.between(1, 11))
    corners = b.draw.chance(0.4)
    options = {"alignCorners": corners, "halfPixelCenters": b.draw.chance(0.5) and not corners}
    shape = (x.shape[0], *size, x.shape[3])
    exact = name != "RESIZE_BILINEAR" or x.dtype != "float32"
    b.one(name, [x, b.const(size, "int32")], shape, x.dtype, x.q, accident=None if exact else FLOAT_STEPS, **options)


@generates("L2_NORMALIZATION")
def l2_normalization(b: Builder) -> None:
    x = b.take(("int8", "uint8", "float32"), rank=(2, 3, 4))
    q = {"int8": Q(1 / 128, 0), "uint8": Q(1 / 128, 128)}.get(x.dtype)
    exact = x.dtype != "float32"
    b.one("L2_NORMALIZATION", [x], x.shape, x.dtype, q, accident=None if exact else FLOAT_SUMS, steady=exact)


@generates("LOCAL_RESPONSE_NORMALIZATION")
def local_response(b: Builder) -> None:
    x = b.take(("float32",), rank=4)
    b.one(
        "LOCAL_RESPONSE_NORMALIZATION", [x], x.shape, x.dtype, None, radius=b.draw.between(1, 4), bias=1.0, alpha=0.5,
        beta=0.5, accident=LAST_CHANNEL, steady=False,
    )  # fmt: skip


@generates("SOFTMAX")
def softmax(b: Builder) -> None:
    x = b.take(ANY, rank=(1, 2, 3, 4))
    q = {"int8": Q(1 / 256, -128), "uint8": Q(1 / 256, 0), "int16": Q(1 / 32768, 0)}.get(x.dtype)
    beta = b.draw.pick([1.0, 1.0, 0.5, 2.0])
    b.one("SOFTMAX", [x], x.shape, x.dtype, q, beta=beta, accident=APPROXIMATION if x.dtype == "float32" else None)


@generates("LOG_SOFTMAX")
def log_softmax(b: Builder) -> None:
    x = b.take(("int8", "uint8", "float32"), rank=(1, 2, 3, 4))
    q = {"int8": Q(16 / 256, 127), "uint8": Q(16 / 256, 255)}.get(x.dtype)
    exact = x.dtype != "float32"
    b.one("LOG_SOFTMAX", [x], x.shape, x.dtype, q, accident=None if exact else FLOAT_SUMS, steady=exact)


def axes_of(b: Builder, shape: tuple[int, ...]) -> tuple[list[int], bool, tuple[int, ...]]:
    """Axes to reduce, some negative, whether they are kept, and the result's shape."""
    chosen = [a for a in range(len(shape)) if b.draw.chance(0.5)] or [b.draw.between(0, len(shape) - 1)]
    keep = b.draw.chance(0.5)
    result = tuple(1 if a in chosen else n for a, n in enumerate(shape) if keep or a not in chosen)
    return [a - len(shape) if b.draw.chance(0.3) else a for a in chosen], keep, result


REDUCTIONS = {
    "MEAN": (*ANY, "int32", "int64"),
    "SUM": ("uint8", "float32", "int32", "int64"),
    "REDUCE_PROD": ("int8", "int16", "float32", "int32", "int64"),
    "REDUCE_MAX": (*ANY, "int32", "int64"),
    "REDUCE_MIN": (*ANY, "int32", "int64"),
}


@generates(*REDUCTIONS)
def reduction(b: Builder, name: str) -> None:
    x = b.take(REDUCTIONS[name], rank=(1, 2, 3, 4))
    axes, keep, shape = axes_of(b, x.shape)
    q = x.q
    if q is not None and not name.startswith("REDUCE_M") and b.draw.chance(0.6):
        q = b.q(x.dtype, 0.2 if name == "SUM" else 0.05)
    exact = x.dtype != "float32" or name.startswith("REDUCE_M")
    accident = None if exact else FLOAT_SUMS
    if x.dtype == "float32" and name in ("REDUCE_MAX", "REDUCE_MIN") and b.may_be_nan:
        accident = NAN_LOST
    if name == "REDUCE_PROD" and x.q is not None and q is not None:
        count = int(np.prod([x.shape[axis] for axis in axes]))
        each = np.log2(x.q.scale) - np.log2(q.scale) / max(1, count)  # from one multiplication
        accident = SHIFTED_OUT if each >= np.log2(MOST_MULTIPLIER) - 8 else None
    b.one(
        name,
        [x, b.const(axes, "int32")],
        shape,
        x.dtype,
        q,
        keepDims=keep,
        accident=accident,
        steady=exact,
    )


@generates("REDUCE_ANY", "REDUCE_ALL")
def reduce_bool(b: Builder, name: str) -> None:
    x = b.take(("bool",), rank=(1, 2, 3, 4))
    axes, keep, shape = axes_of(b, x.shape)
    b.one(name, [x, b.const(axes, "int32")], shape, "bool", None, keepDims=keep)


@generates("ARG_MAX", "ARG_MIN")
def arg(b: Builder, name: str) -> None:
    x = b.take(("int8", "uint8", "float32", "int32"), rank=(1, 2, 3, 4))
    axis = b.draw.between(0, len(x.shape) - 1)
    index = b.draw.pick(["int32", "int64"])
    shape = tuple(n for a, n in enumerate(x.shape) if a != axis)
    signed = axis - len(x.shape) if b.draw.chance(0.3) else axis
    accident = NAN_POSITION if x.dtype == "float32" and b.may_be_nan else None
    output_type = 2 if index == "int32" else 4
    b.one(name, [x, b.const(signed, "int32")], shape, index, None, outputType=output_type, accident=accident)


@generates("CUMSUM")
def cumsum(b: Builder) -> None:
    x = b.take(("float32", "int32", "int64"), rank=(1, 2, 3, 4))
    axis = b.draw.between(-len(x.shape), len(x.shape) - 1)
    options = {"exclusive": b.draw.chance(0.5), "reverse": b.draw.chance(0.5)}
    exact = x.dtype != "float32"
    b.one(
        "CUMSUM",
        [x, b.const(axis, "int32")],
        x.shape,
        x.dtype,
        None,
        accident=None if exact else FLOAT_SUMS,
        steady=exact,
        **options,
    )


@generates("TOPK_V2")
def topk(b: Builder) -> None:
    x = b.take((*ANY, "int32", "int64"), rank=(1, 2, 3, 4))
    k = b.draw.between(1, x.shape[-1])
    shape = (*x.shape[:-1], k)
    accident = NAN_POSITION if x.dtype == "float32" and b.may_be_nan else None
    b.emit("TOPK_V2", [x, b.const(k, "int32")], [shape, shape], [x.dtype, "int32"], [x.q, None], accident=accident)


@generates("ONE_HOT")
def one_hot(b: Builder) -> None:
    """Indices outside the depth are ordinary here: they give the off value. LiteRT first narrows 64 bits to 32."""
    indices = b.take(("int32",), rank=(1, 2, 3))
    depth = b.draw.between(1, 7)
    dtype = str(b.draw.pick(["float32", "int32", "int64", "int8", "uint8"]))
    axis = b.draw.between(-1, len(indices.shape))
    shape = list(indices.shape)
    shape.insert(len(shape) if axis == -1 else axis, depth)
    values = [b.const(np.asarray(v, dtype), q=None) for v in (7, 2)]
    b.one("ONE_HOT", [indices, b.const(depth, "int32"), *values], shape, dtype, None, axis=axis)
