"""ResNet-18 and MobileNetV2 with random but sane weights, quantized by PyTorch in eager and FX graph mode."""

from __future__ import annotations

import copy
import warnings

import torch
from torch import nn
from torch.ao.nn.quantized import FloatFunctional
from torch.ao.quantization import DeQuantStub, QuantStub, convert, fuse_modules, get_default_qconfig, prepare
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

warnings.filterwarnings("ignore", module="torch")


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(outputs)]


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut, added and rectified."""

    fused = (("0", "1", "2"), ("3", "4"))

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*conv_norm(inputs, outputs, 3, stride), nn.ReLU(), *conv_norm(outputs, outputs, 3))
        self.shortcut = nn.Sequential(*conv_norm(inputs, outputs, 1, stride)) if stride > 1 else nn.Identity()
        self.sum = FloatFunctional()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.sum.add_relu(self.body(x), self.shortcut(x))


class InvertedResidual(nn.Module):
    """Expand, depthwise, project; a shortcut where the shape stays."""

    def __init__(self, inputs: int, outputs: int, stride: int, factor: int, relu: type[nn.Module]) -> None:
        super().__init__()
        hidden = inputs * factor
        layers = [*conv_norm(inputs, hidden, 1), relu()] if factor > 1 else []
        layers += [*conv_norm(hidden, hidden, 3, stride, hidden), relu(), *conv_norm(hidden, outputs, 1)]
        self.body = nn.Sequential(*layers)
        self.keeps = stride == 1 and inputs == outputs
        self.sum = FloatFunctional()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.sum.add(x, self.body(x)) if self.keeps else self.body(x)


class Classifier(nn.Module):
    """Features, global average, one linear layer; quantized from its input to its logits."""

    def __init__(self, features: list[nn.Module], channels: int, classes: int) -> None:
        super().__init__()
        self.quantize, self.dequantize = QuantStub(), DeQuantStub()
        self.features = nn.Sequential(*features)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.features(self.quantize(image)))
        return self.dequantize(self.classifier(torch.flatten(x, 1)))


def resnet18(width: int = 64, classes: int = 1000) -> Classifier:
    layers: list[nn.Module] = [*conv_norm(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = width
    for stage in range(4):
        outputs = width << stage
        layers += [BasicBlock(channels, outputs, 1 if stage == 0 else 2), BasicBlock(outputs, outputs, 1)]
        channels = outputs
    return Classifier(layers, channels, classes)


def mobilenet_v2(width: float = 1.0, classes: int = 1000, relu: type[nn.Module] = nn.ReLU6) -> Classifier:
    """QNNPACK needs nn.ReLU: its clamp scrambles channels-last tensors, which its convolutions yield."""

    def scaled(channels: int) -> int:
        return max(8, int(channels * width + 4) // 8 * 8)

    channels = scaled(32)
    layers: list[nn.Module] = [*conv_norm(3, channels, 3, 2), relu()]
    settings = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    for factor, outputs, count, stride in settings:
        for index in range(count):
            layers.append(InvertedResidual(channels, scaled(outputs), stride if index == 0 else 1, factor, relu))
            channels = scaled(outputs)
    last = max(1280, scaled(1280)) if width >= 1 else scaled(1280)
    layers += [*conv_norm(channels, last, 1), relu()]
    return Classifier(layers, last, classes)


def sane(model: nn.Module, seed: int = 0) -> nn.Module:
    """Random weights that keep activations in range, and batch statistics that are not trivial."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.2, generator=generator)
            module.running_var.uniform_(0.5, 1.5, generator=generator)
            nn.init.uniform_(module.weight, 0.5, 1.2, generator=generator)
            nn.init.normal_(module.bias, 0, 0.2, generator=generator)
        elif isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight, generator=generator)
    return model.eval()


def images(count: int, size: int, seed: int = 1) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, 3, size, size, generator=generator) for _ in range(count)]


def _fuse(module: nn.Module) -> None:
    """Convolution, normalization and ReLU of every Sequential; ReLU6 cannot be fused and stays an operator."""
    for child in module.modules():
        if not isinstance(child, nn.Sequential):
            continue
        names, groups, index = list(child._modules), [], 0
        while index + 1 < len(names):
            if isinstance(child[index], nn.Conv2d) and isinstance(child[index + 1], nn.BatchNorm2d):
                rectified = index + 2 < len(names) and type(child[index + 2]) is nn.ReLU
                groups.append(names[index : index + (3 if rectified else 2)])
            index += 1
        if groups:
            fuse_modules(child, groups, inplace=True)


def quantize_eager(model: nn.Module, engine: str, size: int) -> torch.jit.ScriptModule:
    """Eager mode quantization for an engine, traced."""
    torch.backends.quantized.engine = engine
    model = copy.deepcopy(model)
    _fuse(model)
    model.qconfig = get_default_qconfig(engine)
    prepared = prepare(model)
    return _traced(convert(_calibrated(prepared, size)), size)


def quantize_fx(model: nn.Module, engine: str, size: int) -> torch.jit.ScriptModule:
    """FX graph mode quantization for an engine, traced."""
    from torch.ao.quantization import get_default_qconfig_mapping

    torch.backends.quantized.engine = engine
    (example,) = images(1, size)
    prepared = prepare_fx(copy.deepcopy(model), get_default_qconfig_mapping(engine), (example,))
    return _traced(convert_fx(_calibrated(prepared, size)), size)


def _calibrated(prepared: nn.Module, size: int) -> nn.Module:
    with torch.no_grad():
        for image in images(4, size):
            prepared(image)
    return prepared


def _traced(quantized: nn.Module, size: int) -> torch.jit.ScriptModule:
    with torch.no_grad():
        return torch.jit.trace(quantized, images(1, size)[0], check_trace=False)
