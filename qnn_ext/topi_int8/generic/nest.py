"""Stages written as loop nests, for computations that a TE expression cannot describe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T


def nest(
    shape: Sequence[int],
    tensors: Sequence[te.Tensor],
    body: Callable[[list[Any], list[Any]], Any],
    dtype: str,
    name: str,
) -> te.Tensor:
    """The stage that `body(input buffers, [output buffer])` computes.

    Its buffers are compact and start at offset zero; by default, TE gives them an offset known only at run time, which
    a program over one workspace cannot use. Like TE's own, they have no layout: FuseTIR takes a buffer with one for a
    different type.
    """
    ins = [tirx.decl_buffer(tensor.shape, tensor.dtype, tensor.op.name, layout=None) for tensor in tensors]
    outs = [tirx.decl_buffer(shape, dtype, name, layout=None)]
    return te.extern([shape], tensors, body, name=name, dtype=dtype, in_buffers=ins, out_buffers=outs)


def memory(shape: Sequence[int], dtype: str = "int32", scope: str = "local") -> Any:
    """Memory of a nest that is being built: local, for what fits registers, or global."""
    return T.buffer_proxy(T.decl_buffer(list(shape), dtype, scope=scope))


def number(value: int) -> Any:
    """A constant as positions in a nest are."""
    return tirx.const(value, "int32")


def variable(value: int | None = None) -> Any:
    """An int32 of a nest, as memory of one element: of this value at first, or of none that is known."""
    created = memory([1])
    if value is not None:
        created[0] = number(value)
    return created
