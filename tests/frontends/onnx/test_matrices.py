"""Det and Inverse against ONNX Runtime: equal."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext import ModelFormatError, UnsupportedOperatorError

from .single_op import MICROSOFT, compare, single_op

F32 = np.float32
DOMAINS = {"Det": "", "Inverse": MICROSOFT}


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("op", DOMAINS)
def test_batches(op, size, rng):
    data = rng.standard_normal((2, 3, size, size)).astype(F32)
    data[0] = np.rint(data[0] * 4) + np.eye(size)[::-1] * 9  # equal elements, and pivots that have to be found
    compare(op, [data], [F32], domain=DOMAINS[op])


def test_a_matrix_of_eight_rows(rng):
    compare("Inverse", [rng.standard_normal((8, 8)).astype(F32)], [F32], domain=MICROSOFT)


def test_a_singular_matrix():
    compare("Det", [np.stack([np.ones((3, 3)), np.zeros((3, 3))]).astype(F32)], [F32])


@pytest.mark.parametrize("op", DOMAINS)
def test_shapes(op):
    for shape, error in (((2, 3), ModelFormatError), ((3,), ModelFormatError), ((9, 9), UnsupportedOperatorError)):
        proto, _ = single_op(op, [np.ones(shape, F32)], [F32], domain=DOMAINS[op])
        with pytest.raises(error, match="matrices"):
            qnn_ext.from_onnx(proto)
