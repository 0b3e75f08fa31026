"""What is known about each kernel of a build: which layer it computes, how much work it is, which implementation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import IRModule, relax, tirx

from .passes.fuse import COMPOSITE, LAYER
from .passes.lower import IMPLEMENTATION, MACS, WORKLOAD
from .passes.rewrite import bindings_of, op_name, operands


@dataclass(frozen=True)
class Kernel:
    """One call of a compiled function.

    symbol:         name of the function in the library
    layer:          the model's name of the tensor it computes
    operators:      what was fused, "conv2d_accumulate+add+requantize"
    implementation: strategy that was chosen, "generic" or "relax" for what TVM's own operators made
    macs:           multiply-accumulates, 0 where there are none
    weight_bytes:   constants it reads
    data_bytes:     activations it reads and writes
    workload:       the product: "type" ("Conv2dWorkload", ...) and that workload's fields; empty where there is none
    """

    symbol: str
    layer: str
    operators: str
    implementation: str
    macs: int
    weight_bytes: int
    data_bytes: int
    workload: dict[str, Any] = field(default_factory=dict, hash=False)


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
