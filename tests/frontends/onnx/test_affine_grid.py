"""AffineGrid against ONNX Runtime."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext import ModelFormatError

from .single_op import compare, const, single_op

F32 = np.float32
CLOSE = 1e-6


@pytest.mark.parametrize("attributes", [{}, {"align_corners": 1}])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (1, 3, 1, 5), (1, 2, 3, 4, 2)])
def test_affine_grid(size, attributes, rng):
    spatial = len(size) - 2
    theta = rng.standard_normal((size[0], spatial, spatial + 1)).astype(F32)
    compare("AffineGrid", [theta, const(size, np.int64)], [F32], CLOSE, opset=20, **attributes)


@pytest.mark.parametrize("size", [(2, 3, 4, 5), (1, 3, 4), (1, 3, 4, 5, 6), (1, 3, 0, 5)])
def test_sizes_that_do_not_fit(size):
    proto, _ = single_op("AffineGrid", [np.ones((1, 2, 3), F32), const(size, np.int64)], [F32], opset=20)
    with pytest.raises(ModelFormatError, match=r"AffineGrid.*size"):
        qnn_ext.from_onnx(proto)
