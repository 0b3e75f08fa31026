"""Tutorial 21: a network that cleans photos, in float and in 8 bits, to see what quantization does.

    python tutorials/21_photos.py

Five convolutions remove the noise of a photo that was taken in too little light. What 8 bits change in the result is a
picture too: here are both, the difference, and what goes wrong with the wrong photos to calibrate on. The network, in
float, and the photos are bundled; it was trained on others.
"""

import tempfile
from pathlib import Path

import numpy as np
import pictures
from PIL import Image

import qnn_ext
from qnn_ext import quantize

PHOTOS = Path(__file__).parent / "photos"


def load(name: str) -> np.ndarray:
    """A photo as float32 (1, 3, H, W), from 0 to 1."""
    return np.asarray(Image.open(PHOTOS / name), np.float32).transpose(2, 0, 1)[None] / 255


def with_noise(photo: np.ndarray, seed: int) -> np.ndarray:
    """The photo as a camera takes it in little light: a standard deviation of 0.1 for each pixel and colour."""
    return (photo + np.random.default_rng(seed).normal(0, 0.1, photo.shape)).astype(np.float32)


def psnr(found: np.ndarray, wanted: np.ndarray) -> float:
    """Peak signal-to-noise ratio in dB: 10 · log10(1 / mean squared error). One dB more is a visible difference."""
    return float(-10 * np.log10(np.mean((found - wanted) ** 2)))


# 1. The float network on a photo. It takes photos of any size; here, 256 × 384.

cat, coffee = load("cat.jpg"), load("coffee.jpg")
noisy = with_noise(cat, seed=0)
model = qnn_ext.from_onnx(PHOTOS / "denoiser.onnx", shapes={"photo": cat.shape})
in_float = qnn_ext.build(model, num_threads=1)
cleaned = in_float(noisy)
print(f"noisy {psnr(noisy, cat):.1f} dB, cleaned in float {psnr(cleaned, cat):.1f} dB")

# 2. Quantize. Ranges come from another photo, with noise: calibrate on what the network will get.

dataset = [with_noise(coffee, seed=1)]
integers = qnn_ext.build(model, dataset=dataset, num_threads=1)
in_8_bits = integers(noisy)
print(f"in 8 bits {psnr(in_8_bits, cat):.1f} dB; against float {psnr(in_8_bits, cleaned):.1f} dB")
assert psnr(in_8_bits, cat) > psnr(cleaned, cat) - 0.5

# What to look at: fur and whiskers, where a network that lost precision would leave noise or smear, and smooth places,
# where steps between integers would show as bands. The last picture is the difference between 8 bits and float, 20
# times as strong: grey is none. It should look like noise, as it does here; an outline in it would be detail that was
# lost, and its slight tint is a bias, the same for all pixels, which `bias_correction=True` in a QConfig takes away.


def detail(photo: np.ndarray) -> np.ndarray:
    """An eye of the cat."""
    return photo[:, :, 90:170, 60:180]


difference = 0.5 + 20 * (in_8_bits - cleaned)
pictures.photos([noisy, cleaned, in_8_bits], ["noisy", "cleaned, float", "cleaned, 8 bits"])
pictures.photos(
    [detail(photo) for photo in (noisy, cleaned, in_8_bits, difference)],
    ["noisy", "float", "8 bits", "difference, × 20"],
)

# 3. The wrong photos. If ranges come from photos a quarter as bright, all that is brighter is clipped: the light fur
#    becomes an even grey. Nothing fails: look at results, or at the saturation that `qnn-ext quantize --report` shows.

dark = [photo / 4 for photo in dataset]
wrong = qnn_ext.build(model, dataset=dark, num_threads=1)(noisy)
print(f"calibrated on dark photos {psnr(wrong, cat):.1f} dB")
assert psnr(wrong, cat) < psnr(in_8_bits, cat) - 3
pictures.photos([cat, in_8_bits, wrong], ["the photo", "calibrated on such photos", "calibrated on dark ones"])

# 4. Fewer bits. With weights of 4 bits, each rounded by itself, the network leaves noise behind. GPTQ rounds them so
#    that the errors of a layer cancel, and gets most of it back.

settings = {
    "weights of 4 bits": {"nbit_weight": 4},
    "weights of 4 bits, GPTQ": {"nbit_weight": 4, "weight_rounding": "gptq"},
}
found = {"noisy": psnr(noisy, cat), "float": psnr(cleaned, cat), "8 bits": psnr(in_8_bits, cat)}
for name, fields in settings.items():
    engine = qnn_ext.build(model, dataset=dataset, qconfig=quantize.QConfig(**fields), num_threads=1)
    found[name] = psnr(engine(noisy), cat)
for name, value in found.items():
    print(f"  {name:24} {value:5.2f} dB")
pictures.bars(list(found), list(found.values()), "PSNR, dB")

# 5. What it is for: time and memory.

print(f"a photo: {in_float.time(number=2, repeat=3)} in float, {integers.time(number=2, repeat=3)} in 8 bits")
for name, engine in (("float", in_float), ("8 bits", integers)):
    features, weights = engine.memory.feature_maps / 1e6, engine.memory.weights / 1e3
    print(f"  {name}: feature maps {features:.1f} MB, weights {weights:.0f} kB")

# 6. Keep it. On the command line: qnn-ext run denoiser.qnn --input photo.jpg --output clean.npy

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "denoiser.qnn"
    integers.save(path)
    np.testing.assert_array_equal(qnn_ext.load(path)(noisy), in_8_bits)
    print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB")
    pixels = (255 * in_8_bits[0].transpose(1, 2, 0)).round().astype(np.uint8)
    Image.fromarray(pixels).save(Path(folder) / "clean.png")
