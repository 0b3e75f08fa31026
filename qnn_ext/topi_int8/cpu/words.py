"""The dot products of `dot` on weights that a kernel packs at run time, into integers of `depth` neighbours in k each.

Bytes of several rows are combined into words by shifts and ors of whole vectors, whatever the memory order of the
source; interleaving them byte by byte would be scalar code. In memory both forms are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import tirx

from .dot import DotInstruction


def on_words(instruction: DotInstruction) -> DotInstruction:
    """The same instruction, with weights as words."""
    return replace(instruction, words=True)


def pack(instruction: DotInstruction, neighbours: Sequence[Any]) -> Any:
    """The word of `depth` weights: the first in the lowest bits."""
    if instruction.depth == 1 and instruction.word_dtype == instruction.weight_dtype:
        return neighbours[0]
    unsigned, bits = "u" + instruction.weight_dtype.removeprefix("u"), 8 * np.dtype(instruction.weight_dtype).itemsize
    word = None
    for position, value in enumerate(neighbours):
        part = value.astype(instruction.weight_dtype).astype(unsigned).astype(instruction.word_dtype)
        if position:
            part = tirx.shift_left(part, tirx.const(position * bits, instruction.word_dtype))
        word = part if word is None else tirx.bitwise_or(word, part)
    return word
