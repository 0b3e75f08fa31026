"""qnn.table: any function of one quantized value as a lookup, 256 entries for 8 bits and 65536 for 16."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..numerics import reference
from ..numerics.reference import domain
from ..qparams import INTEGER_DTYPES, QParams, dtype_range
from .base import Shape, TensorInfo, check_dtype, define, export_to_script
from .traits import Kind, Traits


def table_index(data: np.ndarray) -> np.ndarray:
    """Position of each value in its table: signed values count from the dtype's minimum."""
    return data.astype(np.int64) - dtype_range(str(data.dtype))[0]


def function_table(
    function: Callable[[np.ndarray], np.ndarray],
    source: QParams,
    target: QParams,
    rounding: str = "TONEAREST_EVEN",
    compute_dtype: str = "float32",
) -> np.ndarray:
    """The table of target.quantize(function(source.dequantize(q))) for every q of `source`'s dtype.

    The function receives real values in `compute_dtype`. NaN results become the zero point.
    """
    real = (domain(source.dtype).astype(np.int64) - int(source.zero_point)).astype(compute_dtype)
    with np.errstate(all="ignore"):
        value = np.asarray(function(real * source.scale.astype(compute_dtype))).astype(compute_dtype)
        scaled = value / target.scale.astype(compute_dtype)
    rounded = reference.round_half_even(scaled) if rounding == "TONEAREST_EVEN" else reference.round_half_away(scaled)
    return reference.float_to_int(rounded, target.zero_point, target.dtype)


def _infer(data: TensorInfo, table: TensorInfo) -> tuple[Shape, str]:
    check_dtype(data, "int8", "uint8", "int16", "uint16")
    check_dtype(table, *INTEGER_DTYPES, "float32")
    entries = 1 << np.iinfo(data.dtype).bits
    if table.shape != (entries,):
        raise ShapeError(f"a table for {data.dtype} must have {entries} entries, found shape {table.shape}")
    return data.shape, table.dtype


TABLE = define(
    "table",
    "data table",
    _infer,
    lambda data, table: table[table_index(data)],
    Traits(Kind.POINTWISE, others=("table",)),
    "lookup in a table with an entry per value",
)


def table(data: relax.Expr, table: relax.Expr) -> relax.Call:
    """y = table[data − minimum of data's dtype].

    data: int8, uint8, int16 or uint16; table: 256 or 65536 entries of any integer dtype or float32, in ascending order
    of the data value. Raises ShapeError. Source: TOSA TABLE, Relay's lookup-table legalization.
    """
    return TABLE.call(data, table)


export_to_script(table=table)
