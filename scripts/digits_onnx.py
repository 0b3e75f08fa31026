"""Quantize the bundled digit CNN with ONNX Runtime: QDQ, QOperator and dynamic.

    pip install -r scripts/requirements-train.txt
    OMP_NUM_THREADS=1 python -m scripts.digits_onnx --out qnn_ext/data

The float network is the one `scripts.digits_pytorch` trains. Input of every model: (1, 1, 8, 8), pixel / 16; output:
ten logits. Two goldens of each: "ort" from ONNX Runtime by default, with integer kernels, and "plain" with every graph
optimization off, where a QDQ model computes in float between its quantizations.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from .digits_data import Digits, load_split
from .digits_goldens import GOLDENS, Predict, accuracy, write_goldens
from .digits_pytorch import calibration, trained_cnn

OPSET = 20


class Images(CalibrationDataReader):
    """Calibration inputs one at a time under the model's input name."""

    def __init__(self, name: str, images: list[np.ndarray]) -> None:
        self._feeds = ({name: image} for image in images)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def export(model: torch.nn.Module, example: torch.Tensor, path: Path) -> Path:
    """`model` as float ONNX at batch 1, prepared for the quantizer; returns the prepared file's path."""
    program = torch.onnx.export(
        model, (example,), dynamo=True, opset_version=OPSET, input_names=["image"], output_names=["logits"]
    )
    program.save(path)
    prepared = path.with_suffix(".prepared.onnx")
    quant_pre_process(path, prepared)
    return prepared


def static(source: Path, target: Path, images: list[np.ndarray], form: QuantFormat, **options) -> Path:
    """ONNX Runtime's static quantization: uint8 activations, per-channel int8 weights."""
    quantize_static(
        source,
        target,
        Images("image", images),
        quant_format=form,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        **options,
    )
    return target


def quantize_all(data: Digits, folder: Path) -> Iterator[Path]:
    """The CNN in every form, written to `folder`."""
    images = calibration(data)
    arrays = [image.numpy() for image in images]
    with tempfile.TemporaryDirectory() as scratch:
        source = export(trained_cnn(data), images[0], Path(scratch) / "cnn.onnx")
        yield static(source, folder / "digits_cnn_qdq.onnx", arrays, QuantFormat.QDQ)
        yield static(source, folder / "digits_cnn_qoperator.onnx", arrays, QuantFormat.QOperator)
        dynamic = folder / "digits_cnn_dynamic.onnx"
        quantize_dynamic(source, dynamic, weight_type=QuantType.QUInt8)  # ConvInteger in ONNX Runtime takes uint8 only
        yield dynamic


def predict(path: Path, optimized: bool = True) -> Predict:
    """The model as ONNX Runtime runs it on one image, one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (source,) = session.get_inputs()
    return lambda image: session.run(None, {source.name: image})[0]


def write_golden(path: Path, data: Digits) -> None:
    """Both goldens of the model, and a line describing it."""
    run = predict(path)
    write_goldens(path.parent / GOLDENS, path.stem, {"ort": run, "plain": predict(path, optimized=False)}, data)
    print(f"{path.name:28} {path.stat().st_size:7,d} bytes   held-out accuracy {accuracy(run, data):.2%}", flush=True)


def main() -> None:
    """Write the models and their goldens to the folder given with --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("qnn_ext/data"), help="folder to write to (%(default)s)")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    data = load_split()
    for path in quantize_all(data, out):
        write_golden(path, data)


if __name__ == "__main__":
    main()
