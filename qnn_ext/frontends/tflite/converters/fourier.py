"""RFFT2D and what reads its complex result: REAL, IMAG, COMPLEX_ABS.

A complex tensor is held as two float32 ones, its real and its imaginary part; operators that only change shapes move
each of them. The transform is a product with the matrix of the complex exponentials, in float64, as LiteRT computes it;
only what cancels to less than 10⁻¹⁵ of the input may differ from LiteRT's results, which add in another order.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from ....op.base import constant
from ...exponentials import exponentials
from ..assembly import ComplexValue
from ..node import Node
from ..registry import converter
from .padding import pad_constant
from .shape import block, check_elements


@converter("RFFT2D", max_version=1)
def convert_rfft2d(node: Node) -> ComplexValue:
    """y[k, l] = Σ x[m, n] exp(−2πi (k m / height + l n / width)) for l ≤ width / 2, over the last two dimensions of x,
    cut or padded with zeros to (height, width), which are powers of two."""
    shape, lengths = node.shape(0), node.integers(1)
    if len(shape) < 2 or 0 in shape or node.dtype(0) != "float32" or len(lengths) != 2:
        raise node.malformed(f"cannot transform {node.dtype(0)} of shape {shape} to lengths {lengths}")
    height, width = lengths
    if min(lengths) < 1 or width < 2 or any(length & (length - 1) for length in lengths):
        raise node.malformed(f"the lengths {lengths} must be powers of two, the second at least 2")
    axes = range(len(shape) - 2, len(shape))
    fitted = [min(size, length) for size, length in zip(shape[-2:], lengths, strict=True)]
    data = block(node, node.input(0), axes, (0, 0), fitted, (1, 1))
    missing = [(0, length - size) for size, length in zip(fitted, lengths, strict=True)]
    data = pad_constant(node, data, [(0, 0)] * (len(shape) - 2) + missing, 0.0)
    wide = node.emit(relax.op.astype(data, "float64"))
    real, imaginary = (
        _product(node, wide, constant(table)) for table in checked_exponentials(node, width, width // 2 + 1)
    )
    if height > 1:
        cosines, sines = map(constant, checked_exponentials(node, height, height))
        real, imaginary = (
            node.emit(relax.op.subtract(_product(node, cosines, real), _product(node, sines, imaginary))),
            node.emit(relax.op.add(_product(node, cosines, imaginary), _product(node, sines, real))),
        )
    # The sums are those for exp(+2πi …): their conjugates, with the sign of zero that LiteRT gives.
    conjugate = node.emit(relax.op.negative(imaginary))
    return ComplexValue(*(node.emit(relax.op.astype(part, "float32")) for part in (real, conjugate)))


def checked_exponentials(node: Node, length: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The matrices of a transform, if they are not too large."""
    check_elements(node, (2, length, count), "folded")
    return exponentials(length, count, node.label)


def _product(node: Node, first: relax.Expr, second: relax.Expr) -> relax.Expr:
    return node.emit(relax.op.matmul(first, second))


@converter("REAL", max_version=1)
def convert_real(node: Node) -> relax.Expr:
    """The real part."""
    return node.complex_input(0).real


@converter("IMAG", max_version=1)
def convert_imag(node: Node) -> relax.Expr:
    """The imaginary part."""
    return node.complex_input(0).imaginary


@converter("COMPLEX_ABS", max_version=1)
def convert_complex_abs(node: Node) -> relax.Expr:
    """√(re² + im²), in float64 as C's hypotf computes it."""
    parts = node.complex_input(0)
    wide = [node.emit(relax.op.astype(part, "float64")) for part in (parts.real, parts.imaginary)]
    squares = [node.emit(relax.op.multiply(part, part)) for part in wide]
    return relax.op.astype(node.emit(relax.op.sqrt(node.emit(relax.op.add(*squares)))), "float32")
