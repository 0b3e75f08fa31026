"""Products with block-wise quantized weights on x86: registers the kernels of `cpu.blockwise` with its instructions.

vpdpbusd     unsigned weights × int8 activations, four products a lane
vpmaddubsw   the same for weights of 2 or 4 bits: two products of at most 15 · 128 each, and the sum of four such
             pairs, fit its int16, so that it does not saturate; vpmaddwd with ones adds pairs
vpmaddwd     weights and activations widened to int16
fma          weights as floats
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.script import tirx as T

from ...numerics.packed import WIDTHS
from ...targets.backend import Product
from ...targets.families import X86
from ..cpu.blockwise import Unpacking, UnpackingBytes, implementation, unpacking_fmas
from ..cpu.registration import LOWEST_PRIORITY
from ..strategy import register
from ..workload import BlockwiseWorkload

BITS = sorted(set(WIDTHS.values()))


class _Vnni(UnpackingBytes):
    def updates(self, A: Any, B: Any, C: Any) -> list[Any]:
        sums = f"int32x{self.lanes}"
        total = C.vload([0], dtype=sums)
        for s, part in enumerate(self.parts(B)):
            total = self.call(self.llvm, sums, total, part, self.activations_of(A, s))
        return [total]


@dataclass(frozen=True)
class _Bytewise(UnpackingBytes):
    """vpmaddubsw; `llvm` names it, `pairs` names vpmaddwd."""

    pairs: str = ""

    def updates(self, A: Any, B: Any, C: Any) -> list[Any]:
        sums, halves = f"int32x{self.lanes}", f"int16x{2 * self.lanes}"
        products = [
            self.call(self.llvm, halves, part, self.activations_of(A, s)) for s, part in enumerate(self.parts(B))
        ]
        total = products[0]
        for product in products[1:]:
            total = total + product
        ones = T.broadcast(T.int16(1), 2 * self.lanes)
        return [C.vload([0], dtype=sums) + self.call(self.pairs, sums, total, ones)]


class _Widened(UnpackingBytes):
    def updates(self, A: Any, B: Any, C: Any) -> list[Any]:
        sums, halves = f"int32x{self.lanes}", f"int16x{2 * self.lanes}"
        total = C.vload([0], dtype=sums)
        for s, part in enumerate(self.parts(B)):
            total = total + self.call(self.llvm, sums, T.Cast(halves, part), self.activations_of(A, s))
        return [total]


def _products() -> dict[str, Product]:
    return {product.name: product for product in X86.products}


def _instructions(bits: int) -> list[Unpacking]:
    """Those of int8 activations for weights of some bits, fastest first."""
    products, each = _products(), 8 // bits

    def made(kind: type, name: str, by: str, depth: int, llvm: str, accumulates: bool, **fields: Any) -> Unpacking:
        product = products[by]
        lanes = product.registers.lanes(32)
        data = "int8" if depth == 4 else "int16"
        return kind(
            f"{name}_int{bits}", product, lanes, depth, data, "uint8", llvm, accumulates, X86, each, bits=bits, **fields
        )

    found = [
        made(_Vnni, f"vpdpbusd_{width}", f"vpdpbusd_{width}", 4, f"llvm.x86.avx512.vpdpbusd.{width}", True)
        for width in (512, 256)
    ]
    for width, by, bytewise, pairs in (
        (512, "vpmaddwd_512", "llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512"),
        (256, "vpmaddwd_256", "llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"),
        (128, "pmaddwd_128", "", "llvm.x86.sse2.pmadd.wd"),
    ):
        if bits < 8 and bytewise:
            found.append(made(_Bytewise, f"vpmaddubsw_{width}", by, 4, bytewise, False, pairs=pairs))
        found.append(made(_Widened, by, by, 2, pairs, False))
    return found


for _bits in BITS:
    for _priority, _instruction in enumerate(reversed(_instructions(_bits)), LOWEST_PRIORITY):
        register(BlockwiseWorkload, implementation(_instruction, "x86", _priority))
for _priority, _fma in enumerate(reversed(unpacking_fmas(X86)), LOWEST_PRIORITY):
    register(BlockwiseWorkload, implementation(_fma, "x86", _priority))
