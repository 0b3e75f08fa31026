"""qnn.concatenate: copies, requantized parts, TFLite's reference kernel, errors."""

import numpy as np
import pytest

from qnn_ext import op
from qnn_ext.errors import ShapeError
from qnn_ext.op.requantize import requantize_array
from qnn_ext.qparams import QParams

from .helpers import evaluate, random_integers, var


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_same_params_copies(rng, axis):
    x, y = random_integers(rng, (2, 3, 4), "uint8"), random_integers(rng, (2, 3, 4), "uint8")
    result = evaluate(op.concatenate([x, y], [0.5, 0.5], [7, 7], 0.5, 7, axis=axis, out_dtype="uint8"))
    np.testing.assert_array_equal(result, np.concatenate([x, y], axis))


@pytest.mark.parametrize("rounding", ["TONEAREST_EVEN", "UPWARD", "TONEAREST"])
def test_requantizes_each_input(rng, rounding):
    arrays = [random_integers(rng, (2, n), "int8") for n in (3, 1, 5)]
    scales, zero_points = [0.1, 0.2, 0.35], [3, -4, 5]
    result = evaluate(op.concatenate(arrays, scales, zero_points, 0.2, -4, axis=1, rounding=rounding))
    parts = [
        requantize_array(x, np.float32(s), np.int32(z), np.float32(0.2), np.int32(-4), rounding=rounding)
        for x, s, z in zip(arrays, scales, zero_points, strict=True)
    ]
    np.testing.assert_array_equal(result, np.concatenate(parts, 1))
    np.testing.assert_array_equal(result[:, 3:4], arrays[1])


def test_flat_arguments_equal_lists(rng):
    x, y = random_integers(rng, (2,), "int8"), random_integers(rng, (3,), "int8")
    nested = op.concatenate([x, y], [0.1, 0.2], [1, 2], 0.3, 3)
    np.testing.assert_array_equal(evaluate(nested), evaluate(op.concatenate(x, y, 0.1, 0.2, 1, 2, 0.3, 3)))


@pytest.mark.parametrize("scales", [(0.1, 0.03, 0.07), (0.02, 0.3, 0.01), (0.0039, 0.5, 0.5), (1 / 3, 0.7, 0.9)])
def test_tflite(scales):
    from .litert import run_reference

    x = np.arange(256, dtype=np.uint8).reshape(1, 256)
    for zero_points in [(0, 0, 0), (128, 3, 250), (7, 255, 128)]:
        qx, qy, qo = (QParams(np.float32(s), z, "uint8") for s, z in zip(scales, zero_points, strict=True))
        golden = run_reference("CONCATENATION", [(x, qx), (x, qy)], (1, 512), qo, axis=1)
        result = evaluate(
            op.concatenate(
                [x, x],
                [qx.scale, qy.scale],
                [qx.zero_point, qy.zero_point],
                qo.scale,
                qo.zero_point,
                rounding="TFLITE",
                out_dtype="uint8",
            )
        )
        np.testing.assert_array_equal(result, golden)


def test_errors():
    x, y = var("x", (2, 3), "int8"), var("y", (4, 3), "int8")
    assert op.concatenate([x, y], [1.0, 1.0], [0, 0], 1.0, 0, axis=0) is not None
    with pytest.raises(ShapeError, match="cannot be concatenated along axis 1"):
        op.concatenate([x, y], [1.0, 1.0], [0, 0], 1.0, 0, axis=1)
    with pytest.raises(ShapeError, match="found 6 arguments"):
        op.concatenate([x, y], [1.0], [0], 1.0, 0)
    with pytest.raises(ShapeError, match="out of range"):
        op.concatenate([x], [1.0], [0], 1.0, 0, axis=2)
    with pytest.raises(ShapeError, match="must be int8"):
        op.concatenate([var("f", (2, 3), "float32")], [1.0], [0], 1.0, 0)
