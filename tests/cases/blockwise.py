"""Random products with block-wise quantized weights, for kernels, passes and frontends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import IRModule

from qnn_ext import op as qnn
from qnn_ext.numerics.bfloat16 import BITS, bits_of
from qnn_ext.numerics.packed import floats_of, narrow_range, pack, unpack, zero_points
from qnn_ext.op.base import constant
from tests.passes.modules import module

ZEROS = ("shared", "integers", "floats")
# rows, depth, units, group: one row and several, whole groups and a shorter last one, one group, units within a vector
SHAPES = [
    (1, 64, 40, 32),
    (5, 96, 17, 16),
    (3, 50, 8, 16),
    (2, 70, 33, 70),
    (1, 256, 16, 128),
    (1, 64, 120, 32),  # eight vectors of 16, of which four lie side by side, the last one in part
    (7, 64, 64, 32),
    (1, 32, 1044, 16),  # many vectors, padded to a multiple of the stride
]


@dataclass(frozen=True)
class Weight:
    """A weight (units, depth) as its operators take it."""

    packed: np.ndarray
    scale: np.ndarray
    zero_point: np.ndarray
    dtype: str
    group: int
    depth: int

    @property
    def parts(self) -> tuple:
        """The three tensors, constant."""
        return tuple(constant(array) for array in (self.packed, self.scale, self.zero_point))

    def magnitudes(self) -> np.ndarray:
        """(|q| + |zero point|) · |scale| for each value, where 2^(bits − 1) is subtracted from unsigned ones."""
        low, high = narrow_range(self.dtype)
        middle = (low + high + 1) // 2
        groups = -(-self.depth // self.group)
        zeros = np.broadcast_to(zero_points(self.zero_point, groups, self.dtype), self.scale.shape).astype(np.float64)
        by_column = [
            np.repeat(np.abs(one), self.group, 1)[:, : self.depth] for one in (zeros - middle, floats_of(self.scale))
        ]
        return (
            np.abs(unpack(self.packed, self.dtype, self.depth).astype(np.float64) - middle) + by_column[0]
        ) * by_column[1]


def weight_of(
    rng: np.random.Generator,
    units: int,
    depth: int,
    group: int,
    dtype: str,
    zeros: str = "shared",
    scales: str = "float32",
) -> Weight:
    """Uniform over the dtype, with both ends in every row that is long enough."""
    low, high = narrow_range(dtype)
    values = rng.integers(low, high + 1, (units, depth))
    values[:, :1], values[:, -1:] = low, high
    groups = -(-depth // group)
    scale = (rng.random((units, groups)) * 0.02 - 0.005).astype("float32")
    zero_point = {
        "shared": np.asarray((low + high + 1) // 2, np.int32),
        "integers": pack(rng.integers(low, high + 1, (units, groups)), dtype),
        "floats": (rng.random((units, groups)) * 5).astype(np.float32),
    }[zeros]
    stored = (scale.view(np.uint32) >> 16).astype(np.uint16) if scales == "bfloat16" else scale.astype(scales)
    return Weight(pack(values, dtype), stored, zero_point, dtype, group, depth)


def float_product(
    rng: np.random.Generator, rows: int, weight: Weight, dtype: str = "float32"
) -> tuple[IRModule, list[np.ndarray]]:
    """`blockwise_dense` of random data of float32, float16, or bits of bfloat16, and the data."""
    values = rng.standard_normal((rows, weight.depth)).astype(np.float32)
    data = bits_of(values) if dtype == BITS else values.astype(dtype)
    mod = module(
        [(data.shape, dtype)], lambda emit, x: qnn.blockwise_dense(x, *weight.parts, weight.dtype, weight.group)
    )
    return mod, [data]


def int8_product(
    rng: np.random.Generator, rows: int, weight: Weight, by_row: bool, fill: int | None = None
) -> tuple[IRModule, list[np.ndarray]]:
    """`blockwise_dense_int8` of random data, or data that are all `fill`, and the data."""
    data = rng.integers(-128, 128, (rows, weight.depth)).astype(np.int8)
    if fill is not None:
        data[:] = fill
    scale = rng.random((rows, 1 if by_row else weight.scale.shape[1])).astype(np.float32)

    def body(emit, x, s):
        return qnn.blockwise_dense_int8(x, s, *weight.parts, weight.dtype, weight.group)

    return module([(data.shape, "int8"), (scale.shape, "float32")], body), [data, scale]


def bound_of(data: np.ndarray, weight: Weight) -> np.ndarray:
    """What `blockwise_dense` says of its kernels' distance from the reference."""
    steps = weight.group + weight.scale.shape[1] + 8
    return steps * 2.0**-24 * (np.abs(floats_of(data)).astype(np.float64) @ weight.magnitudes().T)
