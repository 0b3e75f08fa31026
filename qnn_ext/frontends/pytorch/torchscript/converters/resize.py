"""Resizing of images: rows and columns are gathered by constant indices, and bilinear weights are constants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
from tvm import relax

from ..... import op as qnn
from .....op.base import constant
from ...common import import_torch
from ..formulas import AVX2_CHANNELS, VECTOR_CHANNELS, by_channels, f32, rounded_product
from ..node import Node
from ..registry import converter


def _pick(node: Node, value: relax.Expr, axis: int, indices: np.ndarray) -> relax.Expr:
    """value[..., indices, ...] along an axis."""
    return node.emit(relax.op.take(value, constant(indices.astype(np.int64)), axis=axis, mode="clip"))


@converter("aten::upsample_nearest1d", "aten::upsample_nearest2d", "aten::upsample_nearest3d",
           "aten::_upsample_nearest_exact2d")  # fmt: skip
def _nearest(node: Node) -> relax.Expr:
    """Only moves values. The source indices are PyTorch's own: they come from letting it resize an index image."""
    torch = import_torch()
    name = "input" if "input" in node.arguments else "self"
    value, size = node.expr(name), node.shape_of(name)
    for axis in range(2, len(size)):
        shape = [1] * len(size)
        shape[axis] = size[axis]
        ramp = torch.arange(size[axis], dtype=torch.float32).reshape(shape).expand(1, 1, *size[2:]).contiguous()
        resized = node.run([ramp, *list(node.arguments.values())[1:]])
        indices = resized.movedim(axis, 0).reshape(resized.shape[axis], -1)[:, 0].numpy()
        value = _pick(node, value, axis, indices)
    return value


@dataclass(frozen=True)
class _Line:
    """Both neighbours of every output coordinate along one axis, with their weights."""

    low: np.ndarray
    high: np.ndarray
    low_weight: np.ndarray
    high_weight: np.ndarray


def _positions(size: int, out: int, align_corners: bool, factor: float | None, fused: bool = False) -> np.ndarray:
    """PyTorch's area_pixel_compute_source_index in float32, before it is clipped; `fused`: rounded once."""
    steps = np.arange(out, dtype=f32)
    if align_corners:
        scale = f32(size - 1) / f32(out - 1) if out > 1 else f32(0)
        return np.asarray(scale * steps)
    scale = f32(1.0 / factor) if factor else f32(size) / f32(out)
    if fused:
        return (np.float64(scale) * (steps + f32(0.5)).astype(np.float64) - 0.5).astype(f32)
    return np.asarray(scale * (steps + f32(0.5)) - f32(0.5))


def _line(size: int, out: int, align_corners: bool, factor: float | None, fused: bool = False) -> _Line:
    position = np.maximum(_positions(size, out, align_corners, factor, fused), f32(0))
    low = np.minimum(position.astype(np.int64), size - 1)
    weight = (position - low).astype(f32)
    return _Line(low, np.minimum(low + 1, size - 1), f32(1) - weight, weight)


@converter("aten::upsample_bicubic2d")
def _bicubic(node: Node) -> relax.Expr:
    """Four columns, then four rows, weighted by Keys' cubic with a = −0.75, as in PyTorch."""
    name = "input" if "input" in node.arguments else "self"
    if node.qparams(name) is not None:
        raise node.unsupported("bicubic resizing of a quantized image; PyTorch has no kernel for it")
    node.note("resizing of a float image")
    value, corners = node.expr(name), bool(node["align_corners"])
    factors = node.get("scale_factors") or [node.get("scales_h"), node.get("scales_w")]
    for axis, factor in ((3, factors[1]), (2, factors[0])):
        size, out = node.shape_of(name)[axis], node.shape[axis]
        position = _positions(size, out, corners, factor)
        low = np.floor(position)
        total = None
        for tap, weights in enumerate(_cubic(position - low)):
            places = np.clip(low.astype(np.int64) + tap - 1, 0, size - 1)
            shape = (-1,) if axis == 3 else (-1, 1)
            part = node.emit(relax.op.multiply(_pick(node, value, axis, places), constant(weights.reshape(shape))))
            total = part if total is None else node.emit(relax.op.add(total, part))
        assert total is not None
        value = total
    return value


def _cubic(t: np.ndarray) -> list[np.ndarray]:
    """The weights of the four neighbours of a position t behind the second of them, float32."""
    a = f32(-0.75)

    def near(x: np.ndarray) -> np.ndarray:
        return np.asarray(((a + f32(2)) * x - (a + f32(3))) * x * x + f32(1), f32)

    def far(x: np.ndarray) -> np.ndarray:
        return np.asarray(((a * x - f32(5) * a) * x + f32(8) * a) * x - f32(4) * a, f32)

    return [far(t + f32(1)), near(t), near(f32(1) - t), far(f32(2) - t)]


@converter("aten::upsample_bilinear2d")
def _bilinear(node: Node) -> relax.Expr:
    """rint(h0·(w0·a + w1·b) + h1·(w0·c + w1·d)) of raw integers. The channels-last kernel fuses its additions, and for
    integers the positions as well; it subtracts the zero point before it adds it again."""
    factors = node.get("scale_factors") or [node.get("scales_h"), node.get("scales_w")]
    name = "input" if "input" in node.arguments else "self"
    corners, source = bool(node["align_corners"]), node.qparams(name)
    last = node[name].is_contiguous(memory_format=import_torch().channels_last)
    height, width = (
        _line(node.shape_of(name)[axis], node.shape[axis], corners, factor, last and source is not None)
        for axis, factor in zip((2, 3), factors, strict=True)
    )
    blended = partial(_blended, node, height, width)
    value = node.expr(name)
    if source is None:
        node.note("resizing of a float image")
        return blended(_fused if last and node.shape[1] >= VECTOR_CHANNELS else _plain, value)
    if not last:
        return qnn.quantize(blended(_plain, value), 1.0, 0, out_dtype=source.dtype)
    point = constant(f32(source.zero_point))

    def integers(blend: _Blend, part: relax.Expr) -> relax.Expr:
        moved = node.emit(relax.op.subtract(node.emit(blended(blend, part)), point))
        return qnn.quantize(node.emit(relax.op.add(moved, point)), 1.0, 0, out_dtype=source.dtype)

    return by_channels(node, value, AVX2_CHANNELS, partial(integers, _fused), partial(integers, _fused_first))


_Blend: TypeAlias = Callable[[Node, relax.Expr, relax.Expr, np.ndarray, np.ndarray], relax.Expr]


def _blended(node: Node, height: _Line, width: _Line, blend: _Blend, image: relax.Expr) -> relax.Expr:
    """What two blends of each row and one of these make of an image."""

    def corner(rows: np.ndarray, columns: np.ndarray) -> relax.Expr:
        value = _pick(node, _pick(node, image, 2, rows), 3, columns)
        return value if "float" in str(value.ty.dtype) else node.emit(qnn.dequantize(value, 1.0, 0))

    rows = [
        blend(node, corner(at, width.low), corner(at, width.high), width.low_weight, width.high_weight)
        for at in (height.low, height.high)
    ]
    return blend(node, rows[0], rows[1], height.low_weight.reshape(-1, 1), height.high_weight.reshape(-1, 1))


def _plain(node: Node, one: relax.Expr, two: relax.Expr, first: np.ndarray, second: np.ndarray) -> relax.Expr:
    left = rounded_product(node, one, constant(first))
    return node.emit(relax.op.add(left, rounded_product(node, two, constant(second))))


def _fused(node: Node, one: relax.Expr, two: relax.Expr, first: np.ndarray, second: np.ndarray) -> relax.Expr:
    """The second product and the sum are rounded together."""
    return node.emit(qnn.fma(two, constant(second), rounded_product(node, one, constant(first))))


def _fused_first(node: Node, one: relax.Expr, two: relax.Expr, first: np.ndarray, second: np.ndarray) -> relax.Expr:
    return _fused(node, two, one, second, first)
