"""Write the float networks that quantization starts from, and the images it is calibrated on.

    pip install -r scripts/requirements-train.txt
    OMP_NUM_THREADS=1 python -m scripts.digits_float --out qnn_ext/data

The CNN (batch normalizations and depthwise layers as trained, nothing folded) comes from `scripts.digits_pytorch`, the
transformer from `scripts.digits_transformer`. Input of both: `image` float32 (N, 1, 8, 8), pixel / 16; output: ten
`logits`. `digits_calibration.npz`: `image`, 400 training images in that form.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from qnn_ext.files.storage import replacing

from .digits_data import load_split
from .digits_goldens import accuracy
from .digits_onnx import OPSET, predict
from .digits_pytorch import calibration, trained_cnn
from .digits_transformer import trained_transformer
from .onnx_export import export_onnx


def export(model: torch.nn.Module, path: Path) -> None:
    """`model` as float ONNX with an open batch, without the exporter's optimizations or its notes on this machine."""
    options = {
        "opset_version": OPSET,
        "dynamic_axes": {"image": {0: "N"}, "logits": {0: "N"}},
        "training": torch.onnx.TrainingMode.PRESERVE,
        "do_constant_folding": False,
    }
    export_onnx(model, torch.zeros(2, 1, 8, 8), path, "image", "logits", **options)


def main() -> None:
    """Write the models and the calibration images to the folder given with --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("qnn_ext/data"), help="folder to write to (%(default)s)")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    data = load_split()
    images = np.concatenate([image.numpy() for image in calibration(data)])
    with replacing(out / "digits_calibration.npz") as file:
        np.savez_compressed(file, image=images)
    for name, trained in (("cnn", trained_cnn), ("transformer", trained_transformer)):
        path = out / f"digits_{name}_float32.onnx"
        export(trained(data), path)
        print(f"{path.name:32} {path.stat().st_size:7,d} bytes   held-out accuracy {accuracy(predict(path), data):.2%}")


if __name__ == "__main__":
    main()
