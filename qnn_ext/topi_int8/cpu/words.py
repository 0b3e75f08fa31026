"""The dot products of `intrin` on weights that a kernel packs at run time: int32 words of `depth` neighbours in k each.

Bytes of several rows go together into words by shifts and ors of whole vectors, whatever the order of the source in
memory; interleaved byte by byte they would be scalar code. In memory both forms are the same.
"""

# No `from __future__ import annotations` here: TVMScript evaluates the buffer annotations below.

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np
from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

from .dot import DotInstruction, implement


@dataclass(frozen=True)
class WordInstruction(DotInstruction):
    """A dot-product instruction whose second operand has the shape (lanes,) of int32."""

    @property
    def tensor_intrin(self) -> str:
        """Name under which the instruction is registered as a TensorIntrin."""
        return _register(self)

    @property
    def bits(self) -> int:
        """Width of a weight in a word."""
        return np.dtype(self.weight_dtype).itemsize * 8

    def pack(self, neighbours: Sequence[Any]) -> Any:
        """The word of `depth` weights: the first in the lowest bits."""
        unsigned = "u" + self.weight_dtype
        word = None
        for position, value in enumerate(neighbours):
            part = value.astype(self.weight_dtype).astype(unsigned).astype("int32")
            part = tirx.shift_left(part, tirx.const(position * self.bits, "int32")) if position else part
            word = part if word is None else tirx.bitwise_or(word, part)
        return word

    def unpack(self, word: Any, position: Any) -> Any:
        """One weight of a word, sign-extended: what the instruction computes with, for `tensorize` to recognise."""
        top = tirx.const(32 - self.bits, "int32")
        return tirx.shift_right(tirx.shift_left(word, top - position * tirx.const(self.bits, "int32")), top)


def on_words(instruction: DotInstruction) -> WordInstruction:
    """The same instruction on words."""
    return WordInstruction(**{field.name: getattr(instruction, field.name) for field in fields(instruction)})


def _describe(instruction: WordInstruction):
    lanes, depth = instruction.lanes, instruction.depth
    data_dtype, bits, top = instruction.data_dtype, instruction.bits, 32 - instruction.bits

    @T.prim_func(s_tir=True)
    def meaning(
        A: T.Buffer((depth,), data_dtype, offset_factor=1),
        B: T.Buffer((lanes,), "int32", offset_factor=1),
        C: T.Buffer((lanes,), "int32", offset_factor=1),
    ) -> None:
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:depth], B[0:lanes])
            T.writes(C[0:lanes])
            for i in T.serial(0, lanes):
                for k in T.serial(0, depth):
                    with T.sblock("update"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        C[vi] = C[vi] + T.cast(A[vk], "int32") * T.shift_right(
                            T.shift_left(B[vi], top - vk * bits), top
                        )

    return meaning


@cache
def _register(instruction: WordInstruction) -> str:
    """Done at the first use: TVM reads TVMScript slowly."""
    name = f"qnn_ext.cpu.{instruction.name}.words"
    code = implement(instruction, (instruction.lanes,), "int32")
    TensorIntrin.register(name, _describe(instruction), code, override=True)
    return name
