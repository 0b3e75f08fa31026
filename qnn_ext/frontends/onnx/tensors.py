"""Tensors of an ONNX model as arrays of their exact dtype, from the message itself or from an external data file."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from ...errors import ModelFormatError, UnsupportedOperatorError
from ...limits import check_elements
from .external import ExternalData

# TensorProto.DataType -> NumPy dtype of the stored elements
DTYPES: dict[int, Any] = {
    1: np.float32,
    2: np.uint8,
    3: np.int8,
    4: np.uint16,
    5: np.int16,
    6: np.int32,
    7: np.int64,
    9: np.bool_,
    10: np.float16,
    11: np.float64,
    12: np.uint32,
    13: np.uint64,
    16: ml_dtypes.bfloat16,
}
NARROW = {21: "uint4", 22: "int4", 25: "uint2", 26: "int2"}  # held as uint8 and int8
FLOAT8 = {17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz"}  # held as float32
HELD_AS = {name: name[:-1] + "8" for name in NARROW.values()} | dict.fromkeys(FLOAT8.values(), "float32")
"""The dtype whose values hold those of a dtype that NumPy does not have."""
KEEP_TYPES = frozenset({"Flatten", "Identity", "Pad", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""The operators that take such a dtype and give it back (other than QuantizeLinear, casts and nodes with graphs)."""

# the field that holds the elements when they are not raw bytes
_FIELDS = {1: "float_data", 7: "int64_data", 11: "double_data", 12: "uint64_data", 13: "uint64_data"}


def dtype_name(code: int) -> str:
    """The NumPy name of an element type. Raises UnsupportedOperatorError for unsupported types."""
    if code in NARROW or code in FLOAT8:
        return (NARROW | FLOAT8)[code]
    if code not in DTYPES:
        raise UnsupportedOperatorError(
            f"element type {element_type_name(code)} is not supported; "
            f"supported: {', '.join([np.dtype(dtype).name for dtype in DTYPES.values()] + list(HELD_AS))}"
        )
    return np.dtype(DTYPES[code]).name


def element_type_name(code: int) -> str:
    """ONNX's name of an element type code, "FLOAT8E4M3FN"; the number when it has none."""
    from onnx import TensorProto

    return TensorProto.DataType.Name(code) if code in TensorProto.DataType.values() else str(code)


def element_type(name: str) -> int:
    """The code of an element type by its name in ONNX, "FLOAT"."""
    from onnx import TensorProto

    try:
        return int(TensorProto.DataType.Value(name))
    except ValueError:
        raise ModelFormatError(f"there is no element type {name!r}") from None


def read_tensor(proto: Any, external: ExternalData | None) -> np.ndarray:
    """The value of a TensorProto; 4- and 2-bit integers unpacked to 8 bits, float8 as float32.

    external: the files beside the model; None if it was given as bytes

    Raises ModelFormatError if the data does not fill the shape, UnsupportedOperatorError for strings and float4.
    """
    label = f"tensor '{proto.name}'"
    shape = tuple(proto.dims)
    if any(dim < 0 for dim in shape) or len(shape) > 32:
        raise ModelFormatError(f"{label} has shape {shape}: the file is damaged")
    check_elements([max(dim, 1) for dim in shape], label)
    try:
        name = dtype_name(proto.data_type)
    except UnsupportedOperatorError as error:
        raise UnsupportedOperatorError(f"{label}: {error}") from None
    count = math.prod(shape)
    if proto.data_location == 1:
        values = _from_bytes(_read_external(proto, external, count, label), proto.data_type, count, label)
    elif proto.HasField("raw_data"):
        values = _from_bytes(proto.raw_data, proto.data_type, count, label)
    else:
        values = _from_field(proto, count)
    if values.size != count:
        raise ModelFormatError(f"{label} of {name} and shape {shape} has data for {values.size} elements, not {count}")
    return values.reshape(shape)


def read_sparse(proto: Any, external: ExternalData | None) -> np.ndarray:
    """The value of a SparseTensorProto as a dense array. Raises as `read_tensor` does."""
    label, shape = f"sparse tensor '{proto.values.name}'", tuple(proto.dims)
    values, indices = read_tensor(proto.values, external), read_tensor(proto.indices, external)
    if (name := dtype_name(proto.values.data_type)) in HELD_AS:
        raise UnsupportedOperatorError(f"{label}: {name} is not supported; store it densely")
    if any(dim < 0 for dim in shape):
        raise ModelFormatError(f"{label} has shape {shape}: the file is damaged")
    count = math.prod(check_elements(shape, label))
    if indices.shape == (*values.shape, len(shape)):  # a row for each value
        inside = ((indices >= 0) & (indices < np.asarray(shape))).all()
        indices = np.ravel_multi_index(tuple(indices.T), shape) if inside and count else np.full(values.shape, count)
    if values.ndim != 1 or indices.shape != values.shape or indices.dtype != np.int64:
        raise ModelFormatError(
            f"{label} of shape {shape} has values of shape {values.shape} and indices {indices.dtype} of shape "
            f"{indices.shape}: the file is damaged"
        )
    if ((indices < 0) | (indices >= count)).any():
        raise ModelFormatError(f"{label} has an index outside of its shape {shape}: the file is damaged")
    dense = np.zeros(count, values.dtype)
    dense[indices] = values
    return dense.reshape(shape)


def _from_bytes(raw: bytes, code: int, count: int, label: str) -> np.ndarray:
    if code in NARROW:
        return _unpack(np.frombuffer(raw, np.uint8), code, count)
    if code in FLOAT8:
        return _float8(np.frombuffer(raw, np.uint8), code)
    dtype = np.dtype(DTYPES[code])
    if len(raw) % dtype.itemsize:
        raise ModelFormatError(
            f"{label} of {dtype.name} has {len(raw)} bytes, which is not a multiple of {dtype.itemsize}"
        )
    if code == 9:
        return np.frombuffer(raw, np.uint8) != 0
    return np.frombuffer(raw, dtype)  # little endian, as the format specifies


def _from_field(proto: Any, count: int) -> np.ndarray:
    code = proto.data_type
    stored = getattr(proto, _FIELDS.get(code, "int32_data"))
    if code in NARROW:
        return _unpack(np.asarray(stored, np.int64).astype(np.uint8), code, count)
    if code in FLOAT8:
        return _float8(np.asarray(stored, np.int64).astype(np.uint8), code)
    if code in (10, 16):  # the bits of 16-bit floats, stored in int32
        return np.asarray(stored, np.int64).astype(np.uint16).view(DTYPES[code])
    if code in _FIELDS:
        return np.asarray(stored, DTYPES[code])
    return np.asarray(stored, np.int64).astype(DTYPES[code])


def _float8(bits: np.ndarray, code: int) -> np.ndarray:
    """The values of float8 numbers, by their bits."""
    return bits.view(getattr(ml_dtypes, FLOAT8[code])).astype(np.float32)


def _unpack(packed: np.ndarray, code: int, count: int) -> np.ndarray:
    """Sub-byte integers, the first in the low bits."""
    name = NARROW[code]
    bits = int(name[-1])
    per_byte = 8 // bits
    if packed.size != -(-count // per_byte):
        return np.empty(packed.size * per_byte, np.uint8)  # the caller reports how many there are
    fields = (packed[:, None] >> (np.arange(per_byte, dtype=np.uint8) * bits)) & (2**bits - 1)
    values = fields.reshape(-1)[:count].astype(np.uint8)
    if name.startswith("u"):
        return values
    return (values << (8 - bits)).astype(np.uint8).view(np.int8) >> (8 - bits)


def _bytes_of(code: int, count: int) -> int:
    """The number of bytes that so many elements of a type occupy."""
    if code in NARROW:
        return -(-count * int(NARROW[code][-1]) // 8)
    return count if code in FLOAT8 else count * np.dtype(DTYPES[code]).itemsize


def _read_external(proto: Any, external: ExternalData | None, count: int, label: str) -> bytes:
    entries = {entry.key: entry.value for entry in proto.external_data}
    if external is None:
        location = entries.get("location", "")
        raise ModelFormatError(
            f"{label} is stored in the external file {location!r}: pass the model's path to from_onnx, not its content"
        )
    return external.read(entries, _bytes_of(proto.data_type, count), label)
