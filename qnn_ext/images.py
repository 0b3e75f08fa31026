"""Photos as model inputs: resized to the input's size, normalized, quantized with the input's parameters.

How pixels 0 … 255 become the real values a model expects ("normalize"):

    0..1      pixel / 255
    -1..1     pixel / 127.5 − 1
    imagenet  (pixel / 255 − mean) / deviation per channel, with ImageNet's means and deviations
    raw       the bytes themselves: an 8-bit input takes them as its integers, every other input as 0.0 … 255.0
    auto      inferred from the input's quantization parameters: see `choose_normalization`
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np

from .errors import InputError
from .files.reading import open_file
from .module import TensorSpec
from .qparams import QParams, dtype_range

NORMALIZATIONS = ("auto", "0..1", "-1..1", "imagenet", "raw")

_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
_DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)

# the range of real values of each normalization, over all pixels and channels
_RANGES = {
    "0..1": (0.0, 1.0),
    "-1..1": (-1.0, 1.0),
    "raw": (0.0, 255.0),
    "imagenet": (float((-_MEAN / _DEVIATION).min()), float(((1 - _MEAN) / _DEVIATION).max())),
}
_TOLERANCE = 0.06  # of the interval's width: converters calibrate on photos, which may miss pure black or white
_MODES = {1: "L", 3: "RGB"}
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # some of Pillow's other formats start programs
_MOST_PIXELS = 1 << 27  # decoded, 400 MB; a file of a few bytes may declare any number


def load_image(path: str | os.PathLike, spec: TensorSpec, normalize: str = "auto") -> np.ndarray:
    """The photo as a value for the input `spec`: NHWC, NCHW or (1, H, W), with 1 or 3 channels.

    The photo is resized to the input's height and width without keeping its proportions, as in TFLite's label_image.
    Raises InputError if the file is not an image, the input does not take one, or "auto" finds no normalization.
    """
    height, width, channels, first = _layout(spec)
    pixels = _read_pixels(path, height, width, channels)
    values = to_input(pixels, spec, normalize)
    return (values.transpose(2, 0, 1) if first else values).reshape(spec.shape)


def to_input(pixels: np.ndarray, spec: TensorSpec, normalize: str = "auto") -> np.ndarray:
    """Pixels, uint8 (..., C), as values of the input's dtype, in the same shape."""
    if normalize == "auto":
        normalize = choose_normalization(spec)
        if spec.dtype in ("uint8", "int8") and normalize != "imagenet":
            normalize = "raw"  # the input's 256 steps are the 256 pixel values
    if normalize == "raw" and spec.dtype in ("uint8", "int8"):
        return (pixels.astype(np.int16) + dtype_range(spec.dtype)[0]).astype(spec.dtype)
    real = _normalized(pixels, normalize)
    return spec.qparams.quantize(real) if spec.qparams is not None else real.astype(spec.dtype)


def choose_normalization(spec: TensorSpec) -> str:
    """The normalization whose range matches that of an 8-bit input, scale · (q − zero_point) over all q.

    Float inputs and integer inputs without a scale give no such hint and get 0..1 and raw. Raises InputError if nothing
    fits, and for wider integers: int16 inputs are symmetric, which hides whether values below zero occur.
    """
    if spec.qparams is None:
        return "0..1" if spec.dtype.startswith("float") else "raw"
    low, high = real_range(spec.qparams)
    if spec.dtype in ("uint8", "int8"):
        for name, (expected_low, expected_high) in _RANGES.items():
            slack = _TOLERANCE * (expected_high - expected_low)
            if abs(low - expected_low) <= slack and abs(high - expected_high) <= slack:
                return name
    raise InputError(
        f"input {spec.name!r} has {spec.dtype} values that stand for {low:.4g} … {high:.4g}, which does not tell how "
        f"to normalize an image; choose one of {', '.join(NORMALIZATIONS[1:])}"
    )


def real_range(qparams: QParams) -> tuple[float, float]:
    """The smallest and largest real value of a tensor: scale · (q − zero_point) at the ends of its dtype."""
    low, high = dtype_range(qparams.dtype)
    scale, zero_point = np.asarray(qparams.scale, np.float64), np.asarray(qparams.zero_point, np.float64)
    return float((scale * (low - zero_point)).min()), float((scale * (high - zero_point)).max())


def _normalized(pixels: np.ndarray, normalize: str) -> np.ndarray:
    values = pixels.astype(np.float32)
    if normalize == "raw":
        return values
    if normalize == "0..1":
        return values / 255
    if normalize == "-1..1":
        return values / np.float32(127.5) - 1
    if normalize != "imagenet":
        raise InputError(f"normalize must be one of {', '.join(NORMALIZATIONS)}, found {normalize!r}")
    if pixels.shape[-1] != 3:
        raise InputError(f"imagenet normalization is for 3 channels, this input has {pixels.shape[-1]}")
    return (values / 255 - _MEAN) / _DEVIATION


def _layout(spec: TensorSpec) -> tuple[int, int, int, bool]:
    """Height, width and channels of an image input, and whether channels come first."""
    shape = spec.shape
    if shape and shape[0] == 1:
        if len(shape) == 4 and shape[3] in _MODES:
            return shape[1], shape[2], shape[3], False
        if len(shape) == 4 and shape[1] in _MODES:
            return shape[2], shape[3], shape[1], True
        if len(shape) == 3:
            return shape[1], shape[2], 1, False
    if len(shape) == 4 and shape[0] > 1 and (shape[3] in _MODES or shape[1] in _MODES):
        raise InputError(f"input {spec.name!r} takes {shape[0]} images at once: give them as one .npy array {shape}")
    raise InputError(f"input {spec.name!r} of shape {shape} takes no image: give a .npy array")


def _read_pixels(path: str | os.PathLike, height: int, width: int, channels: int) -> np.ndarray:
    from PIL import Image, UnidentifiedImageError  # arrays do without

    source = Path(path)
    with open_file(source, InputError) as file:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # we reject what it warns about
                image = Image.open(file, formats=_FORMATS)
            with image:
                pixels = image.width * image.height
                if pixels > _MOST_PIXELS:
                    raise InputError(f"{source}: an image of {pixels} pixels is too large, the limit is {_MOST_PIXELS}")
                converted = image.convert(_MODES[channels]).resize((width, height), Image.Resampling.BILINEAR)
        except UnidentifiedImageError as error:
            raise InputError(f"{source}: neither an image ({', '.join(_FORMATS)}) nor a .npy or .npz file") from error
        except InputError:
            raise
        except Exception as error:  # damaged images: each of Pillow's decoders raises its own exceptions
            raise InputError(f"{source}: cannot be read as an image: {error}") from error
    return np.asarray(converted, np.uint8).reshape(height, width, channels)
