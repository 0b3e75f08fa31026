"""qnn.attention: attention over a key-value cache, of which each query sees the keys up to a position of its own."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..errors import ShapeError
from .base import Shape, TensorInfo, check_dtype, check_rank, define, export_to_script
from .traits import Data, Kind, Traits


def _infer(
    query: TensorInfo, key: TensorInfo, value: TensorInfo, positions: TensorInfo, *scales: TensorInfo, scale: float
) -> tuple[Shape, str]:
    check_dtype(query, "float32")
    check_dtype(key, "float32", "float16", "int8")
    check_dtype(value, key.dtype)
    for tensor in (query, key, value):
        check_rank(tensor, 4)
    check_dtype(positions, "int32", "int64")
    check_rank(positions, 2)
    batch, groups, rows, size = query.shape
    length = key.shape[2]
    if key.shape != (batch, groups, length, size) or value.shape[:3] != key.shape[:3] or length == 0:
        raise ShapeError(
            f"query (B, G, R, D), key (B, G, T, D) and value (B, G, T, Dv) with T > 0 do not fit: found {query.shape}, "
            f"{key.shape} and {value.shape}"
        )
    samples, count = positions.shape
    if samples not in (1, batch) or count == 0 or rows % count:
        raise ShapeError(
            f"positions must have shape (1 or {batch}, S) with {rows} rows of queries a multiple of S, found "
            f"{positions.shape}"
        )
    if len(scales) != (2 if key.dtype == "int8" else 0):
        raise ShapeError(f"keys and values of int8 have a scale for each row, others have none; found {len(scales)}")
    for tensor in scales:
        check_dtype(tensor, "float32")
        if tensor.shape != (batch, groups, length, 1):
            raise ShapeError(f"{tensor.name} must have shape {(batch, groups, length, 1)}, found {tensor.shape}")
    return (batch, groups, rows, value.shape[3]), "float32"


def _reference(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, positions: np.ndarray, *scales: np.ndarray, scale: float
) -> np.ndarray:
    if scales:
        key, value = (rows * of_rows.astype(np.float64) for rows, of_rows in zip((key, value), scales, strict=True))
    length, repeats = key.shape[2], query.shape[2] // positions.shape[1]
    last = np.tile(np.clip(positions, 0, length - 1), repeats)[:, None, :, None]
    with np.errstate(all="ignore"):
        exact = query.astype(np.float64) @ key.astype(np.float64).swapaxes(2, 3) * np.float32(scale)
        scores = exact.astype(np.float32).astype(np.float64)  # too large for float32, they are infinite
        scores = np.where(np.arange(length) <= last, scores, -np.inf)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares = shares / shares.sum(axis=-1, keepdims=True)
        seen = np.arange(length) <= last.max()  # a key that no query sees may be anything
        return (shares[..., seen] @ value[:, :, seen].astype(np.float64)).astype(np.float32)


ATTENTION = define(
    "attention",
    "query key value positions *scales",
    _infer,
    _reference,
    Traits(Kind.OTHER, data=(Data("query"), Data("key"), Data("value")), others=("positions",)),
    "attention over a cache",
)


def attention(
    query: relax.Expr, key: relax.Expr, value: relax.Expr, positions: relax.Expr, *scales: relax.Expr, scale: float
) -> relax.Call:
    """y[b, g, r] = Σ_k p[k] · value[b, g, k], where p is the softmax over k ≤ last of the scores

        scale · Σ_d query[b, g, r, d] · key[b, g, k, d]

    query:     (B, G, R, D) float32, of which row r is query r mod S: the rows of several heads that share keys
    key:       (B, G, T, D) float32, float16 or int8; value: (B, G, T, Dv) of the same dtype
    positions: (B, S) or (1, S) int32 or int64; last = clip(positions[b, r mod S], 0, T − 1)
    scales:    for int8, of keys and of values, (B, G, T, 1) float32: a row stands for its integers times its scale

    The reference rounds exact scores, and the exact result for these, once each. Kernels sum in float32, in an order of
    their own, so that a score is within (D + 4) · 2⁻²⁴ · scale · Σ |query · key| of it.

    Raises ShapeError. Source: com.microsoft GroupQueryAttention; torch's scaled_dot_product_attention over a static
    cache. `passes.attention` makes it of the steps that frontends write.
    """
    return ATTENTION.call(query, key, value, positions, *scales, scale=scale)


export_to_script(attention=attention)
