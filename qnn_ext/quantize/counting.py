"""Counting values into bins, compiled for this machine: four times as fast as NumPy's floor and bincount."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import tvm
import tvm_ffi
from tvm.script import tirx as T

from ..processes import forking
from ..targets.names import make_target

LANES = 16
"""Values processed at a time; an array must have a multiple of this."""

_TABLES = 4  # in a single table, neighbours in the same bin, mostly zeros, would wait for each other


@T.prim_func
def _count(values_p: T.handle, tables_p: T.handle, zeros_p: T.handle, per_unit: T.float32) -> None:
    rows = T.int64()
    bins = T.int64()
    values = T.match_buffer(values_p, (rows, 16), "float32", align=4)
    tables = T.match_buffer(tables_p, (4, bins), "int32", align=4)
    zeros = T.match_buffer(zeros_p, (16,), "int32", align=4)
    index = T.alloc_buffer((16,), "int32")
    for i in range(rows):
        for j in T.vectorized(16):
            index[j] = T.Cast("int32", T.floor(values[i, j] * per_unit))
        for j in T.vectorized(16):
            zeros[j] = zeros[j] + T.Select(values[i, j] == T.float32(0), 1, 0)
        for j in T.unroll(16):
            tables[j % 4, T.Cast("int64", index[j]) + bins // T.int64(2)] = (
                tables[j % 4, T.Cast("int64", index[j]) + bins // T.int64(2)] + 1
            )


_compiling = forking.lock("compiling")


@cache
def _compiled() -> Callable[..., None]:
    return tvm.compile(tvm.IRModule({"_count": _count}), make_target("native", 1)).jit()["_count"]


def count(values: np.ndarray, per_unit: float, bins: int) -> tuple[np.ndarray, int]:
    """How many values lie in each of `bins` bins, and how many are exactly 0.

    values: float32 (k · LANES,), contiguous; bin i counts those with ⌊value · per_unit⌋ = i − bins / 2. All values must
            lie within the bins: this is not checked
    """
    tables, zeros = np.zeros((_TABLES, bins), np.int32), np.zeros(LANES, np.int32)
    rows = np.require(values.reshape(-1, LANES), requirements="W")  # DLPack takes only writable arrays
    with _compiling:
        function = _compiled()
    function(*map(tvm_ffi.from_dlpack, (rows, tables, zeros)), per_unit)
    return tables.sum(axis=0, dtype=np.int64), int(zeros.sum())
