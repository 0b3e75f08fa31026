"""MatMulBnb4 against ONNX Runtime: the weights are equal, products of floats differ where they are added in another
order."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import ModelFormatError, UnsupportedOperatorError

from .single_op import MICROSOFT, compare, const, full_range, single_op

TOLERANCE = 1e-6  # of the largest result


def inputs_of(rng, rows, depth, columns, block, kind):
    count = depth * columns
    packed = full_range(rng, np.uint8, -(-count // 2))
    largest = rng.random(-(-count // block)).astype(np.float32)
    values = [rng.standard_normal((2, rows, depth)), const(packed, np.uint8), const(largest)]
    attributes = {"N": columns, "K": depth, "block_size": block, "quant_type": kind}
    return [values[0].astype(np.float32), *values[1:]], attributes


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("depth, columns, block", [(64, 24, 16), (32, 7, 64), (128, 5, 128)])
def test_products(kind, depth, columns, block, rng):
    """Blocks go across rows of B, and the last one may be shorter."""
    inputs, attributes = inputs_of(rng, 3, depth, columns, block, kind)
    module = compare("MatMulBnb4", inputs, [np.float32], TOLERANCE, domain=MICROSOFT, **attributes)
    assert [note.operator for note in module.notes] == ["MatMulBnb4"]


@pytest.mark.parametrize("kind", [0, 1])
def test_every_code(kind, rng):
    """Products with the identity are the weights: all are equal."""
    codes = np.uint8([16 * first + second for first in range(16) for second in range(16)])
    inputs = [np.eye(16, dtype=np.float32), const(codes, np.uint8), const(rng.random(16).astype(np.float32))]
    attributes = {"N": 32, "K": 16, "block_size": 32, "quant_type": kind}
    compare("MatMulBnb4", inputs, [np.float32], 0, domain=MICROSOFT, **attributes)


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"quant_type": 2}, ModelFormatError, "quant_type must be 0"),
        ({"block_size": 0}, ModelFormatError, "must be positive"),
        ({"K": 62}, ModelFormatError, "62 columns"),
        ({"N": 23}, ModelFormatError, "need 736 bytes and 92 scales, found 768 of uint8 and 96"),
        ({"transB": 0}, UnsupportedOperatorError, "not transposed"),
    ],
)
def test_refusals(change, error, message, rng):
    inputs, attributes = inputs_of(rng, 3, 64, 24, 16, 0)
    proto, _ = single_op("MatMulBnb4", inputs, [np.float32], domain=MICROSOFT, **{**attributes, **change})
    with pytest.raises(error, match=message):
        qnn_ext.from_onnx(proto)
