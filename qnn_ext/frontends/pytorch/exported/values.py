"""Small helpers of the converters: constants of a tensor's dtype, casts, static shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tvm import relax

from ....errors import UnsupportedOperatorError
from ....op.base import constant, constant_value, shape_of
from ...sizes import Size

_VALUE_DTYPES = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int16, torch.uint16,
    torch.int32, torch.uint32, torch.int64, torch.uint64, torch.bool,
)  # fmt: skip


@dataclass(frozen=True)
class ComplexValue:
    """A complex tensor: its real and its imaginary part; None for one that is 0."""

    real: relax.Expr
    imaginary: relax.Expr | None = None

    def imaginary_part(self) -> relax.Expr:
        """The imaginary part, zeros if there is none."""
        if self.imaginary is not None:
            return self.imaginary
        return constant(np.zeros(shape_of(self.real), str(self.real.ty.dtype)))


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype of PyTorch as TVM writes it. bfloat16 is held as float32: a program in bfloat16 is computed in float32,
    from the same weights. Raises UnsupportedOperatorError."""
    if dtype not in _VALUE_DTYPES:
        remedy = "export the model in float32"
        if "float8" in str(dtype):
            remedy = "weights of float8 alone are (Float8WeightOnlyConfig); quantize what is computed to int8"
        raise UnsupportedOperatorError(f"dtype {dtype} is not supported; {remedy}")
    return "float32" if dtype == torch.bfloat16 else str(dtype).removeprefix("torch.")


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's values, see `dtype_name`."""
    held = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    return held.detach().cpu().contiguous().numpy()


def is_any_of(name: str, parts: Sequence[str]) -> bool:
    """Whether a name contains one of the parts."""
    return any(part in name for part in parts)


def dtype_of(expr: relax.Expr) -> str:
    """Dtype of an expression."""
    return str(expr.ty.dtype)


def scalar(value: Any, dtype: str) -> relax.Expr:
    """A 0-d constant."""
    return constant(np.asarray(value).astype(dtype))


def cast(importer: Any, value: Any, dtype: str) -> relax.Expr:
    """A tensor, number or size as a tensor of this dtype."""
    value = value.value if isinstance(value, Size) else value
    if not isinstance(value, relax.Expr):
        return scalar(value, dtype)
    if dtype_of(value) == dtype:
        return value
    known = constant_value(value)
    return constant(known.astype(dtype)) if known is not None else importer.emit(relax.op.astype(value, dtype))


def reshape(importer: Any, value: relax.Expr, shape: Sequence[int]) -> relax.Expr:
    """A tensor reshaped; constants are reshaped at once."""
    shape = tuple(int(dim) for dim in shape)
    if shape_of(value) == shape:
        return value
    known = constant_value(value)
    return constant(known.reshape(shape)) if known is not None else importer.emit(relax.op.reshape(value, shape))


def axes_of(axes: Any, ndim: int) -> list[int]:
    """Dimensions as a list of non-negative integers; None and [] mean all of them."""
    if axes is None or axes == []:
        return list(range(ndim))
    return [int(axis) % max(ndim, 1) for axis in (axes if isinstance(axes, (list, tuple)) else [axes])]


def pair(value: Any, rank: int) -> list[int]:
    """A list with one number per spatial dimension."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return [int(v) for v in (values * rank if len(values) == 1 else values)]
