"""Write the network that removes noise from photos, and the photos that a tutorial shows it on.

    pip install -r scripts/requirements-train.txt
    OMP_NUM_THREADS=1 python -m scripts.photos --out tutorials/photos

Five convolutions of 3 × 3 learn the noise, and subtract it. They are trained on patches of four photos, which
scikit-image and scikit-learn bring, in some minutes; two others are written as JPEG, to calibrate on and to look at.

`denoiser.onnx`: input `photo` float32 (N, 3, H, W), values from 0 to 1 with noise of a standard deviation of 0.1;
output `clean`, of the same shape.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from skimage import data
from sklearn.datasets import load_sample_images
from torch import nn

from qnn_ext.files.storage import replacing

from .digits_onnx import OPSET
from .onnx_export import export_onnx

SEED = 2
NOISE = 0.1  # standard deviation, where white is 1
CHANNELS, LAYERS = 24, 5
PATCH, BATCH, STEPS = 40, 8, 2000
SHOWN = {
    "cat": ("chelsea", 60, 30),
    "coffee": ("coffee", 110, 60),
}  # file -> photo, left and upper edge of what is kept
WIDTH, HEIGHT = 384, 256


class Denoiser(nn.Module):
    """photo − noise(photo), within 0 … 1."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [3, *[CHANNELS] * (LAYERS - 1), 3]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
        self.noise = nn.Sequential(*layers[:-1])

    def forward(self, photo: torch.Tensor) -> torch.Tensor:
        return torch.clamp(photo - self.noise(photo), 0, 1)


def training_photos() -> list[np.ndarray]:
    """float32 (3, H, W) from 0 to 1."""
    photos = [data.astronaut(), data.rocket(), *load_sample_images().images]
    return [photo.transpose(2, 0, 1).astype(np.float32) / 255 for photo in photos]


def patches(photos: list[np.ndarray], rng: np.random.Generator) -> torch.Tensor:
    """A batch of patches, turned and mirrored at random."""
    found = []
    for _ in range(BATCH):
        photo = photos[rng.integers(len(photos))]
        row, column = (rng.integers(size - PATCH + 1) for size in photo.shape[1:])
        patch = np.rot90(photo[:, row : row + PATCH, column : column + PATCH], rng.integers(4), (1, 2))
        found.append(patch[:, :, ::-1] if rng.integers(2) else patch)
    return torch.from_numpy(np.stack(found))


def trained() -> Denoiser:
    """The network, by Adam with a cosine decay on the squared error."""
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    network, photos = Denoiser(), training_photos()
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for step in range(STEPS):
        clean = patches(photos, rng)
        noisy = clean + NOISE * torch.randn(clean.shape)
        loss = nn.functional.mse_loss(noisy - network.noise(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"{step}: {-10 * np.log10(loss.item()):.2f} dB", flush=True)
    return network.eval()


def export(network: nn.Module, path: Path) -> None:
    """Float ONNX for photos of any size, without notes on this machine."""
    axes = {0: "N", 2: "H", 3: "W"}
    options = {"opset_version": OPSET, "dynamic_axes": {"photo": axes, "clean": axes}}
    export_onnx(network, torch.zeros(1, 3, 64, 64), path, "photo", "clean", **options)


def main() -> None:
    """Write the photos and the network to the folder given with --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("tutorials/photos"), help="folder to write to (%(default)s)")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, (photo, left, top) in SHOWN.items():
        kept = Image.fromarray(getattr(data, photo)()).crop((left, top, left + WIDTH, top + HEIGHT))
        with replacing(out / f"{name}.jpg") as file:
            kept.save(file, "JPEG", quality=90)
    export(trained(), out / "denoiser.onnx")


if __name__ == "__main__":
    main()
