"""Whole networks, quantized with the real tools, for testing the frontends.

    pip install -r scripts/requirements-train.txt
    pip install --no-deps torchvision==0.28.0      # its architectures alone: see `torchvision_models`
    OMP_NUM_THREADS=1 python -m scripts.networks --out DIR [--only resnet50 ...] [--format onnx-static ...] [--batch 8]

Architectures: ResNet-50, MobileNetV2, MobileNetV3-Large, ViT-B/32, BERT-base (128 tokens). Weights are random, drawn
from a fixed seed so that activations keep their magnitude with depth: Kaiming initialization, batch normalization with
the statistics of random images. Formats:

    onnx-static    ONNX Runtime's QDQ: uint8 activations, int8 weights per channel, both sides of attention products
    onnx-dynamic   ONNX Runtime's dynamic: DynamicQuantizeLinear with MatMulInteger and ConvInteger
    pt2e           torchao's X86InductorQuantizer, static
    pt2e-dynamic   the same, dynamic
    float32        the float ONNX that the others in ONNX are made from

Beside NAME.FORMAT.onnx or .pt2 lies NAME.FORMAT.npz: input_0 and the framework's own outputs. For ONNX
"ort" (the default: integer kernels) and "plain" (graph optimizations off: float between quantizations); for PyTorch
"torch" and "native" (the same program with oneDNN off). How far a framework differs from itself shows how much a
comparison can tell.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import nn

SEED = 7
CALIBRATION_INPUTS = 4
STATISTICS_INPUTS = 8
OPSET = 20
FORMATS = ("onnx-static", "onnx-dynamic", "pt2e", "pt2e-dynamic", "float32")


# ---------------------------------------------------------------------------------------------------------------------
# Architectures


def torchvision_models() -> ModuleType:
    """torchvision's architectures, without its compiled part where that cannot be loaded.

    The usual wheel's library needs CUDA; all that is missing without it is two operator schemas, which no architecture
    uses. With it, a second definition of them would end the process.
    """
    if not hasattr(torch.ops.torchvision, "nms") and not _loads_library():
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)
    from torchvision import models

    return models


def _loads_library() -> bool:
    """Load torchvision's compiled part, if it is there and all that it needs."""
    spec = find_spec("torchvision")
    found = (
        [path for folder in spec.submodule_search_locations or () for path in Path(folder).glob("_C.*")] if spec else []
    )
    try:
        for path in found:
            torch.ops.load_library(path)
    except OSError:
        return False
    return bool(found)


_KEPT: list[torch.library.Library] = []  # a library's schemas are removed with it


class Attention(nn.Module):
    """Multi-head self-attention with the products written out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape

        def split(y: torch.Tensor) -> torch.Tensor:
            return y.reshape(batch, length, self.heads, width // self.heads).transpose(1, 2)

        query, key, value = split(self.query(x)), split(self.key(x)), split(self.value(x))
        scores = torch.matmul(query, key.transpose(-1, -2)) / (width // self.heads) ** 0.5
        mixed = torch.matmul(torch.softmax(scores, -1), value)
        return self.output(mixed.transpose(1, 2).reshape(batch, length, width))


class VitAttention(Attention):
    """The same, replacing an nn.MultiheadAttention, whose projections X86InductorQuantizer does not find."""

    def forward(self, query: torch.Tensor, *_: torch.Tensor, need_weights: bool = False) -> tuple[torch.Tensor, None]:
        return super().forward(query), None


def vit_b_32() -> nn.Module:
    """torchvision's ViT-B/32 with attention written out."""
    model = torchvision_models().vit_b_32(weights=None)
    for layer in model.encoder.layers:
        layer.self_attention = VitAttention(768, 12)
    return model


class BertLayer(nn.Module):
    """Attention and a two-layer MLP, each followed by a residual sum and a normalization."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.attention_norm, self.output_norm = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)
        self.intermediate, self.output = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attention_norm(x + self.attention(x))
        return self.output_norm(x + self.output(nn.functional.gelu(self.intermediate(x))))


class Bert(nn.Module):
    """BERT-base: token ids (N, L) int64 to every token's encoding (N, L, 768) and the first one pooled (N, 768)."""

    def __init__(self, vocabulary: int = 30522, positions: int = 512, width: int = 768, depth: int = 12) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.Sequential(*(BertLayer(width, 12, 4 * width) for _ in range(depth)))
        self.pooler = nn.Linear(width, width)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        place = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        x = self.layers(self.norm(self.words(tokens) + self.positions(place)))
        return x, torch.tanh(self.pooler(x[:, 0]))


def image(generator: torch.Generator) -> torch.Tensor:
    """Smooth noise, (1, 3, 224, 224), of the mean and deviation of a normalized photo."""
    coarse = torch.randn(1, 3, 28, 28, generator=generator)
    smooth = nn.functional.interpolate(coarse, size=(224, 224), mode="bilinear")
    return 1.2 * smooth + 0.3 * torch.randn(1, 3, 224, 224, generator=generator)


def tokens(generator: torch.Generator) -> torch.Tensor:
    """128 random token ids, (1, 128)."""
    return torch.randint(0, 30522, (1, 128), generator=generator)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Generator], torch.Tensor]]] = {
    "mobilenet_v2": (lambda: torchvision_models().mobilenet_v2(weights=None), image),
    "mobilenet_v3_large": (lambda: torchvision_models().mobilenet_v3_large(weights=None), image),
    "resnet50": (lambda: torchvision_models().resnet50(weights=None), image),
    "vit_b_32": (vit_b_32, image),
    "bert_base": (Bert, tokens),
}


def make_network(name: str, batch: int = 1) -> tuple[nn.Module, list[torch.Tensor]]:
    """The network with random weights, and inputs: the first to compare on, the others to calibrate with."""
    torch.manual_seed(SEED)
    make, draw = NETWORKS[name]
    model = make()
    generator = torch.Generator().manual_seed(SEED)
    count = CALIBRATION_INPUTS if batch == 1 else 1
    inputs = [torch.cat([draw(generator) for _ in range(batch)]) for _ in range(1 + count)]
    initialize(model)
    if any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
        settle_statistics(model, torch.cat(inputs[1:])[:STATISTICS_INPUTS])
    return model.eval(), inputs


def initialize(model: nn.Module) -> None:
    """Weights that keep the magnitude of activations from growing or vanishing with depth."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_in")
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.3)
        elif isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.8, 1.2)
            nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.5)
        if isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
            nn.init.normal_(module.bias, std=0.05)
    for name, parameter in model.named_parameters():
        if name == "heads.head.weight":  # torchvision starts ViT's classifier at zero
            nn.init.xavier_uniform_(parameter)


def settle_statistics(model: nn.Module, inputs: torch.Tensor) -> None:
    """Set batch normalizations to the mean and variance of `inputs`."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # a plain average over all batches
        elif isinstance(module, nn.Dropout):
            module.p = 0.0
    with torch.no_grad():
        model.train()(inputs)


# ---------------------------------------------------------------------------------------------------------------------
# Formats


class Feeds(CalibrationDataReader):
    """Calibration inputs one at a time."""

    def __init__(self, inputs: list[torch.Tensor]) -> None:
        self._feeds = ({"input": value.numpy()} for value in inputs)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def export_onnx(model: nn.Module, example: torch.Tensor, folder: Path) -> Path:
    """`model` as float ONNX at the example's batch, prepared for the quantizer."""
    program = torch.onnx.export(
        model, (example,), dynamo=True, opset_version=OPSET, input_names=["input"], verbose=False, optimize=True
    )
    exported, prepared = folder / "float.onnx", folder / "prepared.onnx"
    program.save(exported)
    quant_pre_process(exported, prepared)
    return prepared


def write_onnx(form: str, source: Path, target: Path, inputs: list[torch.Tensor]) -> None:
    """Quantize with ONNX Runtime, unless it is to stay float, and save its outputs."""
    if form == "float32":
        shutil.copyfile(source, target)
    elif form == "onnx-static":
        quantize_static(
            source,
            target,
            Feeds(inputs[1:]),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": False},
        )
    else:
        quantize_dynamic(source, target, weight_type=QuantType.QUInt8)  # ONNX Runtime's ConvInteger takes uint8 only
    arrays = {"input_0": inputs[0].numpy()}
    levels = {"ort": GraphOptimizationLevel.ORT_ENABLE_ALL, "plain": GraphOptimizationLevel.ORT_DISABLE_ALL}
    for kind, level in levels.items():
        options = SessionOptions()
        options.graph_optimization_level = level
        options.intra_op_num_threads = 1
        session = InferenceSession(target, options, providers=["CPUExecutionProvider"])
        outputs = session.run(None, {"input": arrays["input_0"]})
        arrays.update({f"{kind}_{i}": value for i, value in enumerate(outputs)})
    np.savez_compressed(target.with_suffix(".npz"), **arrays)


def write_pt2e(form: str, model: nn.Module, target: Path, inputs: list[torch.Tensor]) -> None:
    """Quantize with torchao and save PyTorch's outputs."""
    from .digits_pytorch import pt2e, x86_quantizer  # only these formats need torchao

    program = pt2e(model, inputs[1:], x86_quantizer(is_dynamic=form == "pt2e-dynamic"))
    torch.export.save(program, target)
    arrays = {"input_0": inputs[0].numpy()}
    for kind, onednn in (("torch", True), ("native", False)):
        with torch.no_grad(), torch.backends.mkldnn.flags(enabled=onednn):
            outputs = program.module()(inputs[0])
        for i, value in enumerate(outputs if isinstance(outputs, tuple) else (outputs,)):
            arrays[f"{kind}_{i}"] = value.numpy()
    np.savez_compressed(target.with_suffix(".npz"), **arrays)


def write_network(name: str, forms: list[str], out: Path, batch: int = 1) -> None:
    """One network in every requested format; PT2E's graph capture needs a fresh copy each time."""
    with tempfile.TemporaryDirectory() as scratch:
        source = None
        for form in forms:
            model, inputs = make_network(name, batch)
            suffix = ".pt2" if form.startswith("pt2e") else ".onnx"
            target = out / f"{file_name(name, batch)}.{form}{suffix}"
            if suffix == ".onnx":
                source = source or export_onnx(model, inputs[0], Path(scratch))
                write_onnx(form, source, target, inputs)
            else:
                write_pt2e(form, model, target, inputs)
            print(f"{target.name:36} {target.stat().st_size / 1e6:7.1f} MB", flush=True)


def file_name(name: str, batch: int) -> str:
    """The prefix of a network's files: resnet50, or resnet50_b8 for batches of eight."""
    return name if batch == 1 else f"{name}_b{batch}"


def main() -> None:
    """Write the chosen networks in the chosen formats."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--only", nargs="*", choices=NETWORKS, default=list(NETWORKS), help="networks to write (all)")
    parser.add_argument("--format", nargs="*", choices=FORMATS, default=list(FORMATS), help="formats to write (all)")
    parser.add_argument("--batch", type=int, default=1, help="batch size (1)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    for name in options.only:
        write_network(name, options.format, options.out, options.batch)


if __name__ == "__main__":
    main()
