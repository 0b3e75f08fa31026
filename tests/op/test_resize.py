"""qnn.resize_bilinear: its arithmetics, against an independent computation in exact fractions."""

from fractions import Fraction

import numpy as np
import pytest
from tvm import relax

from qnn_ext.errors import ShapeError
from qnn_ext.numerics.taps import bilinear_taps
from qnn_ext.op import resize_bilinear
from qnn_ext.op.resize import RESIZE_BILINEAR

ARITHMETICS = [
    ("int8", "fixed"),
    ("int16", "fixed"),
    ("uint8", "float32"),
    ("int8", "xnnpack"),
    ("uint8", "xnnpack"),
]


def exact_rows(column, out, align_corners, half_pixel_centers):
    """Linear interpolation of one column in exact fractions."""
    size = len(column)
    result = []
    for y in range(out):
        position = Fraction(y * size, out)
        if align_corners and out > 1:
            position = Fraction(y * (size - 1), out - 1)
        if half_pixel_centers:
            position = Fraction((2 * y + 1) * size, 2 * out) - Fraction(1, 2)
        position = min(max(position, Fraction(0)), Fraction(size - 1))
        low = int(position)
        high = min(low + 1, size - 1)
        result.append(column[low] + (column[high] - column[low]) * (position - low))
    return result


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("align_corners", "half_pixel_centers"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize(("size", "out"), [(4, 8), (7, 3), (5, 5), (1, 6), (6, 1)])
@pytest.mark.parametrize(("dtype", "arithmetic"), ARITHMETICS)
def test_within_the_precision_of_the_positions(dtype, arithmetic, size, out, align_corners, half_pixel_centers, rng):
    info = np.iinfo(dtype)
    data = rng.integers(info.min, info.max + 1, size).astype(dtype)
    options = {"align_corners": align_corners, "half_pixel_centers": half_pixel_centers, "arithmetic": arithmetic}
    result = RESIZE_BILINEAR.reference(data.reshape(1, size, 1, 1), size=(out, 1), **options).reshape(-1)
    expected = exact_rows([int(v) for v in data], out, align_corners, half_pixel_centers)
    step = float(info.max - info.min) * {"fixed": size / 1024, "xnnpack": 1 / 4096, "float32": 4e-5}[arithmetic]
    assert all(abs(float(e) - float(r)) <= 0.5 + step for e, r in zip(expected, result, strict=True))


@pytest.mark.parametrize("arithmetic", ["fixed", "float32", "xnnpack"])
def test_taps_stay_inside_however_large_the_result(arithmetic):
    taps = bilinear_taps(3, 4000, False, False, arithmetic)
    assert 0 <= taps.lower.min() <= taps.upper.max() <= 2


def test_a_constant_image_stays_constant():
    for value in (-128, -3, 0, 127):
        data = np.full((1, 3, 5, 2), value, "int8")
        result = RESIZE_BILINEAR.reference(
            data, size=(7, 11), align_corners=False, half_pixel_centers=True, arithmetic="fixed"
        )
        assert (result == value).all()


def test_type_rule_refuses_contradictions():
    image = relax.Var("x", relax.TensorType((1, 4, 4, 3), "int8"))
    with pytest.raises(ShapeError, match="cannot both be set"):
        resize_bilinear(image, (8, 8), align_corners=True, half_pixel_centers=True)
    with pytest.raises(ShapeError, match="arithmetic"):
        resize_bilinear(relax.Var("x", relax.TensorType((1, 4, 4, 3), "float32")), (8, 8), arithmetic="fixed")
    with pytest.raises(ShapeError, match="cannot resize"):
        resize_bilinear(image, (0, 8))
