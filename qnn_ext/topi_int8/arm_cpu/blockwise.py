"""Products with block-wise quantized weights on ARM: registers the kernels of `cpu.blockwise` with its instructions.

sdot    int8 activations, four products a lane; weights of 2 and 4 bits are unsigned, those of 8 bits signed
mla     the same without sdot: activations and weights widened to int32
fmla    float activations, on 64-bit CPUs; weights as floats
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.script import tirx as T

from ...numerics.packed import WIDTHS
from ...targets.backend import Backend
from ...targets.families import AARCH64, ARM32
from ..cpu.blockwise import Unpacking, UnpackingBytes, implementation, unpacking_fmas
from ..cpu.fma import MOST_PIXELS
from ..cpu.registration import LOWEST_PRIORITY
from ..strategy import register
from ..workload import BlockwiseWorkload
from .intrin import LANES


@dataclass(frozen=True)
class _Sdot(UnpackingBytes):
    def stored(self, values: np.ndarray, weight_dtype: str) -> tuple[np.ndarray, int]:
        """Weights of 8 bits are signed in memory."""
        if self.bits < 8:
            return super().stored(values, weight_dtype)
        return values, -self.offset if weight_dtype.startswith("u") else 0

    def instructions(self, pixels: int, blocks: int) -> float:
        """A step unpacks each block's weights with a shift and a mask for each s, and loads each row's activations."""
        unpacking = 1 if self.chain == 1 else 1 + 2 * self.chain
        return pixels * blocks * self.chain + pixels * self.chain + blocks * unpacking

    def updates(self, A: Any, B: Any, C: Any) -> list[Any]:
        sums, lanes = f"int32x{self.lanes}", f"int8x{self.lanes * self.depth}"
        total = C.vload([0], dtype=sums)
        for s, part in enumerate(self.parts(B)):
            total = self.call(self.llvm, sums, total, T.reinterpret(part, dtype=lanes), self.activations_of(A, s))
        return [total]


@dataclass(frozen=True)
class _Mla(Unpacking):
    def operands(self, pixels: int, blocks: int) -> int:
        """The words of each block, one step of them, and a register of activations for every row."""
        return 2 * blocks + pixels + 1 if pixels <= MOST_PIXELS else self.registers

    def instructions(self, pixels: int, blocks: int) -> float:
        """A shift and a mask for each block and value of its words; a load of activations is broadcast by element."""
        return pixels * blocks * self.chain + pixels * self.chain / 4 + blocks * (1 + 2 * self.chain)

    def updates(self, A: Any, B: Any, C: Any) -> list[Any]:
        """One statement for each activation."""
        dtype = f"int32x{self.lanes}"
        mask = T.broadcast(T.int32((1 << self.bits) - 1), self.lanes)

        def update(s: int) -> Any:
            word = B.vload([0], dtype=dtype)
            shifted = T.shift_right(word, T.broadcast(T.int32(s * self.bits), self.lanes)) if s else word
            value = T.broadcast(A.vload([s], "int32"), self.lanes)
            return C.vload([0], dtype=dtype) + T.bitwise_and(shifted, mask) * value

        return [update(s) for s in range(self.chain)]


def _sdot(bits: int) -> Unpacking:
    weight_dtype = "int8" if bits == 8 else "uint8"
    name, llvm = f"sdot_int{bits}", "llvm.aarch64.neon.sdot.v4i32.v16i8"
    product, chain = AARCH64.product("sdot"), 8 // bits
    return _Sdot(name, product, LANES, 4, "int8", weight_dtype, llvm, True, AARCH64, chain, bits=bits)


def _mla(backend: Backend, bits: int) -> Unpacking:
    product, name = backend.product("smlal"), f"mla_int{bits}.{backend.name}"
    return _Mla(name, product, LANES, 1, "int32", "int32", "", True, backend, 32 // bits, bits=bits)


for _bits in sorted(set(WIDTHS.values())):
    register(BlockwiseWorkload, implementation(_sdot(_bits), "arm_cpu", LOWEST_PRIORITY + 1))
    for _backend in (AARCH64, ARM32):
        register(BlockwiseWorkload, implementation(_mla(_backend, _bits), "arm_cpu", LOWEST_PRIORITY))
for _fma in unpacking_fmas(AARCH64):
    register(BlockwiseWorkload, implementation(_fma, "arm_cpu", LOWEST_PRIORITY))
