"""qnn.observe: an identity that marks a float tensor for quantization and holds what calibration needs to know of it.

`qnn_ext.quantize` inserts it (annotate), collects statistics at it (calibrate) and replaces it (realize). It computes
nothing: `build` removes it.
"""

from __future__ import annotations

import numpy as np
from tvm import IRModule, relax

from ..errors import ShapeError
from ..qparams import dtype_range
from .base import (
    Shape,
    TensorInfo,
    call_attributes,
    check_dtype,
    check_out_dtype,
    define,
    definition_of,
    export_to_script,
    normalize_axis,
)
from .traits import Kind, Traits

ROLES = ("input", "activation", "weight")
OBSERVED_DTYPES = ("int8", "uint8", "int16", "int32")


def _infer(
    data: TensorInfo, *, role: str, dtype: str, bits: int, axis: int | None, **rest: object
) -> tuple[Shape, str]:
    check_dtype(data, "float32", "float16")
    if role not in ROLES:
        raise ShapeError(f"role must be one of {', '.join(ROLES)}, found {role!r}")
    check_out_dtype(dtype, *OBSERVED_DTYPES)
    low, high = dtype_range(dtype)
    if not 2 <= bits <= (high - low + 1).bit_length() - 1:
        raise ShapeError(f"bits must be at least 2 and at most those of {dtype}, found {bits}")
    if axis is not None:
        normalize_axis(axis, data.ndim)
    return data.shape, data.dtype


def _reference(data: np.ndarray, **attributes: object) -> np.ndarray:
    return data


OBSERVE = define(
    "observe", "data", _infer, _reference, Traits(Kind.OTHER), "identity that marks a tensor to be quantized"
)


def observe(
    data: relax.Expr,
    site: str,
    layer: str,
    operator: str,
    role: str,
    dtype: str = "int8",
    bits: int = 8,
    symmetric: bool = True,
    axis: int | None = None,
    calibrate_mode: str = "auto",
    percentile: float = 99.99,
    low: float | None = None,
    high: float | None = None,
) -> relax.Call:
    """y = data, to be quantized as the attributes say.

    data:      float32 or float16 tensor
    site:      unique name of this place in the model: the key of a calibration table
    layer, operator: the layer that requires it and that layer's operator ("nn.conv2d"), for overrides and reports
    role:      "input" (operand of an integer product), "activation" (result between layers) or "weight"
    dtype, bits: integer dtype, and how many of its bits may be used
    symmetric: whether the zero point is in the middle of the integer range
    axis:      the dimension with a scale per slice, None for one scale
    calibrate_mode, percentile: how the range is determined
    low, high: the range if the user fixed it, so that no calibration is needed; otherwise None

    Raises ShapeError. Source: the annotate step of Relay's quantize (simulated_quantize), as a separate operator.
    """
    return OBSERVE.call(
        data,
        site=site,
        layer=layer,
        operator=operator,
        role=role,
        dtype=dtype,
        bits=bits,
        symmetric=symmetric,
        axis=axis,
        calibrate_mode=calibrate_mode,
        percentile=percentile,
        low=low,
        high=high,
    )


def observed_sites(mod: IRModule) -> dict[str, tuple[relax.Call, dict]]:
    """Site name -> its call and the call's attributes, in the order of `main`."""
    found = {}
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            if definition_of(binding.value) is OBSERVE:
                attributes = call_attributes(binding.value)
                found[attributes["site"]] = (binding.value, attributes)
    return found


export_to_script(observe=observe)
