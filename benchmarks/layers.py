"""Layers by class, and how close each comes to the peak of the instruction that its products take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qnn_ext.numerics import bfloat16

CLASSES = ("k×k conv", "1×1 conv", "first layer", "depthwise", "dense", "batch_matmul", "other product", "no product")
FEW_CHANNELS = 4


@dataclass(frozen=True)
class Layer:
    """A kernel's name, class, multiply-accumulates and median seconds, a description of its shape, and what its
    products multiply, a key of peaks."""

    name: str
    kind: str
    shape: str
    macs: int
    seconds: float
    arithmetic: str = "int8"

    def least(self, peaks: Mapping[str, float]) -> float:
        """The seconds of its multiply-accumulates, two operations each, at the peak; 0 where that is not known."""
        return 2 * self.macs / peaks[self.arithmetic] if self.arithmetic in peaks else 0.0

    def of_peak(self, peaks: Mapping[str, float]) -> float:
        """Its speed as a share of the peak."""
        return self.least(peaks) / self.seconds if self.seconds else 0.0


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
            arithmetic_of(kernel.get("workload") or {}),
        )
        for kernel in profile
    ]


def arithmetic_of(workload: dict[str, Any]) -> str:
    """What a workload's instruction multiplies. Weights of 16 bits alone are widened."""
    if "float" not in workload.get("out_dtype", "int32"):
        return "int8"
    narrow = {workload["data_dtype"], workload["weight_dtype"]} == {bfloat16.BITS}
    return "bfloat16" if narrow else "float32"


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


def by_class(layers: Sequence[Layer], peaks: Mapping[str, float]) -> dict[str, ClassShare]:
    """Each class that occurs: its share of the time, and the share of the peak at which it runs (0 without a peak)."""
    total = sum(layer.seconds for layer in layers)
    shares = {}
    for kind in CLASSES:
        found = [layer for layer in layers if layer.kind == kind]
        seconds, least = sum(layer.seconds for layer in found), sum(layer.least(peaks) for layer in found)
        if seconds:
            shares[kind] = ClassShare(seconds / total, least / seconds)
    return shares
