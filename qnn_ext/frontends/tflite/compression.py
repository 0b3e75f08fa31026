"""Constants that TensorFlow Lite Micro's compression tool stores as indices into tables, as what they stand for.

TFLM_DECODE computes tensors from pairs of constants. The bytes of the first one are indices of equal width, from the
highest bits on. The second one describes them: byte 0 the kind (0: by tables), bytes 1 and 4 the version (1), byte 5
the axis along which tables differ (its upper half, 15 for a single one) and the bits of an index (its lower three),
byte 6 how many values a table has; tables follow from byte 16 on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import ModelFormatError, UnsupportedOperatorError
from ...limits import charge, check_elements
from .tensors import Tensor

DECODE = "TFLM_DECODE"

_HEADER = 16
_SINGLE = 15
_DTYPES = ("int8", "uint8", "int16", "int32", "int64", "float32")
_REMEDY = "import the model as it was before it was compressed"


def decoded(tensors: Sequence[Tensor], operators: Sequence[Any]) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
    """The tensors with the values that TFLM_DECODE computes, and the other operators.

    Raises ModelFormatError for contradictory descriptions, UnsupportedOperatorError for other kinds and versions.
    """
    found = list(tensors)
    for operator in operators:
        if not (operator.custom and operator.name == DECODE):
            continue
        if len(operator.inputs) != 2 * len(operator.outputs):
            raise ModelFormatError(
                f"{operator.label()}: {len(operator.inputs)} inputs for {len(operator.outputs)} outputs; each has two"
            )
        for output, codes, tables in zip(operator.outputs, operator.inputs[::2], operator.inputs[1::2], strict=True):
            if found[output].is_constant:
                raise ModelFormatError(f"{operator.label()} writes {found[output].label()}, which already has a value")
            parts = [_bytes(operator, found, index) for index in (codes, tables)]
            found[output] = replace(found[output], stored=_looked_up(operator, found[output], *parts))
    return tuple(found), tuple(one for one in operators if not (one.custom and one.name == DECODE))


def _bytes(operator: Any, tensors: Sequence[Tensor], index: int) -> np.ndarray:
    data = tensors[index].data if index >= 0 else None
    if data is None:
        raise UnsupportedOperatorError(f"{operator.label()}: decoding what is no constant is not supported; {_REMEDY}")
    return np.frombuffer(data.tobytes(), np.uint8)


def _looked_up(operator: Any, tensor: Tensor, codes: np.ndarray, description: np.ndarray) -> np.ndarray:
    label, shape = f"{operator.label()}, {tensor.label()}", tensor.shape
    if len(description) < _HEADER:
        raise ModelFormatError(f"{label}: a description of {len(description)} bytes, which has at least {_HEADER}")
    kind, version, tables_version, width = (int(description[i]) for i in (0, 1, 4, 6))
    axis, bits = divmod(int(description[5]), 16)
    if kind != 0 or version != 1 or tables_version != 1 or tensor.dtype not in _DTYPES:
        raise UnsupportedOperatorError(
            f"{label}: {tensor.dtype} compressed as kind {kind}, versions {version} and {tables_version}, is not "
            f"supported, only tables (kind 0, version 1) of {', '.join(_DTYPES)}; {_REMEDY}"
        )
    if axis != _SINGLE and axis >= len(shape):
        raise ModelFormatError(f"{label}: tables along axis {axis} of a tensor of shape {shape}")
    check_elements([max(size, 1) for size in shape], "a compressed tensor", "folded")
    charge(shape, "compressed tensors")
    count, rows = 1 if axis == _SINGLE else shape[axis], description[_HEADER:]
    needed = count * width * np.dtype(tensor.dtype).itemsize
    indices = _indices(codes, bits & 7, math.prod(shape))
    if indices is None or len(rows) < needed or indices.max(initial=0) >= width:
        raise ModelFormatError(
            f"{label}: {len(codes)} bytes of {bits & 7}-bit indices and {len(rows)} of {count} tables with {width} "
            f"values do not describe {tensor.dtype} {shape}"
        )
    tables = np.frombuffer(rows[:needed].tobytes(), np.dtype(tensor.dtype).newbyteorder("<")).reshape(count, width)
    places = [1] * len(shape)
    if axis != _SINGLE:
        places[axis] = count
    values = tables[np.arange(count).reshape(places), indices.reshape(shape)].astype(tensor.dtype)
    values.flags.writeable = False
    return values


def _indices(codes: np.ndarray, bits: int, count: int) -> np.ndarray | None:
    """`count` numbers of so many bits each; None if there are not enough."""
    if not bits or len(codes) * 8 < count * bits:
        return None
    digits = np.unpackbits(codes, count=count * bits).reshape(count, bits)
    return np.packbits(digits, axis=1).reshape(-1) >> (8 - bits)
