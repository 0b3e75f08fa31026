"""qnn.true_positions as a loop nest: where an element goes depends on those before it, so it is no TE compute."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from .nest import nest, variable
from .operands import Constants, Operand
from .stages import stages


@stages("qnn.true_positions")
def _true_positions(constants: Constants, shape: tuple[int, ...], mask: Operand) -> te.Tensor:
    """One pass over the mask."""
    tensor = mask.tensor if mask.tensor is not None else constants.add(mask.value)
    return nest(shape, [tensor], _positions, dtype="int32", name="true_positions")


def _positions(ins: list[Any], outs: list[Any]) -> Any:
    mask, out = T.buffer_proxy(ins[0]), T.buffer_proxy(outs[0])
    length = int(mask.shape[0])
    with IRBuilder() as builder, T.serial(0, 1):  # one statement
        found = variable(0)
        with T.serial(0, length) as i:
            out[i] = tirx.const(0, "int32")
        with T.serial(0, length) as i, T.If(mask[i]), T.Then():
            out[found[0]] = i
            found[0] = found[0] + 1
    return builder.get()
