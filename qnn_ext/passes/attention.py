"""Attention over a cache, written out in steps, becomes one operator where a kernel of its own computes it.

    matmul(softmax(where(0 … T − 1 ≤ positions, scale · matmul(query, keyᵀ), low)), value)  →  qnn.attention

with reshapes between the steps, as frontends write it: heads that share keys are rows of one matrix. Only in float32,
with a cache in float32, float16 or int8 with a scale for each row, and masks that show each query the keys up to its
own position, known only at run time: those of a static cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import IRModule, relax
from tvm.target import Target

from .. import op as qnn
from ..op.arguments import data_of, factors_of
from ..op.base import constant_value, shape_of
from ..op.compound import reshape
from ..op.relax_table import traits_of
from ..targets.features import backend_of
from ..topi_int8.generic.attention import lanes_of
from .bodies import every_binding
from .layout.forms import static_shape
from .matrix_moves import axes_of
from .rewrite import Emit, op_name, rewrite

LOWEST = np.finfo(np.float32).min


def cached_attention(mod: IRModule, target: Target) -> IRModule:
    """`mod` with such attention as `qnn.attention`."""
    backend = backend_of(target)
    if backend.grid or not backend.float_products:
        return mod
    known: dict[Any, relax.Expr] = {}  # variable -> what it is bound to

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        var = emit(expr)
        known[var] = expr
        found = _match(expr, known)
        if found is None or not lanes_of(target, shape_of(found.value)[-1]):
            return var
        return found.emitted(shape_of(expr), emit)

    if not any(op_name(binding.value) == "nn.softmax" for binding, _ in every_binding(mod)):
        return mod
    return rewrite(mod, rule)


@dataclass(frozen=True)
class _Found:
    """Operands of an attention: query (…, R, D), key (…, T, D), value (…, T, Dv), positions, whose elements have
    `shape`, (B or 1, S), and the scales of keys and values (…, T, 1), if they are integers."""

    query: relax.Expr
    key: relax.Expr
    value: relax.Expr
    positions: relax.Expr
    shape: tuple[int, int]
    scale: float
    scales: tuple[relax.Expr, ...]

    def emitted(self, shape: tuple[int, ...], emit: Emit) -> relax.Expr:
        query, key, value, *scales = (
            reshape(one, _with_batch(shape_of(one)), emit) for one in (self.query, self.key, self.value, *self.scales)
        )
        positions = reshape(self.positions, self.shape, emit)
        return reshape(emit(qnn.attention(query, key, value, positions, *scales, scale=self.scale)), shape, emit)


def _with_batch(shape: tuple[int, ...]) -> tuple[int, ...]:
    """(B, G, rows, columns) of (G, rows, columns), or itself."""
    return (1,) * (4 - len(shape)) + shape


def _match(expr: Any, known: Mapping[Any, Any]) -> _Found | None:
    if op_name(expr) != "matmul":
        return None
    shares, value = factors_of(expr)
    softmax = _behind_reshapes(shares, known)
    if op_name(softmax) != "nn.softmax" or int(softmax.attrs.axis) not in (-1, len(static_shape(softmax) or ()) - 1):
        return None
    masked = _behind_reshapes(data_of(softmax), known)
    if op_name(masked) != "where":
        return None
    mask, scores, low = masked.args
    number = constant_value(low)
    if number is None or number.size != 1 or float(number.reshape(())) not in (float(LOWEST), -np.inf):
        return None
    scaled = _scaled(known.get(scores), known)
    if scaled is None:
        return None
    query, key, scale = scaled
    shapes = [static_shape(one) for one in (query, key, value, shares, scores)]
    if None in shapes or any(str(one.ty.dtype) != "float32" for one in (query, key, value)):
        return None
    of_query, of_key, of_value, of_shares, of_scores = shapes
    fits = of_shares == (*of_query[:-1], of_key[-2]) and of_key[:-1] == of_value[:-1]  # type: ignore[index]
    positions = _positions(known.get(mask), of_scores, known)  # type: ignore[arg-type]
    if positions is None or not fits or not 2 < len(of_query) <= 4:  # type: ignore[arg-type]
        return None
    scales: tuple[relax.Expr, ...] = ()
    stored = [_stored(one, known) for one in (key, value)]
    if len({str(tensor.ty.dtype) for tensor, *_ in stored}) == 1:
        (key, *of_keys), (value, *of_values) = stored
        scales = (*of_keys, *of_values)
    return _Found(query, key, value, *positions, scale, scales)


def _behind_reshapes(expr: Any, known: Mapping[Any, Any]) -> Any:
    """What a variable is bound to, or the operand of the reshapes that it is bound to."""
    value = known.get(expr)
    while value is not None and op_name(value) and traits_of(value).reshapes:
        value = known.get(data_of(value))
    return value


def _stored(expr: relax.Expr, known: Mapping[Any, Any]) -> tuple[relax.Expr, ...]:
    """The float16 tensor that was made float32; or the integers and the scales of rows that were multiplied; or the
    expression itself."""
    value: Any = known.get(expr)
    if op_name(value) == "astype" and str(data_of(value).ty.dtype) == "float16":
        return (data_of(value),)
    if value is not None and op_name(value) == "multiply":
        cast, scale = known.get(value.args[0]), value.args[1]
        by_row = static_shape(scale) == (*(static_shape(expr) or ())[:-1], 1)
        if by_row and op_name(cast) == "astype" and str(data_of(cast).ty.dtype) == "int8":
            return data_of(cast), scale
    return (expr,)


def _scaled(expr: Any, known: Mapping[Any, Any]) -> tuple[relax.Expr, relax.Expr, float] | None:
    """query, key and scale of scale · matmul(query, keyᵀ)."""
    if op_name(expr) != "multiply":
        return None
    scale = constant_value(expr.args[1])
    product = _behind_reshapes(expr.args[0], known)
    if scale is None or scale.size != 1 or op_name(product) != "matmul":
        return None
    query, turned = factors_of(product)
    permuted = known.get(turned)
    if permuted is None or not traits_of(permuted).permutes:
        return None
    ndim = len(static_shape(turned) or ())
    if axes_of(permuted) != (*range(ndim - 2), ndim - 1, ndim - 2):
        return None
    return query, data_of(permuted), float(scale.reshape(()))


def _positions(
    mask: Any, shape: tuple[int, ...], known: Mapping[Any, Any]
) -> tuple[relax.Expr, tuple[int, int]] | None:
    """The positions of a mask 0 … T − 1 ≤ positions for scores (…, heads, S, T), and their shape (B or 1, S)."""
    if op_name(mask) != "less_equal":
        return None
    keys, positions = mask.args
    count, length = shape[-2:]
    numbers = constant_value(keys)
    if numbers is None or numbers.size != length or numbers.shape[-1:] != (length,):
        return None
    if not np.array_equal(numbers.reshape(-1), np.arange(length)) or str(positions.ty.dtype) not in ("int32", "int64"):
        return None
    found = (1,) * (len(shape) - len(shape_of(positions))) + tuple(shape_of(positions))
    batch = shape[0] if len(shape) == 4 else 1
    if found[-1] != 1 or found[-2] != count or any(size != 1 for size in found[1:-2] if len(shape) == 4):
        return None
    samples = found[0] if len(shape) == 4 else 1
    if samples not in (1, batch) or (len(shape) < 4 and any(size != 1 for size in found[:-2])):
        return None
    return positions, (samples, count)
