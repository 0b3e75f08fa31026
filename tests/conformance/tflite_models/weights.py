"""Weights, biases and output scales of matrix products, chosen so that outputs neither vanish nor all saturate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .builder import Graph, Q, activation

INTEGER_KINDS = ("int8", "int8_per_tensor", "uint8", "int16", "int16_bias32", "int16_per_tensor")
FLOAT_KINDS = ("hybrid", "hybrid_per_channel", "float32", "float16")


@dataclass(frozen=True)
class Kind:
    """A combination of dtypes and weight granularity; `name` is the case's dtype, `suffix` goes into its variant."""

    key: str

    @property
    def name(self) -> str:
        """The dtype part of a case's name."""
        return self.key.split("_")[0]

    @property
    def suffix(self) -> str:
        """What distinguishes this kind from others of the same dtype."""
        if self.key in ("int8", "int16"):
            return "per_channel_"
        rest = self.key.removeprefix(self.name).strip("_")
        return f"{rest}_" if rest else ("per_tensor_" if self.key in ("uint8", "hybrid") else "")

    @property
    def activation(self) -> str:
        """Dtype of inputs and outputs."""
        return "float32" if self.name in ("hybrid", "float16") else self.name

    @property
    def per_channel(self) -> bool:
        """Whether every output channel has its own weight scale."""
        return self.key in ("int8", "int16", "int16_bias32", "hybrid_per_channel")

    @property
    def bias32(self) -> bool:
        """Whether 16x8 layers use a 32-bit bias (64-bit otherwise)."""
        return self.key == "int16_bias32"


@dataclass
class Layer:
    """Constant operands of a layer in a graph and the output's quantization."""

    weight: int
    bias: int
    output: Q | None


def add_weights(
    graph: Graph,
    kind: Kind,
    rng: np.random.Generator,
    shape: tuple[int, ...],
    axis: int,
    source: Q | None,
    *,
    out_where: str = "odd",
    gain: float = 1.0,
    with_bias: bool = True,
) -> Layer:
    """Adds weight and bias constants. `axis` is the output channel's dimension, `gain` scales the output multiplier."""
    channels = shape[axis]
    depth = int(np.prod(shape)) // channels
    if kind.name in ("float32", "float16"):
        return float_weights(graph, kind, rng, shape, channels, with_bias)
    low = 0 if kind.name == "uint8" else -127
    values = rng.integers(low, 255 if low == 0 else 127, shape, endpoint=True).astype("uint8" if low == 0 else "int8")
    values.reshape(-1)[:2] = (low, low + 254)
    scales = rng.uniform(0.002, 0.02, channels if kind.per_channel else 1).astype(np.float32)
    weight = graph.const(values, q=Q(scales, 121 if low == 0 else 0, axis), name="weight")
    if kind.name == "hybrid":
        bias = graph.const(rng.integers(-512, 512, channels) / 256, "float32", name="bias") if with_bias else -1
        return Layer(weight, bias, None)
    assert source is not None
    spread = (19000 if kind.name == "int16" else 74) * 74 * float(np.sqrt(depth))
    top = 32767 if kind.name == "int16" else 127
    scale = float(source.scale * scales.mean() * spread * 2.5 / top / gain)
    output = Q(scale, activation(kind.name, where=out_where).zero_point)  # type: ignore[union-attr]
    if not with_bias:
        return Layer(weight, -1, output)
    wide = kind.name == "int16" and not kind.bias32
    reach = int(spread / max(gain, 1.0))
    bias_values = rng.integers(-reach, reach, channels).astype("int64" if wide else "int32")
    bias_scale = np.float32(source.scale) * scales
    return Layer(weight, graph.const(bias_values, q=Q(bias_scale, 0, 0), name="bias"), output)


def near_zero(q: Q | None, gain: float) -> dict[str, float]:
    """Input limits: two steps around the zero point where the multiplier is so large that wider ones would saturate."""
    return {"low": q.zero_point - 2, "high": q.zero_point + 2} if q is not None and gain > 50 else {}


def float_weights(graph: Graph, kind: Kind, rng: np.random.Generator, shape: tuple, channels: int, bias: bool) -> Layer:
    """Float constants on a grid; float16 ones pass through DEQUANTIZE as the converter writes it."""
    arrays = [rng.integers(-256, 256, shape) / 256] + ([rng.integers(-512, 512, channels) / 256] if bias else [])
    operands = []
    for array, name in zip(arrays, ("weight", "bias"), strict=False):
        index = graph.const(array, kind.name, name=name)
        if kind.name == "float16":
            wide = graph.tensor(array.shape, "float32", name=f"{name}_float32")
            graph.op("DEQUANTIZE", [index], [wide])
            index = wide
        operands.append(index)
    return Layer(operands[0], operands[1] if bias else -1, None)
