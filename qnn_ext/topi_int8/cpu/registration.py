"""Registers convolution, dense and batch_matmul kernels for the instructions of an architecture."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..strategy import Implementation, register
from ..workload import BatchMatmulWorkload, Conv2dWorkload, DenseWorkload
from . import batch_matmul, conv2d, dense
from .dot import DotInstruction
from .words import on_words

LOWEST_PRIORITY = 10


def register_products(
    instructions: Sequence[DotInstruction],
    architecture: str,
    lowest: int = LOWEST_PRIORITY,
    change: Callable[[Implementation], Implementation] = lambda item: item,
) -> None:
    """Register the kernels with each of the instructions, of which the first is the fastest and the last has the
    `lowest` priority."""
    for priority, instruction in enumerate(reversed(instructions), lowest):
        register(Conv2dWorkload, change(conv2d.implementation(instruction, architecture, priority)))
        register(DenseWorkload, change(dense.implementation(instruction, architecture, priority)))
        words = on_words(instruction)
        register(BatchMatmulWorkload, change(batch_matmul.implementation(words, architecture, priority)))
