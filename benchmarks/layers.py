"""Layers by class, and how close each comes to the machine's int8 peak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CLASSES = ("k×k conv", "1×1 conv", "first layer", "depthwise", "dense", "batch_matmul", "other product", "no product")
FEW_CHANNELS = 4


@dataclass(frozen=True)
class Layer:
    """A kernel's name, class, multiply-accumulates and median seconds, and a description of its shape."""

    name: str
    kind: str
    shape: str
    macs: int
    seconds: float

    def of_peak(self, peak: float) -> float:
        """Its operations per second, two per multiply-accumulate, as a share of `peak`."""
        return 2 * self.macs / self.seconds / peak if self.seconds else 0.0


@dataclass(frozen=True)
class ClassShare:
    """A class of layers' share of a model's time, and of the machine's peak."""

    of_time: float
    of_peak: float


def layers_of(profile: Sequence[dict[str, Any]]) -> list[Layer]:
    """The layers of an engine's profile, in the order they run."""
    return [
        Layer(
            kernel["layer"],
            layer_class(kernel["macs"], kernel.get("workload") or {}),
            shape_text(kernel.get("workload") or {}) or kernel["operators"],
            kernel["macs"],
            kernel["seconds"],
        )
        for kernel in profile
    ]


def layer_class(macs: int, workload: dict[str, Any]) -> str:
    """One of CLASSES, by the kernel's workload."""
    kind = workload.get("type")
    if kind == "DenseWorkload":
        return "dense"
    if kind == "BatchMatmulWorkload":
        return "batch_matmul"
    if kind == "Conv2dWorkload":
        return _conv_class(workload)
    return "other product" if macs else "no product"


def _conv_class(workload: dict[str, Any]) -> str:
    if 1 < workload["groups"] == workload["in_channels"]:
        return "depthwise"
    if workload["in_channels"] <= FEW_CHANNELS:
        return "first layer"
    return "1×1 conv" if tuple(workload["kernel"]) == (1, 1) else "k×k conv"


def shape_text(workload: dict[str, Any]) -> str:
    """ "3×3/2 112×112×32→64": kernel and stride, input, output channels; "128×768→3072" for a matrix product."""
    w = workload
    if w.get("type") == "Conv2dWorkload":
        stride = "" if tuple(w["strides"]) == (1, 1) else f"/{max(w['strides'])}"
        kernel = "×".join(map(str, w["kernel"]))
        return f"{kernel}{stride} {w['height']}×{w['width']}×{w['in_channels']}→{w['out_channels']}"
    if w.get("type") == "BatchMatmulWorkload":
        return f"{w['batch']}×{w['m']}×{w['k']}→{w['n']}"
    return f"{w['m']}×{w['k']}→{w['n']}" if w.get("type") == "DenseWorkload" else ""


def by_class(layers: Sequence[Layer], peak: float | None) -> dict[str, ClassShare]:
    """Each class that occurs: its share of the time, and the share of the peak at which it runs (0 without a peak)."""
    total = sum(layer.seconds for layer in layers)
    shares = {}
    for kind in CLASSES:
        found = [layer for layer in layers if layer.kind == kind]
        seconds, macs = sum(layer.seconds for layer in found), sum(layer.macs for layer in found)
        if seconds:
            shares[kind] = ClassShare(seconds / total, 2 * macs / seconds / peak if peak else 0.0)
    return shares
