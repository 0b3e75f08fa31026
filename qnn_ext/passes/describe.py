"""What a lowered module tells of its kernels: which layer each computes, how much work it is, which implementation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from tvm import IRModule, relax, tirx

from ..kernels import Kernel
from .fuse import COMPOSITE, LAYER
from .lower import IMPLEMENTATION, MACS, WORKLOAD
from .rewrite import bindings_of, op_name, operands


def kernels_of(mod: IRModule) -> list[Kernel]:
    """The kernels of a lowered module in the order they run."""
    return list(_kernels(mod))


def _kernels(mod: IRModule) -> Iterator[Kernel]:
    for binding in bindings_of(mod["main"]):
        value = binding.value
        if op_name(value) != "call_tir":
            continue
        function: tirx.PrimFunc = mod[value.args[0]]
        attributes = {str(key): item for key, item in function.attrs.items()} if function.attrs else {}
        args = [arg for arg in operands(value) if hasattr(arg, "ty") and isinstance(arg.ty, relax.TensorType)]
        constants = [arg for arg in args if not isinstance(arg, relax.Var)]
        data = [arg.ty for arg in args if isinstance(arg, relax.Var)]
        data += list(binding.var.ty.fields) if isinstance(binding.var.ty, relax.TupleType) else [binding.var.ty]
        symbol = str(value.args[0].name_hint)
        yield Kernel(
            symbol=symbol,
            layer=str(attributes.get(LAYER, binding.var.name)),
            operators=str(attributes.get(COMPOSITE, symbol)),
            implementation=str(attributes.get(IMPLEMENTATION, "relax")),
            macs=int(attributes.get(MACS, 0)),
            weight_bytes=sum(_bytes(arg.ty) for arg in constants),
            data_bytes=sum(map(_bytes, data)),
            workload=json.loads(str(attributes.get(WORKLOAD, "{}"))),
        )


def _bytes(ty: Any) -> int:
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        return 0
    return int(np.prod([int(dim) for dim in ty.shape], dtype=np.int64)) * np.dtype(str(ty.dtype)).itemsize
