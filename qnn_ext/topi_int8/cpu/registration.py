"""Registers convolution, dense and batch_matmul kernels for the instructions of an architecture."""

from __future__ import annotations

from collections.abc import Sequence

from ..strategy import register
from ..workload import BatchMatmulWorkload, Conv2dWorkload, DenseWorkload
from . import batch_matmul, conv2d, dense
from .dot import DotInstruction
from .words import on_words

LOWEST_PRIORITY = 10


def register_products(instructions: Sequence[DotInstruction], architecture: str) -> None:
    """Register the kernels with each of the instructions, of which the first is the fastest."""
    for priority, instruction in enumerate(reversed(instructions), LOWEST_PRIORITY):
        register(Conv2dWorkload, conv2d.implementation(instruction, architecture, priority))
        register(DenseWorkload, dense.implementation(instruction, architecture, priority))
        register(BatchMatmulWorkload, batch_matmul.implementation(on_words(instruction), architecture, priority))
