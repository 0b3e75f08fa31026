"""STFT, DFT, the windows of HannWindow and its kin, and MelWeightMatrix.

A transform is a product with the matrix of the complex exponentials, which is made in float64 and rounded once; complex
tensors have their real and imaginary parts along the last axis, as ONNX stores them.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from ....limits import check_elements
from ....op.base import constant, normalize_axis, shape_of
from ...exponentials import exponentials
from ..node import Node
from ..registry import converter
from ..tensors import dtype_name

_FLOATS = ("float32", "float64")


def _exponentials(node: Node, length: int, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and −sin of 2π k n / length, each (n < length, k < bins)."""
    cosines, sines = exponentials(length, bins, node.label)
    return cosines, -sines


def _one(node: Node, index: int) -> int:
    """A constant input that is one integer."""
    values = node.integers(index)
    if len(values) != 1:
        raise node.malformed(f"input {index} ('{node.input_name(index)}') must be one integer, found {values}")
    return values[0]


# ---- STFT --------------------------------------------------------------------------------------------------------


@converter("STFT", since=17)
def stft(node: Node) -> relax.Expr:
    """y[b, t, k] = Σ window[n] · x[b, t · step + n] · exp(−2πi k n / length): a convolution with the exponentials,
    which have the window's factors. (batch, frames, bins, 2)"""
    shape, dtype = node.shape(0), node.dtype(0)
    if len(shape) not in (2, 3) or dtype not in _FLOATS:
        raise node.malformed(f"a signal of {dtype} {shape}; it must have shape (batch, length, 1)")
    if shape[2:] not in ((), (1,)):
        raise node.unsupported(f"a complex signal of shape {shape}")
    step = _one(node, 1)
    window = node.constant(2).astype(np.float64).reshape(-1) if node.has_input(2) else None
    length = _one(node, 3) if node.has_input(3) else len(window) if window is not None else 0
    window = np.ones(length) if window is None else window
    if step < 1 or not 0 < length <= shape[1] or len(window) > length:
        raise node.malformed(f"frames of {length}, every {step}, and {len(window)} factors for a signal of {shape[1]}")
    window = np.pad(window, [(length - len(window)) // 2, -(-(length - len(window)) // 2)])
    bins = length // 2 + 1 if node.attribute("onesided", 1) else length
    tables = _exponentials(node, length, bins)
    kernel = np.concatenate([(table * window[:, None]).T for table in tables]).astype(dtype)
    data = node.emit(relax.op.reshape(node.input(0), (shape[0], 1, shape[1])))
    product = node.emit(relax.op.nn.conv1d(data, constant(kernel[:, None, :]), strides=step))
    frames = shape_of(product)[2]
    parts = node.emit(relax.op.reshape(product, (shape[0], 2, bins, frames)))
    return relax.op.permute_dims(parts, [0, 3, 2, 1])


# ---- DFT ---------------------------------------------------------------------------------------------------------


@converter("DFT", since=17)
def dft(node: Node) -> relax.Expr:
    """The transform along the axis that an attribute names."""
    return _transformed(node, int(node.attribute("axis", 1)))


@converter("DFT", since=20)
def dft_by_inputs(node: Node) -> relax.Expr:
    """The transform along the axis of an input, the last but one without it."""
    return _transformed(node, _one(node, 2) if node.has_input(2) else -2)


def _transformed(node: Node, axis: int) -> relax.Expr:
    """y[k] = Σ x[n] exp(∓2πi k n / length), divided by the length if inverse; x is cut or padded with zeros to it."""
    shape, dtype = node.shape(0), node.dtype(0)
    if len(shape) < 2 or dtype not in _FLOATS or shape[-1] not in (1, 2) or 0 in shape:
        raise node.malformed(f"a signal of {dtype} {shape}; it must have one or two parts along its last axis")
    axis = normalize_axis(axis, len(shape))
    if axis == len(shape) - 1:
        raise node.malformed("its axis is that of real and imaginary parts")
    inverse, half = bool(node.attribute("inverse", 0)), bool(node.attribute("onesided", 0))
    if half and (shape[-1] == 2) != inverse:
        kind = "an inverse from one side has complex data" if inverse else "one side is of real data"
        raise node.malformed(f"{kind}, found {shape[-1]} parts along the last axis")
    ends = 2 * (shape[axis] - 1) if half and inverse else shape[axis]
    length = _one(node, 1) if node.has_input(1) else ends
    if length < 1:
        raise node.malformed(f"a length of {length}")
    if half and inverse:
        used, parts = shape[axis], 1
        matrix = _from_one_side(node, used, length).astype(dtype)
    else:
        used, parts = min(length, shape[axis]), 2
        cosines, sines = (table[:used] for table in _exponentials(node, length, length // 2 + 1 if half else length))
        if inverse:
            cosines, sines = cosines / length, -sines / length
        real, imaginary = cosines.astype(dtype), sines.astype(dtype)
        # the parts of y side by side: (Re x, Im x) · [[cos, sin], [−sin, cos]]
        rows = [np.stack([real, imaginary], -1), np.stack([-imaginary, real], -1)][: shape[-1]]
        matrix = np.stack(rows, 1).reshape(used * shape[-1], -1)
    others = [number for number in range(len(shape) - 1) if number != axis]
    cut = node.input(0)
    if used < shape[axis]:
        cut = node.emit(relax.op.strided_slice(cut, axes=[axis], begin=[0], end=[used]))
    moved = node.emit(relax.op.permute_dims(cut, [*others, axis, len(shape) - 1]))
    sizes = [shape[number] for number in others]
    flat = node.emit(relax.op.reshape(moved, (*sizes, used * shape[-1])))
    product = node.emit(relax.op.matmul(flat, constant(matrix)))
    outcome = node.emit(relax.op.reshape(product, (*sizes, matrix.shape[1] // parts, parts)))
    return relax.op.permute_dims(outcome, [int(place) for place in np.argsort([*others, axis, len(shape) - 1])])


def _from_one_side(node: Node, bins: int, length: int) -> np.ndarray:
    """The real signal of a spectrum's first half, as a matrix (bins · 2, length): the other half is its conjugate, so
    that all bins but those without a counterpart, of frequency 0 and half the rate, count twice."""
    if bins != length // 2 + 1:
        raise node.unsupported(
            f"an inverse from one side of {bins} bins to {length} values, which have {length // 2 + 1}: cut or pad the "
            "spectrum before"
        )
    cosines, sines = (table.T for table in _exponentials(node, length, bins))
    alone = np.arange(bins) * 2 % length == 0
    weights = np.where(alone, 1.0, 2.0)[:, None] / length
    return np.stack([cosines * weights, sines * weights], 1).reshape(bins * 2, length)


# ---- constants ---------------------------------------------------------------------------------------------------

_COSINES = {"HannWindow": (0.5, -0.5), "HammingWindow": (25 / 46, -21 / 46), "BlackmanWindow": (0.42, -0.5, 0.08)}


@converter(*_COSINES, since=17)
def window(node: Node) -> relax.Expr:
    """Σ cₘ cos(2π m n / N), where N is the size, or one less unless `periodic`."""
    size = _one(node, 0)
    check_elements((size,), node.label, "folded")
    turns = 2 * np.pi * np.arange(size) / max(size if node.attribute("periodic", 1) else size - 1, 1)
    values = sum(factor * np.cos(number * turns) for number, factor in enumerate(_COSINES[node.op_type]))
    return constant(np.asarray(values, dtype_name(node.attribute("output_datatype", 1))))


@converter("MelWeightMatrix", since=17)
def mel_weight_matrix(node: Node) -> relax.Expr:
    """Triangles over the bins of a spectrum, evenly spaced in mel: (bins, triangles). Edges are whole bins, as in
    ONNX's definition."""
    count, length, rate = (_one(node, index) for index in range(3))
    low, high = (float(node.constant(index).reshape(-1)[0]) for index in (3, 4))
    bins = length // 2 + 1
    check_elements((bins, count), node.label, "folded")
    if min(count, length, rate) < 1 or not 0 <= low < high:
        raise node.malformed(f"{count} triangles over {length} values at {rate} Hz, from {low} to {high} Hz")
    mels = 2595 * np.log10(1 + np.array([low, high]) / 700)
    centres = 700 * (10 ** ((np.arange(count + 2) * (mels[1] - mels[0]) / (count + 2) + mels[0]) / 2595) - 1)
    edges = np.floor((length + 1) * centres / rate).astype(np.int64)
    weights = np.zeros((bins, count))
    for number in range(count):
        left, centre, right = edges[number : number + 3]
        rising, falling = np.arange(left, min(centre + 1, bins)), np.arange(centre, min(right, bins))
        weights[rising, number] = (rising - left) / (centre - left) if centre > left else 1.0
        weights[falling, number] = (right - falling) / max(right - centre, 1)
    return constant(weights.astype(dtype_name(node.attribute("output_datatype", 1))))
