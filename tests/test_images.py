"""Images as model inputs: which normalization a model's scale and zero point imply, layouts, quantization."""

import numpy as np
import pytest
from PIL import Image

from qnn_ext import InputError, QParams, TensorSpec
from qnn_ext.images import choose_normalization, load_image, to_input

MOBILENET = QParams(1 / 128, 128, "uint8")
RAMP = np.arange(256, dtype=np.uint8)[:, None]


def spec(qparams=None, dtype="float32", shape=(1, 4, 4, 3)) -> TensorSpec:
    return TensorSpec("x", shape, qparams.dtype if qparams else dtype, qparams)


@pytest.mark.parametrize(
    ("qparams", "expected"),
    [
        (MOBILENET, "-1..1"),
        (QParams(1 / 127.5, 127, "uint8"), "-1..1"),
        (QParams(1 / 255, -128, "int8"), "0..1"),
        (QParams(1.0, -128, "int8"), "raw"),
        (QParams(0.0186311, -14, "int8"), "imagenet"),
        (None, "0..1"),
    ],
)
def test_auto(qparams, expected):
    assert choose_normalization(spec(qparams)) == expected


@pytest.mark.parametrize(
    "qparams", [QParams(0.58, 83, "int8"), QParams(1 / 32767, 0, "int16"), QParams(0.01, 0, "int8")]
)
def test_auto_refuses_to_guess(qparams):
    with pytest.raises(InputError, match="choose one of"):
        choose_normalization(spec(qparams))


def test_eight_bit_inputs_take_the_bytes():
    np.testing.assert_array_equal(to_input(RAMP, spec(MOBILENET)), RAMP)
    signed = to_input(RAMP, spec(QParams(1 / 255, -128, "int8")))
    np.testing.assert_array_equal(signed, (RAMP.astype(int) - 128).astype(np.int8))


def test_explicit_normalization():
    real = to_input(RAMP, spec(), "-1..1")
    assert real.dtype == np.float32 and real.min() == -1 and real.max() == 1
    assert to_input(RAMP, spec(), "0..1").max() == 1
    assert to_input(RAMP, spec(), "raw").max() == 255
    symmetric = to_input(RAMP, spec(QParams(1 / 32767, 0, "int16")), "0..1")
    assert symmetric.dtype == np.int16 and symmetric.min() == 0 and symmetric.max() == 32767


def test_imagenet_is_per_channel():
    white = to_input(np.full((1, 1, 3), 255, np.uint8), spec(), "imagenet")
    np.testing.assert_allclose(white[0, 0], [2.2489, 2.4286, 2.64], atol=1e-3)
    with pytest.raises(InputError, match="3 channels"):
        to_input(RAMP, spec(), "imagenet")


def test_layouts(tmp_path, rng):
    pixels = rng.integers(0, 256, (4, 6, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "p.png")
    last = load_image(tmp_path / "p.png", spec(MOBILENET, shape=(1, 4, 6, 3)))
    first = load_image(tmp_path / "p.png", spec(MOBILENET, shape=(1, 3, 4, 6)))
    np.testing.assert_array_equal(last[0], pixels)
    np.testing.assert_array_equal(first[0], pixels.transpose(2, 0, 1))
    assert load_image(tmp_path / "p.png", spec(MOBILENET, shape=(1, 5, 7))).shape == (1, 5, 7)
    for shape, message in (
        ((1, 1960), "takes no image"),
        ((8, 4, 6, 3), "8 images at once"),
        ((1, 4, 6, 2), "no image"),
    ):
        with pytest.raises(InputError, match=message):
            load_image(tmp_path / "p.png", spec(MOBILENET, shape=shape))


def test_quantize_saturates_and_inverts():
    qparams = QParams(0.5, 10, "int8")
    assert qparams.quantize(np.array([-1e9, -69.0, 0.25, 0.75, 1e9])).tolist() == [-128, -128, 10, 12, 127]
    steps = np.arange(-128, 128, dtype=np.int8)
    np.testing.assert_array_equal(qparams.quantize(qparams.dequantize(steps)), steps)
