"""Tensors of a .tflite file: shape, dtype, QParams and constant data, each verified against the bytes in the file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ModelFormatError, QnnError, ShapeError, UnsupportedOperatorError
from ...limits import check_elements
from ...qparams import INTEGER_DTYPES, QParams, dtype_range
from .flatbuffer import FlatFile, numbers, text
from .options import dtype_name, enum_name
from .sparsity import read_sparse

MAX_RANK = 32  # NumPy 1's limit

# Some files have channels whose weights are all zero, with scale 0. Integers cannot represent that, so it becomes a
# scale that keeps every product below half a step: the result is the same, and products with it stay normal float32
# numbers.
_NEGLIGIBLE_SCALE = np.float32(1e-30)


@dataclass(frozen=True, eq=False)
class Tensor:
    """One tensor of a subgraph.

    shape:           as stored, 0 for a negative dimension
    shape_signature: the same with -1 for dynamic dimensions
    dtype:           NumPy name, or "string", "resource", "variant", "bfloat16", and "int4" when not constant
    qparams:         None when not quantized
    data:            constant value, read-only, of shape `shape` (int4 unpacked to int8, sparse ones made dense); None
                     when not constant
    channel_dimension: the dimension that per-channel scales run along, as stored, also where there is one scale
    """

    index: int
    name: str
    shape: tuple[int, ...]
    shape_signature: tuple[int, ...]
    dtype: str
    qparams: QParams | None
    data: np.ndarray | None
    is_variable: bool
    channel_dimension: int = 0

    def label(self) -> str:
        """How messages refer to this tensor."""
        return f"tensor {self.index} '{self.name}'"


def read_buffer(file: FlatFile, table: Any) -> np.ndarray:
    """The bytes of a buffer as a read-only uint8 view of the file, empty when it holds none."""
    start, size = table.Offset(), table.Size()
    if start > 1:  # after the end of the flatbuffer, in files over 2 GB; offsets 0 and 1 mean "none"
        file.check(start, size)
        return np.frombuffer(file.data, np.uint8, size, start)
    return table.DataAsNumpy() if table.DataLength() else np.empty(0, np.uint8)


def read_tensor(
    file: FlatFile, table: Any, index: int, buffers: list[np.ndarray], used: bool, computed: bool
) -> Tensor:
    """Decode one checked schema Tensor.

    used:     an operator or the graph refers to it; nonsensical quantization of an unused tensor is dropped
    computed: it is a graph input or an operator's output, so an empty buffer does not make it an empty constant
    """
    name = text(table.Name())
    try:
        return _read_tensor(file, table, index, name, buffers, used, computed)
    except QnnError as error:
        raise type(error)(f"tensor {index} '{name}': {error}") from error


def _read_tensor(
    file: FlatFile, table: Any, index: int, name: str, buffers: list[np.ndarray], used: bool, computed: bool
) -> Tensor:
    shape, signature = _read_shape(file, table)
    dtype = dtype_name(table.Type())
    if not 0 <= table.Buffer() < len(buffers):
        raise ModelFormatError(f"buffer index {table.Buffer()} is out of range, the file has {len(buffers)} buffers")
    raw = buffers[table.Buffer()]
    if table.Sparsity() is not None and not computed:
        data: np.ndarray | None = read_sparse(file, table, raw, shape)
    else:
        data = _read_data(file, raw, shape, dtype, computed)
    if data is not None and table.IsVariable():
        raise ModelFormatError("a variable tensor must not have constant data")
    if data is not None:
        dtype = data.dtype.name
    try:
        qparams = _read_qparams(file, file.table(table.Quantization()), shape, dtype, constant=data is not None)
    except QnnError:
        if used:
            raise
        qparams = None
    dimension = file.table(table.Quantization()).QuantizedDimension() if qparams is not None else 0
    return Tensor(index, name, shape, signature, dtype, qparams, data, table.IsVariable(), dimension)


def _read_shape(file: FlatFile, table: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if table.ShapeLength() > MAX_RANK:
        raise ModelFormatError(f"it has {table.ShapeLength()} dimensions, more than {MAX_RANK}")
    shape = numbers(file, table, "Shape")
    if any(dim < -1 for dim in shape):
        raise ModelFormatError(f"negative dimension in shape {shape}")
    if -1 in shape:
        return tuple(max(dim, 0) for dim in shape), shape
    if table.ShapeSignatureLength() == 0:
        return shape, shape
    signature = numbers(file, table, "ShapeSignature") if table.ShapeSignatureLength() == len(shape) else ()
    if len(signature) != len(shape) or any(s not in (-1, dim) for s, dim in zip(signature, shape, strict=True)):
        raise ModelFormatError(f"shape signature {signature} contradicts shape {shape}")
    return shape, signature


def _read_data(
    file: FlatFile, raw: np.ndarray, shape: tuple[int, ...], dtype: str, computed: bool
) -> np.ndarray | None:
    count = math.prod(shape)
    if count == 0 or raw.size == 0:  # there is no data to confirm the sizes
        check_elements([max(dim, 1) for dim in shape], "a tensor")
    if raw.size == 0 and (computed or count > 0):
        return None
    if dtype in ("string", "resource", "variant", "bfloat16"):
        raise UnsupportedOperatorError(f"constants of dtype {dtype} are not supported")
    size = (count + 1) // 2 if dtype == "int4" else count * np.dtype(dtype).itemsize
    if raw.size != size:
        raise ModelFormatError(f"shape {shape} of {dtype} needs {size} bytes, but the file has {raw.size}")
    if dtype == "int4":
        file.charge(2 * size)
        data = _unpack_int4(raw, count)
    else:
        data = raw.view(np.dtype(dtype).newbyteorder("<"))
    if dtype == "bool":
        file.charge(size)
        if size and raw.max() > 1:
            raise ModelFormatError("a bool constant holds bytes other than 0 and 1")
    if not data.flags.aligned:
        file.charge(size)
        data = data.copy()
    data = data.reshape(shape)
    data.flags.writeable = False
    return data


def _unpack_int4(raw: np.ndarray, count: int) -> np.ndarray:
    """Two's complement nibbles, low nibble first, as int8."""
    low = (raw << 4).view(np.int8) >> 4
    high = raw.view(np.int8) >> 4
    return np.stack([low, high], axis=1).reshape(-1)[:count]


def _read_qparams(file: FlatFile, table: Any, shape: tuple[int, ...], dtype: str, constant: bool) -> QParams | None:
    dtype = "int8" if dtype == "int4" else dtype
    if table is None or dtype not in INTEGER_DTYPES:
        return None  # a float tensor may carry its range from training; that does not make it quantized
    if (details := enum_name("QuantizationDetails", table.DetailsType())) != "NONE":
        raise UnsupportedOperatorError(f"quantization scheme {details} is not supported: use per-tensor or per-channel")
    if table.ScaleLength() == 0:
        return None
    scale, zero_point = _vector(file, table, "Scale"), _vector(file, table, "ZeroPoint")
    axis = table.QuantizedDimension() if scale.size > 1 else None
    if axis is not None and not (0 <= axis < len(shape) and scale.size == shape[axis]):
        raise ModelFormatError(f"{scale.size} scales along dimension {axis} do not match shape {shape}")
    if zero_point.size not in (0, 1, scale.size):
        raise ModelFormatError(f"{zero_point.size} zero points do not match {scale.size} scales")
    low, high = dtype_range(dtype)
    if not ((zero_point >= max(low, -(2**31))) & (zero_point <= min(high, 2**31 - 1))).all():
        raise ModelFormatError(f"a zero point lies outside {dtype}: {zero_point.min()} to {zero_point.max()}")
    if constant:
        scale = np.where(scale == 0, _NEGLIGIBLE_SCALE, scale)
    try:
        return QParams(scale, zero_point if zero_point.size else np.zeros(scale.shape), dtype, axis)
    except ShapeError as error:
        raise ModelFormatError(f"quantization parameters are invalid: {error}") from error


def _vector(file: FlatFile, table: Any, field: str) -> np.ndarray:
    """A vector, copied so that QParams do not keep the file's bytes alive."""
    length = getattr(table, field + "Length")()
    file.charge(8 * length)
    return np.array(getattr(table, field + "AsNumpy")()) if length else np.empty(0)
