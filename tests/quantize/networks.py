"""Small float modules built by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import relax

from qnn_ext.module import QnnModule, TensorSpec
from qnn_ext.op.base import shape_of


def float_module(shape: Sequence[int], body: Callable) -> QnnModule:
    """`main` of one float32 input "x"; body(emit, x) returns the output "y"."""
    x = relax.Var("x", relax.TensorType(tuple(shape), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = body(builder.emit, x)
            result = builder.emit_output(relax.Tuple([y]))
        builder.emit_func_output(result)
    return QnnModule(
        builder.get(), (TensorSpec("x", tuple(shape), "float32"),), (TensorSpec("y", shape_of(y), "float32"),)
    )
