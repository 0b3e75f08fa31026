"""Site: one tensor to be quantized, as decided by annotate and read by all later stages."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from tvm import relax

from ...errors import NothingMarkedError
from ...module import QnnModule
from ...op.arguments import data_of
from ...op.base import constant_value, shape_of
from ...op.observe import observed_sites
from .loop_products import observed_in_loops


@dataclass(frozen=True)
class Site:
    """A tensor to be quantized.

    name:      unique: that of the variable for activations, "<layer>.weight" for weights
    layer, operator: the first layer that requests it
    role:      "input" (operand of an integer product), "activation" or "weight"
    dtype, bits, symmetric, axis: of the integers; axis: the dimension with a scale per slice, None per-tensor
    value:     the constant of a weight, None for activations
    calibrate_mode, percentile: how its range is found
    range:     (low, high) if the user fixed it
    """

    name: str
    layer: str
    operator: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    bits: int
    symmetric: bool
    axis: int | None
    value: np.ndarray | None = field(default=None, repr=False, compare=False)
    calibrate_mode: str = "auto"
    percentile: float = 99.99
    range: tuple[float, float] | None = None


def sites(annotated: QnnModule) -> list[Site]:
    """The sites of an annotated module, those in loops last. Raises NothingMarkedError when there are none."""
    observers = [*observed_sites(annotated.ir).values(), *observed_in_loops(annotated.ir)]
    found = [_site(*observer) for observer in observers]
    if not found:
        raise NothingMarkedError(
            "no tensor of this module is marked for quantization: it is not annotated, has no convolution or matrix "
            "product, or the qconfig keeps all of them in float"
        )
    return found


def _site(call: relax.Call, attributes: dict) -> Site:
    attributes = dict(attributes)
    low, high = attributes.pop("low"), attributes.pop("high")
    return Site(
        name=attributes.pop("site"),
        shape=shape_of(data_of(call)),
        value=constant_value(data_of(call)),
        range=None if low is None else (low, high),
        **attributes,
    )
