"""Interleaving the rows of a window as a TensorIntrin, so that all values under the window are one run of memory.

    B[(x·rows + r)·channels + c] = A[r·step, x·channels + c],   r < rows, c < channels

Every vector of B is one shuffle of a piece of each row. After some vectors a column again begins where a vector does; a
loop runs over such periods. The last vector may overlap the previous one, and pieces end where A ends, so nothing
outside A is read and nothing outside B is written.
"""

# No `from __future__ import annotations` here: TVMScript evaluates the buffer annotations below.

from dataclasses import dataclass
from functools import cache
from math import lcm

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

VECTOR = 64
"""Bytes that are written together; LLVM splits them where registers are narrower."""

PERIOD = 32
"""The most vectors in a period, as each adds code."""


@dataclass(frozen=True)
class Interleaving:
    """`length` bytes of B: `channels` from each of `rows` rows, `step` rows of A apart."""

    length: int
    rows: int
    channels: int
    step: int

    @property
    def column(self) -> int:
        """Bytes of a column of B."""
        return self.rows * self.channels

    @property
    def width(self) -> int:
        """Bytes of a row of A."""
        return -(-self.length // self.column) * self.channels

    @property
    def period(self) -> int:
        """Bytes of B after which a column and a vector begin together again."""
        return lcm(VECTOR, self.column)

    @property
    def piece(self) -> int:
        """Bytes of a row that are loaded for one vector of B: a power of two."""
        columns = (VECTOR - 2) // self.column + 2  # the most that VECTOR bytes can touch
        return 1 << (columns * self.channels - 1).bit_length()

    @property
    def legal(self) -> bool:
        """Whether B holds a whole vector, A and its part of a period hold a whole piece, and the code is short."""
        holds = self.length >= VECTOR and min(self.width, self.period // self.rows) >= self.piece
        return holds and self.period <= PERIOD * VECTOR

    def shuffle(self, start: int, width: int) -> tuple[int, list[int]]:
        """For the vector at `start` in B: where its pieces start in rows of `width` bytes, and its bytes' indices
        there."""
        first = min(start // self.column * self.channels, width - self.piece)
        indices = []
        for position in range(start, start + VECTOR):
            column, rest = divmod(position, self.column)
            row, channel = divmod(rest, self.channels)
            indices.append(row * self.piece + column * self.channels + channel - first)
        return first, indices

    @property
    def tensor_intrin(self) -> str:
        """Name under which it is registered as a TensorIntrin."""
        return _register(self)


def _describe(interleaving: Interleaving):
    rows, channels, step = interleaving.rows, interleaving.channels, interleaving.step
    span, width, length = (rows - 1) * step + 1, interleaving.width, interleaving.length

    @T.prim_func(s_tir=True)
    def meaning(a: T.handle, b: T.handle) -> None:
        stride = T.int32()
        A = T.match_buffer(a, (span, width), "uint8", offset_factor=1, strides=[stride, 1])
        B = T.match_buffer(b, (length,), "uint8", offset_factor=1)
        with T.sblock("root"):
            T.reads(A[0:span, 0:width])
            T.writes(B[0:length])
            for j in T.serial(0, length):
                with T.sblock("update"):
                    vj = T.axis.spatial(length, j)
                    B[vj] = A[vj // channels % rows * step, vj // (rows * channels) * channels + vj % channels]

    return meaning


def _implement(interleaving: Interleaving):
    rows, channels, step, column = interleaving.rows, interleaving.channels, interleaving.step, interleaving.column
    span, width, length, period = (rows - 1) * step + 1, interleaving.width, interleaving.length, interleaving.period
    piece, loops = f"uint8x{interleaving.piece}", length // period

    def write_vector(A, B, start, line, base):
        """Write the vector at `start` from column `base` on, out of rows with `line` bytes there."""
        first, indices = interleaving.shuffle(start, line)
        pieces = [A.vload([row * step, base * channels + first], dtype=piece) for row in range(rows)]
        T.buffer_store(B, T.Shuffle(pieces, indices), [T.ramp(base * column + start, 1, VECTOR)])

    def write_period(A, B, base):
        for start in range(0, period, VECTOR):
            write_vector(A, B, start, period // column * channels, base)

    def write_rest(A, B):
        for start in range(loops * period, length, VECTOR):
            write_vector(A, B, min(start, length - VECTOR), width, T.int32(0))

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, b: T.handle) -> None:
        stride = T.int32()
        A = T.match_buffer(a, (span, width), "uint8", offset_factor=1, strides=[stride, 1])
        B = T.match_buffer(b, (length,), "uint8", offset_factor=1)
        with T.sblock("root"):
            T.reads(A[0:span, 0:width])
            T.writes(B[0:length])
            for number in T.serial(0, loops):
                write_period(A, B, number * (period // column))
            write_rest(A, B)

    return implementation


@cache
def _register(interleaving: Interleaving) -> str:
    sizes = (interleaving.length, interleaving.rows, interleaving.channels, interleaving.step)
    name = "qnn_ext.cpu.interleave." + ".".join(map(str, sizes))
    TensorIntrin.register(name, _describe(interleaving), _implement(interleaving), override=True)
    return name
