"""Fused multiply-adds of float32 as instructions of the register tile: C[lane] = A[k] · B[k, lane] + C[lane].

Every sum has one accumulator, which takes its products in the order of the reduction, rounding once for each: results
do not depend on the tile, the vector's length or the number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tvm.script import tirx as T

from ...targets.backend import Backend
from .dot import DotInstruction

CHAINS = (4, 3)
"""Steps that share a load, or addresses: four, or three for the colours of an image."""


MOST_PIXELS = 8
"""Rows of activations that a tile reads: with a pitch of a power of two, lines of the same set of an 8-way L1 cache."""


@dataclass(frozen=True)
class Fma(DotInstruction):
    """A multiply-add of a broadcast float32 and a register of weights.

    Nothing is padded with a product that the model does not have: 0 · ∞ is NaN. Where a reduction is padded, both
    operands are zero.

    block: registers of a block of output channels
    """

    block: ClassVar[int] = 1

    @property
    def sum_dtype(self) -> str:
        return "float32"

    @property
    def word_dtype(self) -> str:
        """The weight itself."""
        return self.weight_dtype

    @property
    def operand_dtypes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Also activations of 8 bits, which are dequantized where they are copied."""
        activations, weights = super().operand_dtypes
        return (*activations, "uint8", "int8"), weights

    @property
    def prefetches(self) -> bool:
        """Not of float weights: four times as large as int8's, the panel in use and the next displace the activations
        from L2. BERT-base took 1.7 times as long on a core with 2 MiB of it, ResNet-50 1.1 times."""
        return False

    def operands(self, pixels: int, blocks: int) -> int:
        """A register of weights for each block and one for an activation."""
        return blocks + 1 if pixels <= MOST_PIXELS else self.registers

    def pads(self, run: int) -> str | None:
        """Why another chain suits the reduction better: it divides it, or is the longest."""
        padded = -(-run // self.span) * self.span
        best = next((chain for chain in CHAINS if run % chain == 0), CHAINS[0])
        if self.span != best:
            return f"sums of {run} products take steps of {best}"
        return None if 2 * padded <= 3 * run else f"sums of {run} products would be padded to {padded}"

    def updates(self, A: Any, B: Any, C: Any) -> list[Any]:
        """One statement for each activation."""
        dtype = f"float32x{self.lanes}"

        def update(step: int) -> Any:
            value = T.broadcast(A.vload([step], "float32"), self.lanes)
            operands = value, self.weights(B, step), C.vload([0], dtype=dtype)
            return T.call_llvm_pure_intrin(T.llvm_lookup_intrinsic_id(self.llvm), *operands, dtype=dtype)

        return [update(step) for step in range(self.span)]


def instructions_of(backend: Backend, kind: type[Fma] = Fma) -> list[Fma]:
    """The instructions of a family of CPUs, fastest first, as `kind` makes them of each product."""
    found: list[Fma] = []
    for product in backend.float_products:
        lanes = kind.block * product.registers.lanes(32)
        for chain in CHAINS:
            llvm = f"llvm.fma.v{lanes}f32"
            name = f"{product.name}_{chain}"
            found.append(kind(name, product, lanes, 1, "float32", "float32", llvm, True, backend, chain))
    return found
