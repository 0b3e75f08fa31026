"""Kernels of qnn.resize_bilinear against the reference: fractions of few bits and of many, vectors of channels."""

from __future__ import annotations

import numpy as np
import pytest

from qnn_ext import op
from qnn_ext.op.resize import RESIZE_BILINEAR

from ..passes.modules import compile_and_run, module

SIZES = {
    "double": ((4, 5), (8, 10)),
    "odd": ((5, 7), (9, 3)),
    "one_pixel": ((1, 1), (6, 5)),
    "one_row": ((1, 5), (3, 20)),
    "corners": ((3, 5), (9, 17)),
    "eighth": ((3, 5), (17, 33)),
}
CONVENTIONS = {
    "plain": {},
    "corners": {"align_corners": True},
    "centers": {"half_pixel_centers": True},
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("size", SIZES)
def test_equals_the_reference(dtype, size, rng):
    (height, width), out = SIZES[size]
    info = np.iinfo(dtype)
    target = "haswell" if size == "odd" else "native"
    for channels in (3, 21) if dtype == "int8" else (21,):
        data = rng.integers(info.min, info.max + 1, (2, height, width, channels)).astype(dtype)
        data.reshape(-1)[: 3 * channels // 2], data.reshape(-1)[-channels:] = info.min, info.max
        for arithmetic in ("fixed", "float32", "xnnpack"):
            options = CONVENTIONS[list(CONVENTIONS)[(height + channels) % 3]] | {"arithmetic": arithmetic}
            mod = module([(data.shape, dtype)], lambda emit, x, o=options: emit(op.resize_bilinear(x, out, **o)))
            every = {"align_corners": False, "half_pixel_centers": False} | options
            expected = RESIZE_BILINEAR.reference(data, size=out, **every)
            assert np.array_equal(compile_and_run(mod, target, [data])[0], expected)
