"""Tensors of a .tflite file: shape, dtype, quantization and constant data, each verified against the bytes in the file.

Constants of 4 and 2 bits stay packed: `weights.py` reads them so, everything else as int8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ModelFormatError, QnnError, ShapeError, UnsupportedOperatorError
from ...limits import check_elements
from ...numerics.packed import packed_bytes, unpack
from ...qparams import INTEGER_DTYPES, QParams, dtype_range
from .flatbuffer import CheckedTable, FlatFile, numbers, text
from .options import dtype_name, enum_name
from .sparsity import read_sparse

MAX_RANK = 32  # NumPy 1's limit

# Channels whose weights are all zero, and tensors that were zero in calibration, have a scale of 0 in some files. It
# becomes one that keeps every product below half a step: the result is the same, and products with it stay normal
# float32 numbers. So does an infinite scale, which some converters give weights and biases behind such a tensor:
# LiteRT's multiplier is 0 then.
NEGLIGIBLE_SCALE = np.float32(1e-30)


NARROW = ("int4", "int2")
_DTYPES_WITHOUT_CONSTANTS = ("string", "resource", "variant", "bfloat16", "uint4", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class Blocks:
    """Quantization block by block: every `size` values along the last dimension have a scale of their own.

    scales, zero_points: indices of tensors; a file without zero points says 0 or −1
    """

    scales: int
    zero_points: int
    size: int


@dataclass(frozen=True, eq=False)
class Tensor:
    """One tensor of a subgraph.

    shape:           as stored, 0 for a negative dimension
    shape_signature: the same with -1 for dynamic dimensions
    dtype:           NumPy name, or "string", "resource", "variant", "bfloat16", "int4", "int2" and others that values
                     cannot have; constants of int4 and int2 are int8
    qparams:         None when not quantized, or block by block
    stored:          constant value, read-only, of shape `shape` (sparse ones made dense), or the bytes of narrow
                     integers and of what values cannot be; None when not constant
    channel_dimension: the dimension that per-channel scales run along, as stored, also where there is one scale
    narrow:          "int4" or "int2" for a constant that has so few bits in the file
    """

    index: int
    name: str
    shape: tuple[int, ...]
    shape_signature: tuple[int, ...]
    dtype: str
    qparams: QParams | None
    stored: np.ndarray | None
    is_variable: bool
    channel_dimension: int = 0
    narrow: str | None = None
    blocks: Blocks | None = None

    @property
    def is_constant(self) -> bool:
        """Whether the file has its value."""
        return self.stored is not None

    @property
    def data(self) -> np.ndarray | None:
        """The constant value, of shape `shape`, read-only; narrow integers as int8, unpacked at every call.

        Raises UnsupportedOperatorError for a constant that no value can be."""
        if self.stored is None:
            return None
        if self.dtype in _DTYPES_WITHOUT_CONSTANTS:
            raise UnsupportedOperatorError(
                f"{self.label()}: constants of dtype {self.dtype} are not supported; leave them to the program around "
                "the model: export it without them, or import a signature that does not use them"
            )
        if self.narrow is None:
            return self.stored
        values = unpack(self.stored, self.narrow, math.prod(self.shape)).reshape(self.shape)
        values.flags.writeable = False
        return values

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
    narrow = dtype if data is not None and dtype in NARROW else None
    if data is not None and dtype not in _DTYPES_WITHOUT_CONSTANTS:
        dtype = "int8" if narrow else data.dtype.name
    quantization = file.table(table.Quantization())
    try:
        blocks = _read_blocks(file, quantization, shape) if data is not None else None
        qparams = _read_qparams(file, quantization, shape, dtype, data is not None) if blocks is None else None
    except QnnError:
        if used:
            raise
        qparams = blocks = None
    dimension = quantization.QuantizedDimension() if qparams is not None else 0
    return Tensor(
        index, name, shape, signature, dtype, qparams, data, table.IsVariable(), dimension, narrow=narrow, blocks=blocks
    )


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
    if dtype in _DTYPES_WITHOUT_CONSTANTS:
        return raw
    size = packed_bytes(count, dtype) if dtype in NARROW else count * np.dtype(dtype).itemsize
    if raw.size != size:
        raise ModelFormatError(f"shape {shape} of {dtype} needs {size} bytes, but the file has {raw.size}")
    if dtype in NARROW:
        file.charge(count)
        return raw
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


def _read_blocks(file: FlatFile, table: Any, shape: tuple[int, ...]) -> Blocks | None:
    """Quantization by blocks along the last dimension; None for any other."""
    if table is None or enum_name("QuantizationDetails", table.DetailsType()) != "BlockwiseQuantization":
        return None
    union = table.Details()
    if union is None:
        raise ModelFormatError("quantization by blocks without their description")
    details = CheckedTable(file, union.Pos)  # of a class that the installed schema package does not have
    scales, zero_points, size = (details.int32(slot) for slot in (4, 6, 8))
    block = details.int32s(10)
    if block:
        if len(block) != len(shape) or any(dim != 1 for dim in block[:-1]) or size not in (0, block[-1]):
            raise UnsupportedOperatorError(f"blocks of shape {block}; they must run along the last dimension")
        size = block[-1]
    if size < 1:
        raise ModelFormatError(f"blocks of {size} values")
    return Blocks(scales, zero_points, size)


def _read_qparams(file: FlatFile, table: Any, shape: tuple[int, ...], dtype: str, is_constant: bool) -> QParams | None:
    dtype = "int8" if dtype in NARROW else dtype
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
    scale = np.where((scale == 0) | (is_constant & np.isposinf(scale)), NEGLIGIBLE_SCALE, scale)
    try:
        return QParams(scale, zero_point if zero_point.size else np.zeros(scale.shape), dtype, axis)
    except ShapeError as error:
        raise ModelFormatError(f"quantization parameters are invalid: {error}") from error


def _vector(file: FlatFile, table: Any, field: str) -> np.ndarray:
    """A vector, copied so that QParams do not keep the file's bytes alive."""
    length = getattr(table, field + "Length")()
    file.charge(8 * length)
    return np.array(getattr(table, field + "AsNumpy")()) if length else np.empty(0)
