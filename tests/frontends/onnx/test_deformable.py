"""Deformable convolution against ONNX Runtime."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext import ModelFormatError

from .single_op import compare, const, single_op

F32 = np.float32


def inputs(rng, image, filters, kernel, places, offset_groups=1, mask=False, bias=False, groups=1):
    batch, channels = image[:2]
    taps = int(np.prod(kernel))

    def normal(*shape):
        return rng.standard_normal(shape).astype(F32)

    return [
        normal(*image),
        const(normal(filters, channels // groups, *kernel)),
        normal(batch, 2 * offset_groups * taps, *places) * 2,
        const(normal(filters)) if bias else None,
        rng.random((batch, offset_groups * taps, *places)).astype(F32) if mask else None,
    ]


@pytest.mark.parametrize(
    "options, attributes, places",
    [
        ({}, {}, (5, 4)),
        ({"mask": True, "bias": True}, {"pads": [1, 1, 1, 1]}, (7, 6)),
        ({"offset_groups": 2, "mask": True}, {"pads": [1, 0, 2, 1], "strides": [2, 1]}, (4, 5)),
        ({"groups": 2, "offset_groups": 4, "bias": True}, {"dilations": [2, 1], "pads": [1, 1, 1, 1]}, (5, 6)),
    ],
)
def test_deformable_convolution(options, attributes, places, rng):
    """Offsets of several pixels, so that many taps are outside of the image."""
    given = inputs(rng, (2, 4, 7, 6), 6, (3, 3), places, **options)
    attributes = attributes | {
        "group": options.get("groups", 1),
        "offset_group": options.get("offset_groups", 1),
        "kernel_shape": [3, 3],
    }
    compare("DeformConv", given, [F32], 1e-5, opset=19, **attributes)


@pytest.mark.parametrize(
    "places, attributes, message",
    [
        ((5, 3), {}, "offsets of shape"),
        ((5, 4), {"offset_group": 3}, "do not fit"),
        ((5, 4), {"group": 2}, "do not fit"),
    ],
)
def test_what_does_not_fit_is_named(places, attributes, message, rng):
    proto, _ = single_op("DeformConv", inputs(rng, (1, 4, 7, 6), 6, (3, 3), places), [F32], opset=19, **attributes)
    with pytest.raises(ModelFormatError, match=f"DeformConv.*{message}"):
        qnn_ext.from_onnx(proto)
