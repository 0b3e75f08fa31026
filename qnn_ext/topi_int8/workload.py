"""Workloads: what the kernel of a product has to compute, as plain values. Strategies select and schedule by these
alone.

Shapes are static, activations NHWC, accumulators int32 (int64 if int16 activations need it), or float32 for operands of
float32, float16, or the bits of bfloat16 as uint16. Zero points never appear here: Canonicalize has moved them into
constants, and padding carries its own value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..numerics.bfloat16 import BITS


@dataclass(frozen=True)
class Conv2dWorkload:
    """acc[n, y, x, o] = Σ_{r,s,c} pad(x)[n, y·sh + r·dh, x·sw + s·dw, g(o)·C/G + c] · w[o, r, s, c].

    Activations of 8 bits with weights of floats are dequantized by the kernel, where it copies them.
    Weights are OHWI: (out_channels, kh, kw, in_channels / groups). A depthwise convolution is groups == in_channels;
    its output channel o reads input channel o // multiplier.

    nine_bit_weights: whether int16 weights are known to be sums of two int8 values, within -256..254, as the weights
    of uint8 models are after subtracting their zero point
    pairable_weights: whether no output channel has two int8 weights of -128, used by ARM targets only: the sum of two
    products of a channel with int8 values then fits 16 bits, 128 · 128 + 127 · 128 < 2^15
    by_columns: whether a depthwise convolution of floats, of one output channel per input channel, adds its taps column
    by column
    """

    batch: int
    height: int
    width: int
    in_channels: int
    out_channels: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]  # top, left, bottom, right
    dilation: tuple[int, int]
    groups: int
    data_dtype: str
    weight_dtype: str
    out_dtype: str = "int32"
    nine_bit_weights: bool = False
    pairable_weights: bool = False
    by_columns: bool = False

    @property
    def out_height(self) -> int:
        return self._out(self.height, 0, self.padding[0] + self.padding[2])

    @property
    def out_width(self) -> int:
        return self._out(self.width, 1, self.padding[1] + self.padding[3])

    def _out(self, size: int, axis: int, pad: int) -> int:
        return (size + pad - (self.kernel[axis] - 1) * self.dilation[axis] - 1) // self.strides[axis] + 1

    @property
    def summary(self) -> str:
        """What it is, for users."""
        channels = f"{self.in_channels} → {self.out_channels} channels in {self.groups} groups"
        return f"a {'×'.join(map(str, self.kernel))} convolution of {_dtypes(self)}, {channels}"

    @property
    def depthwise(self) -> bool:
        return self.groups > 1 and self.groups == self.in_channels

    @property
    def multiplier(self) -> int:
        """Output channels per input channel of a depthwise convolution."""
        return self.out_channels // self.groups

    @property
    def macs(self) -> int:
        taps = self.kernel[0] * self.kernel[1] * (self.in_channels // self.groups)
        return self.batch * self.out_height * self.out_width * self.out_channels * taps


@dataclass(frozen=True)
class DenseWorkload:
    """acc[m, n] = Σ_k x[m, k] · w[n, k].

    pairable_weights: as of a convolution
    """

    m: int
    k: int
    n: int
    data_dtype: str
    weight_dtype: str
    out_dtype: str = "int32"
    pairable_weights: bool = False

    @property
    def summary(self) -> str:
        """What it is, for users."""
        return f"a dense layer of {_dtypes(self)}, {self.m} rows of {self.k} → {self.n}"

    @property
    def macs(self) -> int:
        return self.m * self.k * self.n


@dataclass(frozen=True)
class BatchMatmulWorkload:
    """acc[b, m, n] = Σ_k x[b, m, k] · y[b, n, k], both operands computed at run time."""

    batch: int
    m: int
    k: int
    n: int
    data_dtype: str
    weight_dtype: str
    out_dtype: str = "int32"

    @property
    def pairable_weights(self) -> bool:
        """As of a dense layer: not known of operands computed at run time."""
        return False

    @property
    def summary(self) -> str:
        """What it is, for users."""
        return f"a product of matrices of {_dtypes(self)}, {self.batch} × {self.m} rows of {self.k} → {self.n}"

    @property
    def macs(self) -> int:
        return self.batch * self.m * self.k * self.n


@dataclass(frozen=True)
class BlockwiseWorkload:
    """A product with block-wise quantized weights, as `op.blockwise` defines it: of floats, `blockwise_dense`, or of
    int8 activations, `blockwise_dense_int8`.

    group:        values of K that share a scale
    weight_dtype: of the packed weights: int2 to uint8
    zero_point:   that of all groups; None if each has its own
    float_zeros:  whether zero points are floats
    row_scales:   whether int8 activations have a scale for each row instead of one for each group
    """

    m: int
    k: int
    n: int
    group: int
    data_dtype: str
    weight_dtype: str
    zero_point: int | None = 0
    float_zeros: bool = False
    row_scales: bool = False
    out_dtype: str = "float32"

    @property
    def groups(self) -> int:
        """How many groups K has, of which the last may be shorter."""
        return -(-self.k // self.group)

    @property
    def integers(self) -> bool:
        """Whether activations are int8."""
        return self.data_dtype == "int8"

    @property
    def summary(self) -> str:
        """What it is, for users."""
        weights = f"{self.weight_dtype} weights in groups of {self.group}"
        return f"a dense layer of {self.data_dtype} × {weights}, {self.m} rows of {self.k} → {self.n}"

    @property
    def macs(self) -> int:
        return self.m * self.k * self.n


Workload = Conv2dWorkload | DenseWorkload | BatchMatmulWorkload
AnyWorkload = Workload | BlockwiseWorkload

_TYPES: dict[str, Any] = {
    kind.__name__: kind for kind in (Conv2dWorkload, DenseWorkload, BatchMatmulWorkload, BlockwiseWorkload)
}


def workload_from(fields: Mapping[str, Any]) -> Any:
    """A workload from its JSON form: "type" and the fields, lists for tuples. Raises KeyError, TypeError."""
    values: dict[str, Any] = {key: tuple(item) if isinstance(item, list) else item for key, item in fields.items()}
    return _TYPES[values.pop("type")](**values)


def workload_to(workload: Workload) -> dict[str, Any]:
    """The inverse of `workload_from`."""
    return {"type": type(workload).__name__, **asdict(workload)}


def is_float(workload: AnyWorkload) -> bool:
    """Whether it multiplies floats."""
    return workload.out_dtype.startswith("float")


def value_bytes(workload: Workload) -> int:
    """Bytes of an activation or a weight, where the caches that hold them matter: of the wider float, or of 8 bits."""
    dtypes = (workload.data_dtype, workload.weight_dtype)
    return max(np.dtype(dtype).itemsize for dtype in dtypes) if is_float(workload) else 1


def _dtypes(workload: Workload) -> str:
    named = {BITS: "bfloat16"} if is_float(workload) else {}
    data, weights = (named.get(dtype, dtype) for dtype in (workload.data_dtype, workload.weight_dtype))
    return f"{data} × {weights} → {workload.out_dtype}"
