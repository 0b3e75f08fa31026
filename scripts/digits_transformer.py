"""Train a small transformer encoder on the digits and quantize it with ONNX Runtime and with PT2E.

    pip install -r scripts/requirements-train.txt
    OMP_NUM_THREADS=1 python -m scripts.digits_transformer --out qnn_ext/data

An image is 16 patches of 2×2 pixels. The ONNX model is quantized statically with both sides of the attention products
quantized; the .pt2 model with X86InductorQuantizer, which leaves those products float. Input of both: (1, 1, 8, 8),
pixel / 16; output: ten logits.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from onnxruntime.quantization import QuantFormat
from torch import nn

from qnn_ext.files.storage import write_bytes

from .digits_data import SEED, Digits, load_split
from .digits_goldens import GOLDENS, accuracy, write_goldens
from .digits_onnx import export, static, write_golden
from .digits_pytorch import calibration, predict, program_bytes, pt2e, train, x86_quantizer

EPOCHS = 60


class Attention(nn.Module):
    """Multi-head self-attention, with its products written out for the quantizer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape

        def split(y: torch.Tensor) -> torch.Tensor:
            return y.reshape(batch, length, self.heads, width // self.heads).transpose(1, 2)

        query, key, value = split(self.query(x)), split(self.key(x)), split(self.value(x))
        scores = torch.matmul(query, key.transpose(2, 3)) * (width // self.heads) ** -0.5
        mixed = torch.matmul(torch.softmax(scores, -1), value)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    """One encoder layer, normalization first."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class DigitsTransformer(nn.Module):
    """Patch embedding, two encoder layers, mean over the patches, classifier: (N, 1, 8, 8) to ten logits."""

    def __init__(self, width: int = 32, heads: int = 4, hidden: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, 2)
        self.position = nn.Parameter(torch.randn(1, 16, width) * 0.1)
        self.layers = nn.Sequential(*(Layer(width, heads, hidden) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2) + self.position
        return self.logits(self.norm(self.layers(x)).mean(1))


def trained_transformer(data: Digits) -> nn.Module:
    """The float transformer, with the same weights at every call."""
    torch.manual_seed(SEED)
    return train(DigitsTransformer(), data, EPOCHS, rate=2e-3)


def main() -> None:
    """Write the models and their goldens to the folder given with --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("qnn_ext/data"), help="folder to write to (%(default)s)")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    data = load_split()
    images = calibration(data)
    model = trained_transformer(data)
    print(f"{'float':28} {'':>13}   held-out accuracy {accuracy(predict(model), data):.2%}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        source = export(model, images[0], Path(scratch) / "transformer.onnx")
        arrays = [image.numpy() for image in images]
        write_golden(static(source, out / "digits_transformer_qdq.onnx", arrays, QuantFormat.QDQ), data)
    program = pt2e(model, images, x86_quantizer())
    path = out / "digits_transformer_pt2e_x86.pt2"
    write_bytes(path, program_bytes(program))
    run = predict(program.module())
    write_goldens(out / GOLDENS, path.stem, {"torch": run}, data)
    print(f"{path.name:28} {path.stat().st_size:7,d} bytes   held-out accuracy {accuracy(run, data):.2%}", flush=True)


if __name__ == "__main__":
    main()
