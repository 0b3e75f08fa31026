"""Train the bundled digit CNN in PyTorch and quantize it in each of PyTorch's ways.

    pip install -r scripts/requirements-train.txt
    OMP_NUM_THREADS=1 python -m scripts.digits_pytorch --out qnn_ext/data

PT2E with the x86 and the XNNPACK quantizer (.pt2), eager mode and FX graph mode (TorchScript .pt). Input of every
model: (1, 1, 8, 8), pixel / 16; output: ten logits. `scripts.digits_onnx` uses the same float network. PyTorch's own
outputs on the first held-out images are kept as `scripts.digits_goldens` describes.
"""

from __future__ import annotations

import argparse
import copy
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.ao import quantization as legacy
from torch.ao.nn.quantized import FloatFunctional
from torch.ao.quantization import quantize_fx
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86
from torchao.testing.pt2e import _xnnpack_quantizer as xnnpack

from qnn_ext.files.storage import write_bytes

from .digits_data import SEED, Digits, load_split, shifted, to_real
from .digits_goldens import GOLDENS, accuracy, write_goldens

BATCH = 32
EPOCHS = 60
CALIBRATION_IMAGES = 400


# ---------------------------------------------------------------------------------------------------------------------
# The network


class ConvNorm(nn.Sequential):
    """Convolution with "same" padding, batch normalization, and ReLU6 unless `relu6` is off."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, relu6: bool = True
    ):
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(outputs),
            *([nn.ReLU6()] if relu6 else []),
        )


class DigitsCnn(nn.Module):
    """Stem, depthwise-separable block, inverted residual, two poolings, two dense layers: (N, 1, 8, 8) to (N, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(1, 16, kernel=3)
        self.separable_depthwise = ConvNorm(16, 16, kernel=3, stride=2, groups=16)
        self.separable_pointwise = ConvNorm(16, 32)
        self.residual_expand = ConvNorm(32, 64)
        self.residual_depthwise = ConvNorm(64, 64, kernel=3, groups=64)
        self.residual_project = ConvNorm(64, 32, relu6=False)
        self.pool = nn.AvgPool2d(2)
        self.head = ConvNorm(32, 48)
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.hidden = nn.Linear(48, 32)
        self.hidden_relu = nn.ReLU()
        self.logits = nn.Linear(32, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        shortcut = self.separable_pointwise(self.separable_depthwise(self.stem(image)))
        x = self.residual_project(self.residual_depthwise(self.residual_expand(shortcut)))
        x = self.pool(self.add_relu(x, shortcut))
        x = self.mean(self.head(x)).flatten(1)
        return self.logits(self.hidden_relu(self.hidden(x)))

    def add_relu(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """The end of the residual block."""
        return nn.functional.relu(a + b)


class EagerDigitsCnn(DigitsCnn):
    """The same with the modules to which eager mode attaches its observers; the same weights load into both."""

    def __init__(self) -> None:
        super().__init__()
        self.quantize = legacy.QuantStub()
        self.residual_add = FloatFunctional()
        self.dequantize = legacy.DeQuantStub()

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.dequantize(super().forward(self.quantize(image)))

    def add_relu(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.residual_add.add_relu(a, b)


def train(model: nn.Module, data: Digits, epochs: int, rate: float) -> nn.Module:
    """Adam with cosine decay; an epoch has every training image twice, unchanged and shifted."""
    rng = np.random.default_rng(SEED)
    images = to_real(data.x_train)
    labels = np.tile(data.y_train.astype(np.int64), 2)
    optimizer = torch.optim.Adam(model.parameters(), rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * -(-len(labels) // BATCH))
    model.train()
    for _ in range(epochs):
        epoch = np.concatenate([images, shifted(images, rng)])[:, None]
        order = rng.permutation(len(epoch))
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            loss = nn.functional.cross_entropy(model(torch.from_numpy(epoch[chosen])), torch.from_numpy(labels[chosen]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def trained_cnn(data: Digits) -> nn.Module:
    """The float CNN, with the same weights at every call."""
    torch.manual_seed(SEED)
    return train(DigitsCnn(), data, EPOCHS, rate=3e-3)


def calibration(data: Digits) -> list[torch.Tensor]:
    """Training images one at a time, (1, 1, 8, 8)."""
    return [torch.from_numpy(image[None, None].copy()) for image in to_real(data.x_train[:CALIBRATION_IMAGES])]


# ---------------------------------------------------------------------------------------------------------------------
# PyTorch's roads to a quantized model


def pt2e(model: nn.Module, inputs: list[torch.Tensor], quantizer) -> torch.export.ExportedProgram:
    """Export, prepare, calibrate, convert, export.

    The first export is strict: a module called twice then stays two layers, which the x86 quantizer needs to
    distinguish the activations of a ResNet.
    """
    example = (inputs[0],)
    prepared = prepare_pt2e(torch.export.export(copy.deepcopy(model), example, strict=True).module(), quantizer)
    with torch.no_grad():
        for value in inputs:
            prepared(value)
        return torch.export.export(without_dead_weights(convert_pt2e(prepared)), example)


def without_dead_weights(model: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The converted model without the original float weights, which its graph no longer reads."""
    used = {node.target for node in model.graph.nodes if node.op == "get_attr"}
    for name, _ in [*model.named_parameters(), *model.named_buffers()]:
        if name not in used:
            owner, _, attribute = name.rpartition(".")
            delattr(model.get_submodule(owner), attribute)
    return model


def x86_quantizer(is_dynamic: bool = False) -> x86.X86InductorQuantizer:
    """uint8 activations, per-channel int8 weights."""
    return x86.X86InductorQuantizer().set_global(
        x86.get_default_x86_inductor_quantization_config(is_dynamic=is_dynamic)
    )


def xnnpack_quantizer() -> xnnpack.XNNPACKQuantizer:
    """int8 activations, per-channel int8 weights."""
    return xnnpack.XNNPACKQuantizer().set_global(xnnpack.get_symmetric_quantization_config(is_per_channel=True))


def eager(model: nn.Module, images: list[torch.Tensor]) -> torch.jit.ScriptModule:
    """Eager mode for the fbgemm engine: modules fused by hand, swapped for quantized ones, traced."""
    torch.backends.quantized.engine = "fbgemm"
    stubbed = EagerDigitsCnn().eval()
    stubbed.load_state_dict(model.state_dict())
    layers = [[f"{name}.0", f"{name}.1"] for name, layer in model.named_modules() if isinstance(layer, ConvNorm)]
    fused = legacy.fuse_modules(stubbed, [*layers, ["hidden", "hidden_relu"]])
    fused.qconfig = legacy.get_default_qconfig("fbgemm")
    prepared = legacy.prepare(fused)
    for image in images:
        prepared(image)
    return torch.jit.trace(legacy.convert(prepared), images[0])


def fx(model: nn.Module, images: list[torch.Tensor]) -> torch.jit.ScriptModule:
    """FX graph mode for the x86 engine, traced."""
    torch.backends.quantized.engine = "x86"
    mapping = legacy.get_default_qconfig_mapping("x86")
    prepared = quantize_fx.prepare_fx(copy.deepcopy(model), mapping, (images[0],))
    for image in images:
        prepared(image)
    return torch.jit.trace(quantize_fx.convert_fx(prepared), images[0])


def program_bytes(program: torch.export.ExportedProgram) -> bytes:
    """The .pt2 file, without stack traces from the machine that wrote it."""
    for module in program.graph_module.modules():
        for node in getattr(module, "graph", torch.fx.Graph()).nodes:
            for key in ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node"):
                node.meta.pop(key, None)
    content = io.BytesIO()
    torch.export.save(program, content)
    return content.getvalue()


def script_bytes(script: torch.jit.ScriptModule) -> bytes:
    """The TorchScript file."""
    content = io.BytesIO()
    torch.jit.save(script, content)
    return content.getvalue()


def quantize_all(data: Digits) -> Iterator[tuple[str, bytes, Callable[[torch.Tensor], torch.Tensor]]]:
    """(file name, content, the model as PyTorch runs it) for every way to quantize."""
    model = trained_cnn(data)
    images = calibration(data)
    for name, quantizer in (("x86", x86_quantizer()), ("xnnpack", xnnpack_quantizer())):
        program = pt2e(model, images, quantizer)
        yield f"digits_cnn_pt2e_{name}.pt2", program_bytes(program), program.module()
    for name, road in (("eager", eager), ("fx", fx)):
        script = road(model, images)
        yield f"digits_cnn_{name}.pt", script_bytes(script), script


def predict(model: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[np.ndarray], np.ndarray]:
    """`model` as a function of one image (1, 1, 8, 8)."""

    def run(image: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return model(torch.from_numpy(image)).numpy()

    return run


def main() -> None:
    """Write the models and their goldens to the folder given with --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("qnn_ext/data"), help="folder to write to (%(default)s)")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    data = load_split()
    print(f"{'float':28} {'':>13}   held-out accuracy {accuracy(predict(trained_cnn(data)), data):.2%}", flush=True)
    for name, content, model in quantize_all(data):
        write_bytes(out / name, content)
        write_goldens(out / GOLDENS, Path(name).stem, {"torch": predict(model)}, data)
        print(
            f"{name:28} {len(content):7,d} bytes   held-out accuracy {accuracy(predict(model), data):.2%}", flush=True
        )


if __name__ == "__main__":
    main()
