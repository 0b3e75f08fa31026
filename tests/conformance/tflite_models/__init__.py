"""Builders of the conformance models, one module per operator family; `FAMILIES` names every family's list of specs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .builder import Spec
from .conv import conv_specs, depthwise_specs, transpose_conv_specs
from .dense import batch_matmul_specs, dense_specs
from .pool import normalization_specs, pool_specs, resize_specs

FAMILIES: dict[str, Callable[[], Iterator[Spec]]] = {
    "conv2d": conv_specs,
    "depthwise": depthwise_specs,
    "transpose_conv": transpose_conv_specs,
    "fully_connected": dense_specs,
    "batch_matmul": batch_matmul_specs,
    "pool": pool_specs,
    "resize": resize_specs,
    "normalization": normalization_specs,
}
