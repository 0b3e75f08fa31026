"""Integers that TVM's CPU kernels do not sort, short and unsigned ones, are sorted as wider integers.

    topk(x: uint16)  →  astype(topk(astype(x, int32)), uint16)

uint64 becomes int64 in the same order by flipping its highest bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import IRModule, relax

from ..op.arguments import data_of, with_data
from ..op.base import constant
from .rewrite import Emit, op_name, rewrite

WIDER = {"int8": "int32", "uint8": "int32", "int16": "int32", "uint16": "int32", "uint32": "int64", "uint64": "int64"}
_TOP = constant(np.uint64(1 << 63))


def sortable(mod: IRModule) -> IRModule:
    """`mod` with every sort, argsort and topk of integers that TVM sorts."""

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        name = op_name(expr)
        if name not in ("sort", "argsort", "topk") or str(data_of(expr).ty.dtype) not in WIDER:
            return None
        data = data_of(expr)
        dtype = str(data.ty.dtype)
        result = emit(with_data(expr, _widened(data, dtype, emit)))
        if name == "argsort" or (name == "topk" and str(expr.attrs.ret_type) == "indices"):
            return result
        if name == "sort" or str(expr.attrs.ret_type) == "values":
            return _back(result, dtype, emit)
        values = emit(relax.TupleGetItem(result, 0))
        return relax.Tuple([_back(values, dtype, emit), emit(relax.TupleGetItem(result, 1))])

    return rewrite(mod, rule)


def _widened(data: Any, dtype: str, emit: Emit) -> Any:
    flipped = emit(relax.op.bitwise_xor(data, _TOP)) if dtype == "uint64" else data
    return emit(relax.op.astype(flipped, WIDER[dtype]))


def _back(values: Any, dtype: str, emit: Emit) -> Any:
    narrow = emit(relax.op.astype(values, dtype))
    return emit(relax.op.bitwise_xor(narrow, _TOP)) if dtype == "uint64" else narrow
