"""TRANSPOSE_CONV as one ordinary convolution per output phase, all phases at once, followed by a shuffle.

The derivation is in numerics/phases.py.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from ....numerics.phases import phase_weight, tap_counts
from ....op.base import constant
from ....qparams import QParams
from ..node import Node, shape_of
from ..registry import converter
from .accumulators import accumulator_dtype, bias_of, finish_float, product_kind, reshaped, weight_qparams
from .convolution import (
    Geometry,
    Pair,
    check_rank4,
    float_convolution,
    hybrid_convolution,
    integer_convolution,
    strides_and_dilation,
    window_padding,
)
from .shape import check_elements

SHAPE, WEIGHT, DATA, BIAS = range(4)


@converter("TRANSPOSE_CONV", max_version=5)
def convert_transpose_conv(node: Node) -> relax.Expr:
    """Inputs: the output's shape (constant), weights OHWI, activations NHWC, optional bias."""
    check_rank4(node, WEIGHT, DATA)
    weight, phases, size = node.constant(WEIGHT), _phases(node), _output_size(node)
    if weight.shape[3] != node.shape(DATA)[3]:
        raise node.malformed(f"weights of shape {weight.shape} do not match {node.shape(DATA)[3]} input channels")
    # the padding of the convolution being transposed
    top, left, _, _ = window_padding(node, size, weight.shape[1:3], phases, (1, 1))
    kind = product_kind(node, DATA, WEIGHT)
    zero_point = int(node.qparams(WEIGHT).zero_point.reshape(-1)[0]) if kind == "integer" else 0
    taps = tap_counts(weight.shape[1:3], phases)
    rows = ((size[0] - 1 + top) // phases[0] + 1, (size[1] - 1 + left) // phases[1] + 1)
    enlarged = (weight.shape[0], phases[0] * taps[0], phases[1] * taps[1], weight.shape[3])
    check_elements(node, enlarged, "folded", exempt=4 * weight.size)
    data, padding = _fit(node, node.input(DATA), rows, taps)
    result = _convolve(node, kind, data, phase_weight(weight, phases, zero_point), padding, phases)
    return _interleave(node, node.emit(result), phases, (top, left), size)


def _phases(node: Node) -> Pair:
    return strides_and_dilation(node)[0]


def _output_size(node: Node) -> Pair:
    """Height and width from the shape input, whose batch size comes from the file and may be stale."""
    shape = node.integers(SHAPE)
    if len(shape) != 4 or min(shape) < 1 or shape[3] != node.shape(WEIGHT)[0]:
        raise node.malformed(f"output shape {shape} does not match weights of shape {node.shape(WEIGHT)}")
    return shape[1], shape[2]


def _fit(node: Node, data: relax.Expr, rows: Pair, taps: Pair) -> tuple[relax.Expr, tuple[int, int, int, int]]:
    """The activations cropped to what outputs read, and the padding that makes the convolution yield `rows`."""
    height, width = shape_of(data)[1:3]
    if height > rows[0] or width > rows[1]:
        end = [min(height, rows[0]), min(width, rows[1])]
        data = node.emit(relax.op.strided_slice(data, axes=[1, 2], begin=[0, 0], end=end))
    height, width = shape_of(data)[1:3]
    return data, (taps[0] - 1, taps[1] - 1, rows[0] - height, rows[1] - width)


def _convolve(
    node: Node, kind: str, data: relax.Expr, weight: np.ndarray, padding: tuple[int, int, int, int], phases: Pair
) -> relax.Expr:
    """The convolution, with per-output-channel parameters repeated for every phase."""
    repeats, geometry = phases[0] * phases[1], Geometry(padding=padding)
    bias = bias_of(node, BIAS, weight.shape[0] // repeats)
    if bias is not None and repeats > 1:
        bias = node.emit(relax.op.tile(bias, (repeats,)))
    kernel = constant(weight)
    if kind == "float":
        return finish_float(node, float_convolution(data, kernel, geometry), bias)
    qparams = _repeated(weight_qparams(node, WEIGHT, 0), repeats)
    if kind == "hybrid":
        return hybrid_convolution(node, data, kernel, qparams, bias, geometry, asymmetric=True)
    source = node.qparams(DATA)
    dtype = accumulator_dtype(node, source.dtype, BIAS)
    return integer_convolution(node, (data, source), (kernel, qparams), bias, geometry, dtype)


def _repeated(qparams: QParams, repeats: int) -> QParams:
    if not qparams.per_channel:
        return qparams
    return QParams(np.tile(qparams.scale, repeats), np.tile(qparams.zero_point, repeats), qparams.dtype, axis=0)


def _interleave(node: Node, phased: relax.Expr, phases: Pair, offset: Pair, size: Pair) -> relax.Expr:
    """(N, Y_h, Y_w, s_h·s_w·O) -> (N, size, O): phase (r_h, r_w) goes to rows s·Y + r, cropped to the output."""
    batch, height, width, channels = shape_of(phased)
    (sh, sw), out = phases, channels // (phases[0] * phases[1])
    if phases != (1, 1):
        split = reshaped(node, phased, (batch, height, width, sh, sw, out))
        shuffled = node.emit(relax.op.permute_dims(split, [0, 1, 3, 2, 4, 5]))
        phased = reshaped(node, shuffled, (batch, height * sh, width * sw, out))
    if offset == (0, 0) and size == (height * sh, width * sw):
        return phased
    end = [begin + extent for begin, extent in zip(offset, size, strict=True)]
    return relax.op.strided_slice(phased, axes=[1, 2], begin=list(offset), end=end)
