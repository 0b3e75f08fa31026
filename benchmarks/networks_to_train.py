"""The networks that `standins` trains, in PyTorch: small ones built like those that are used for the same tasks."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 37
HOP, FRAMES, KEYS, LOWEST = 128, 32, 48, 130.8  # of `pitch`: samples, frames, notes, and the lowest in Hz
_OVERTONES = (0, 12, 19, 24, 28, -12)  # in bins
_BINS = KEYS + 24


def conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1, act: Any = None) -> nn.Module:
    """Convolution, batch normalization, function."""
    layers = [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)]
    return nn.Sequential(*layers, nn.BatchNorm2d(outputs), *([act()] if act else []))


class _Excite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, channels // 4, 1),
            nn.ReLU(),
            nn.Conv2d(channels // 4, channels, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x)


class _Attention(nn.Module):
    """Self-attention and a perceptron, each after a normalization."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        count, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(count, length, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-1, -2) * self.size**-0.5, -1)
        x = x + self.project((weights @ v).transpose(1, 2).reshape(count, length, width))
        return x + self.perceptron(self.norm2(x))


class _Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        swish = nn.Hardswish
        layers: list[nn.Module] = [conv(3, 16, 3, 2, act=swish)]
        channels = 16
        for width, stride, excites in ((32, (2, 2), True), (48, (2, 1), False), (48, 1, True), (64, (2, 1), True)):
            layers.append(conv(channels, channels, 5 if excites else 3, stride, channels, swish))
            layers += [_Excite(channels)] if excites else []
            layers.append(conv(channels, width, 1, act=swish))
            channels = width
        self.body = nn.Sequential(*layers)
        self.attention = _Attention(64)
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x).mean(2).transpose(1, 2)
        return torch.softmax(self.head(self.norm(self.attention(x))), 2)


def text() -> nn.Module:
    """(N, 3, 32, 128) → probabilities (N, 32, 37): built like PP-OCR's recognizer."""
    return _Text()


class _Regions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        act = nn.Hardswish
        self.stages = nn.ModuleList()
        channels = 3
        for width in (16, 24, 40, 64):
            depthwise = [] if channels == 3 else [conv(channels, channels, 5, 2, channels, act), _Excite(channels)]
            first = conv(3, width, 3, 2, act=act) if channels == 3 else conv(channels, width, 1, act=act)
            last = [conv(width, width, 3, 1, width, act), conv(width, width, 1, act=act)]
            self.stages.append(nn.Sequential(*depthwise, first, *last))
            channels = width
        self.inner = nn.ModuleList([nn.Conv2d(width, 32, 1, bias=False) for width in (24, 40, 64)])
        self.outer = nn.ModuleList([nn.Conv2d(32, 16, 3, 1, 1, bias=False) for _ in range(3)])
        self.head = nn.Sequential(
            conv(48, 16, act=nn.ReLU),
            nn.ConvTranspose2d(16, 16, 2, 2),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 1, 2, 2),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        fine, middle, coarse = (inner(y) for inner, y in zip(self.inner, found[1:], strict=True))
        middle = middle + functional.interpolate(coarse, scale_factor=2.0)
        fine = fine + functional.interpolate(middle, scale_factor=2.0)
        parts = [outer(y) for outer, y in zip(self.outer, (fine, middle, coarse), strict=True)]
        parts = [functional.interpolate(y, scale_factor=2.0**i) if i else y for i, y in enumerate(parts)]
        return self.head(torch.cat(parts, 1))


def regions() -> nn.Module:
    """(N, 3, 96, 96) → probabilities (N, 1, 96, 96): built like PP-OCR's detector."""
    return _Regions()


class _Inverted(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        inner, act = inputs * expand, nn.ReLU6
        self.adds = stride == 1 and inputs == outputs
        first = [conv(inputs, inner, 1, act=act)] if expand > 1 else []
        self.body = nn.Sequential(*first, conv(inner, inner, 3, stride, inner, act), conv(inner, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds else self.body(x)


def glyphs() -> nn.Module:
    """(N, 3, 32, 32) → logits (N, 36): built like MobileNetV2 0.35."""
    layers: list[nn.Module] = [conv(3, 16, 3, 2, act=nn.ReLU6)]
    channels = 16
    for width, stride, expand in ((8, 1, 1), (8, 1, 6), (16, 2, 6), (16, 1, 6), (24, 1, 6), (32, 2, 6), (32, 1, 6)):
        layers.append(_Inverted(channels, width, stride, expand))
        channels = width
    layers += [conv(channels, 128, 1, act=nn.ReLU6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 36)]
    return nn.Sequential(*layers)


class _Pitch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        frequencies = LOWEST * 2 ** (np.arange(_BINS) / 12)
        angle = 2 * np.pi * np.arange(-512, 512) / 8000 * frequencies[:, None]
        window = np.exp(-np.square(np.arange(-512, 512) / 8000 * frequencies[:, None] / 8) * 4)
        window /= window.sum(1, keepdims=True)
        filters = np.concatenate([np.cos(angle) * window, np.sin(angle) * window])[:, None].astype(np.float32)
        self.register_buffer("filters", torch.from_numpy(filters))
        self.norm = nn.BatchNorm2d(1)
        parts = len(_OVERTONES)
        self.sounds = nn.Sequential(
            conv(parts, 16, 5, act=nn.ReLU), conv(16, 16, act=nn.ReLU), conv(16, 16, act=nn.ReLU)
        )
        self.sounding = nn.Sequential(conv(16, 16, 5, act=nn.ReLU), nn.Conv2d(16, 1, 3, 1, 1), nn.Sigmoid())
        self.begins = conv(parts, 16, 5, act=nn.ReLU)
        self.beginning = nn.Sequential(nn.Conv2d(17, 1, 3, 1, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        both = functional.conv1d(functional.pad(x[:, None], (512, 384)), self.filters, stride=HOP)
        power = both[:, :_BINS].square() + both[:, _BINS:].square()
        level = torch.log10(power + 1e-10).transpose(1, 2)[:, None]
        low, high = level.amin((1, 2, 3), True), level.amax((1, 2, 3), True)
        level = self.norm((level - low) / (high - low))
        padded = functional.pad(level, (12, 28))
        parts = torch.cat([padded[..., 12 + shift : 12 + shift + KEYS] for shift in _OVERTONES], 1)
        note = self.sounding(self.sounds(parts))
        onset = self.beginning(torch.cat([self.begins(parts), note], 1))
        return note[:, 0], onset[:, 0]


def pitch() -> nn.Module:
    """(N, samples) → notes and beginnings (N, frames, keys): built like Basic Pitch."""
    return _Pitch()


class _Branches(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        half = outputs // 2
        self.first = conv(inputs, outputs, 1, act=nn.SiLU)
        self.inner = nn.Sequential(conv(half, half, act=nn.SiLU), conv(half, half, act=nn.SiLU))
        self.last = conv(3 * half, outputs, 1, act=nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        one, two = self.first(x).chunk(2, 1)
        return self.last(torch.cat([one, two, two + self.inner(two)], 1))


@cache
def cells() -> tuple[Tensor, Tensor]:
    """The middles (cells, 2) in pixels and strides (cells,) of `shapes`."""
    found = []
    for stride in (8, 16):
        y, x = np.mgrid[: 96 // stride, : 96 // stride]
        middles = (np.stack([x, y], -1).reshape(-1, 2) + 0.5) * stride
        found.append(np.concatenate([middles, np.full((len(middles), 1), stride)], 1))
    table = torch.from_numpy(np.concatenate(found).astype(np.float32))
    return table[:, :2], table[:, 2]


class _Shapes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        act = nn.SiLU
        self.stem = nn.Sequential(conv(3, 16, 3, 2, act=act), conv(16, 24, 3, 2, act=act), _Branches(24, 24))
        self.fine = nn.Sequential(conv(24, 32, 3, 2, act=act), _Branches(32, 32))
        self.coarse = nn.Sequential(conv(32, 48, 3, 2, act=act), _Branches(48, 48))
        self.before, self.behind = conv(48, 24, 1, act=act), conv(72, 48, 1, act=act)
        self.pool = nn.MaxPool2d(5, 1, 2)
        self.join = _Branches(80, 32)
        self.boxes = nn.ModuleList([nn.Sequential(conv(n, 24, act=act), nn.Conv2d(24, 4, 1)) for n in (32, 48)])
        self.classes = nn.ModuleList([nn.Sequential(conv(n, 24, act=act), nn.Conv2d(24, 3, 1)) for n in (32, 48)])
        for head in self.classes:
            nn.init.constant_(head[1].bias, -4.0)
        centers, strides = cells()
        self.register_buffer("centers", centers.t()[None])
        self.register_buffer("strides", strides[None, None])

    def forward(self, x: Tensor) -> Tensor:
        fine = self.fine(self.stem(x))
        y = self.before(self.coarse(fine))
        once = self.pool(y)
        coarse = self.behind(torch.cat([y, once, self.pool(once)], 1))
        scales = self.join(torch.cat([functional.interpolate(coarse, scale_factor=2.0), fine], 1)), coarse
        boxes = torch.cat([head(y).flatten(2) for head, y in zip(self.boxes, scales, strict=True)], 2)
        classes = torch.cat([head(y).flatten(2) for head, y in zip(self.classes, scales, strict=True)], 2)
        middles = self.centers + boxes[:, :2] * self.strides
        sides = torch.exp(boxes[:, 2:].clamp(-4, 4)) * self.strides
        return torch.cat([middles, sides, torch.sigmoid(classes)], 1)


def shapes() -> nn.Module:
    """(N, 3, 96, 96) → (N, 4 + 3, cells), boxes in pixels and probabilities: built like YOLOv8."""
    return _Shapes()


class _Upscale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 24, 5, 1, 2), nn.PReLU(24)]
        for _ in range(3):
            layers += [nn.Conv2d(24, 24, 3, 1, 1), nn.PReLU(24)]
        self.body = nn.Sequential(*layers, nn.Conv2d(24, 12, 3, 1, 1), nn.PixelShuffle(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + functional.interpolate(x, scale_factor=2.0)


def upscale() -> nn.Module:
    """(N, 3, 48, 48) → (N, 3, 96, 96): built like ESPCN."""
    return _Upscale()
