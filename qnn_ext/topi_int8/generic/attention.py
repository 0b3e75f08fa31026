"""Attention over a key-value cache, read where it is: keys behind the last one that a query sees are never touched.

    for tile of rows:
        scores[k, row] = scale · Σ_d query[row, d] · key[k, d]            several keys at a time
        softmax of each row, over k
        out[row, …] = Σ_k scores[k, row] · value[k, …]                    rows × vectors of registers

Rows are in the lanes for the scores, so that nothing is transposed but the queries; heads that share keys are rows of
one tile, and read them once. Where a register has room for all rows several times, as when a model decodes, a row has
`parts` lanes:

    lane row · parts + p    sums   Σ_step query[row, step · parts + p] · key[k, step · parts + p]
    lane p · slots + row    scores of key k + p, added up from the sums of `parts` keys by shuffles

A step reads `parts` values of a key and repeats them over the register. Sums are in float32.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.target import Target

from ...numerics import elementary, tir
from ...numerics.annotations import TRIPS
from ...targets.features import backend_of
from ..refusal import lacking
from .float_rows import softmax
from .nest import nest

Expr = Any

KEYS = 6
"""Keys whose scores are summed at the same time, at least: enough to hide a multiply-add's latency."""
VECTORS = 2
ROWS = 5
"""Rows × vectors whose results are summed at the same time: with the vectors and a broadcast, within 16 registers."""
_LOWEST = tirx.min_value("float32")


def lanes_of(target: Target, size: int) -> int:
    """The lanes of the vectors in which results of `size` values are computed; 0 if the target has no multiply-add, or
    the size is no multiple of its vectors."""
    products = [product for product in backend_of(target).float_products if lacking(target, product) is None]
    lanes = products[0].registers.lanes(32) if products else 0
    return lanes if lanes and size % lanes == 0 else 0


def attention(
    query: te.Tensor, key: te.Tensor, value: te.Tensor, positions: te.Tensor, *scales: te.Tensor, scale: float
) -> te.Tensor:
    """The kernel of qnn.attention: as above where `lanes_of` finds some, otherwise in steps."""
    target = Target.current(allow_none=True)
    shape = [*map(int, query.shape[:3]), int(value.shape[3])]
    lanes = 0 if target is None else lanes_of(target, shape[3])
    if not lanes:
        return _in_steps(query, key, value, positions, *scales, scale=scale)
    body = partial(_nest, scale=scale, lanes=lanes)
    return nest(shape, [query, key, value, positions, *scales], body, dtype="float32", name="attention")


def _in_steps(
    query: te.Tensor, key: te.Tensor, value: te.Tensor, positions: te.Tensor, *scales: te.Tensor, scale: float
) -> te.Tensor:
    """Scores, softmax and results as stages for any target, over all keys."""
    length, depth = int(key.shape[2]), int(key.shape[3])
    samples, count = map(int, positions.shape)
    d, k = te.reduce_axis((0, depth), "d"), te.reduce_axis((0, length), "k")

    def seen(b: Expr, r: Expr, t: Expr) -> Expr:
        position = positions(b if samples > 1 else 0, r % count)
        last = tirx.max(tirx.min(position, tirx.const(length - 1, position.ty.dtype)), 0)
        return t <= last.astype("int32")

    def real(tensor: te.Tensor, index: int, b: Expr, g: Expr, t: Expr, column: Expr) -> Expr:
        element = tensor(b, g, t, column).astype("float32")
        return element * scales[index](b, g, t, 0) if scales else element

    products = te.compute(
        (*query.shape[:3], length),
        lambda b, g, r, t: te.sum(query(b, g, r, d) * real(key, 0, b, g, t, d), axis=d),
        name="products",
    )
    scores = te.compute(
        products.shape,
        lambda b, g, r, t: tirx.Select(
            seen(b, r, t), products(b, g, r, t) * tirx.const(scale, "float32"), tirx.min_value("float32")
        ),
        name="scores",
    )
    shares = softmax(scores)
    return te.compute(
        (*query.shape[:3], value.shape[3]),
        lambda b, g, r, v: te.sum(
            tirx.Select(seen(b, r, k), shares(b, g, r, k) * real(value, 1, b, g, k, v), tirx.const(0.0, "float32")),
            axis=k,
        ),
        name="attention",
    )


def _nest(ins: list[Any], outs: list[Any], scale: float, lanes: int) -> Any:
    batch, groups, rows, depth = map(int, ins[0].shape)
    parts = _parts(rows, depth, lanes)
    slots = lanes // parts
    tiles = -(-rows // slots)
    with IRBuilder() as builder, T.parallel(0, batch * groups * tiles) as index:
        place = index // (groups * tiles), index // tiles % groups
        _Tile([*ins, *outs], place, index % tiles * slots, scale, slots, parts).emit()
    return builder.get()


def _parts(rows: int, depth: int, lanes: int) -> int:
    """How many lanes a row has: as many as all rows leave it, if they divide the depth."""
    parts = 1
    while 2 * parts * rows <= lanes and depth % (2 * parts) == 0:
        parts *= 2
    return parts


class _Tile:
    """The code for one tile: `slots` rows from `start` on, of one sample and one group, in `parts` lanes each.

    Behind the last row, lanes compute what that row does, and store nothing.
    """

    def __init__(
        self, buffers: list[Any], place: tuple[Expr, Expr], start: Expr, scale: float, slots: int, parts: int
    ) -> None:
        self.query, self.key, self.value, self.positions, *self.scales, self.out = map(T.buffer_proxy, buffers)
        _, _, self.rows, self.depth = map(int, buffers[0].shape)
        _, _, self.length, self.size = map(int, buffers[2].shape)
        self.samples, self.count = map(int, buffers[3].shape)
        self.place, self.start, self.scale = place, start, scale
        self.slots, self.parts, self.lanes = slots, parts, slots * parts
        self.keys = -(-KEYS // parts) * parts
        room = -(-self.length // self.keys) * self.keys
        self.scores = _scratch(room // parts, self.lanes)  # of `parts` keys: one key's rows behind the other's
        self.turned = _scratch(self.depth // parts, self.lanes)
        self.limit = _scratch(self.lanes, dtype="int32")  # a vector of scores from this key on: the lane's is unseen
        self.most = _scratch(1, dtype="int32")
        self.wide = None if str(buffers[1].ty.dtype) == "float32" else _scratch(self.keys, self.depth)
        self.high, self.total = _scratch(self.lanes), _scratch(self.lanes)

    def row(self, slot: Expr) -> Expr:
        return tirx.min(self.start + slot, self.rows - 1) if self.rows % self.slots else self.start + slot

    def read(self, key: Expr) -> Expr:
        """The key that is read in place of one that may be behind the last."""
        return tirx.min(key, self.length - 1) if self.length % self.keys else key

    def emit(self) -> None:
        self._turn()
        self._scores()
        self._softmax()
        used = min(self.rows, self.slots)
        runs = -(-used // ROWS)
        each = -(-used // runs)
        vectors = VECTORS if self.size % (VECTORS * self.lanes) == 0 else 1
        width = vectors * self.lanes
        with T.serial(0, self.size // width) as chunk:
            for first in range(0, used, each):
                self._mix(range(first, min(first + each, used)), chunk * width, vectors)

    def _turn(self) -> None:
        """Queries with rows in the lanes, and how many keys each of them sees."""
        self.most[0] = 1
        for slot in range(self.slots):
            position = self.positions[self.place[0] if self.samples > 1 else 0, self.row(slot) % self.count]
            last = tirx.max(tirx.min(position, tirx.const(self.length - 1, position.ty.dtype)), 0).astype("int32")
            self.most[0] = tirx.max(self.most[0], last + 1)
            for part in range(self.parts):
                self.limit[part * self.slots + slot] = last + (1 - part)
            with T.serial(0, self.depth // self.parts) as step:
                for part in range(self.parts):
                    element = self.query[(*self.place, self.row(slot), step * self.parts + part)]
                    self.turned[step, slot * self.parts + part] = element

    def _blocks(self) -> Any:
        """A loop over the blocks of keys that some row sees."""
        blocks = (self.most[0] + (self.keys - 1)) // self.keys
        return T.serial(0, blocks, annotations={TRIPS: -(-self.length // self.keys)})

    def _scores(self) -> None:
        sums = T.buffer_proxy(T.decl_buffer([self.keys, self.lanes], "float32", scope="local"))
        lanes = tirx.Ramp(0, 1, self.lanes)
        with self._blocks() as block:
            keys = [block * self.keys + k for k in range(self.keys)]
            read = [self.read(key) for key in keys]
            for k in range(self.keys):
                with T.vectorized(0, self.lanes) as lane:
                    sums[k, lane] = tirx.const(0.0, "float32")
            if self.wide is not None:
                for k in range(self.keys):
                    with T.serial(0, self.depth) as d:
                        self.wide[k, d] = self.key[(*self.place, read[k], d)].astype("float32")
            with T.serial(0, self.depth // self.parts) as step:
                for k in range(self.keys):
                    values = self._repeated(k, read[k], step * self.parts)
                    sums[k, lanes] = tir.fused_multiply_add(self.turned[step, lanes], values, sums[k, lanes])
            if self.scales:
                for k in range(self.keys):
                    with T.vectorized(0, self.lanes) as lane:
                        sums[k, lane] = sums[k, lane] * self.scales[0][(*self.place, read[k], 0)]
            for k in range(0, self.keys, self.parts):
                added = _added([sums[k + part, lanes] for part in range(self.parts)], self.lanes)
                sums[k, lanes] = added
                with T.vectorized(0, self.lanes) as lane:
                    score = sums[k, lane] * tirx.const(self.scale, "float32")
                    score = tirx.Select(keys[k] < self.limit[lane], score, _LOWEST)
                    self.scores[keys[k] // self.parts, lane] = score

    def _repeated(self, key: int, read: Expr, first: Expr) -> Expr:
        """`parts` values of a key from the first one on, in the lanes of each row."""
        buffer, index = (self.key, (*self.place, read)) if self.wide is None else (self.wide, (key,))
        if self.parts == 1:
            return tirx.Broadcast(buffer[(*index, first)], self.lanes)
        values = buffer[(*index, tirx.Ramp(first, 1, self.parts))]
        return _shuffled([values] * self.slots, list(range(self.lanes)))

    def _softmax(self) -> None:
        """Exponentials instead of scores, and their sums; then, for int8, each times the scale of its value."""
        zero = tirx.const(0.0, "float32")
        with T.vectorized(0, self.lanes) as lane:
            self.high[lane] = _LOWEST
        with self._blocks() as block:
            for k in range(0, self.keys, self.parts):
                with T.vectorized(0, self.lanes) as lane:
                    vector = (block * self.keys + k) // self.parts
                    self.high[lane] = tirx.max(self.high[lane], self.scores[vector, lane])
        self._joined(self.high, tirx.max)
        with T.vectorized(0, self.lanes) as lane:
            self.total[lane] = zero
        with self._blocks() as block, T.serial(0, self.keys // self.parts) as index:
            vector = block * (self.keys // self.parts) + index
            key = vector * self.parts
            with T.vectorized(0, self.lanes) as lane:
                power = elementary.exp(self.scores[vector, lane] - self.high[lane], elementary.TIR)
                self.scores[vector, lane] = tirx.Select(key < self.limit[lane], power, zero)
            with T.vectorized(0, self.lanes) as lane:
                self.total[lane] = self.total[lane] + self.scores[vector, lane]
            for part in range(self.parts if self.scales else 0):
                with T.vectorized(0, self.slots) as slot:
                    lane = part * self.slots + slot
                    share = self.scores[vector, lane] * self.scales[1][(*self.place, self.read(key + part), 0)]
                    # the scale of a key that a row does not see may be anything
                    self.scores[vector, lane] = tirx.Select(key < self.limit[lane], share, zero)
        self._joined(self.total, operator.add)

    def _joined(self, buffer: Any, join: Callable[[Expr, Expr], Expr]) -> None:
        """One value for each row, of those of its keys, in all its lanes."""
        for part in range(1, self.parts):
            with T.vectorized(0, self.slots) as slot:
                buffer[slot] = join(buffer[slot], buffer[part * self.slots + slot])
        for part in range(1, self.parts):
            with T.vectorized(0, self.slots) as slot:
                buffer[part * self.slots + slot] = buffer[slot]

    def _mix(self, rows: range, first: Expr, vectors: int) -> None:
        """The results of some rows, `vectors` vectors from `first` on."""
        sums = T.buffer_proxy(T.decl_buffer([len(rows), vectors, self.lanes], "float32", scope="local"))
        places = [(i, vector) for i in range(len(rows)) for vector in range(vectors)]
        for i, vector in places:
            with T.vectorized(0, self.lanes) as lane:
                sums[i, vector, lane] = tirx.const(0.0, "float32")
        with T.serial(0, self.most[0], annotations={TRIPS: self.length}) as k:
            share = k % self.parts * self.slots
            for i, vector in places:
                with T.vectorized(0, self.lanes) as lane:
                    column = first + vector * self.lanes + lane
                    element = self.value[(*self.place, k, column)].astype("float32")
                    sums[i, vector, lane] = tir.fused_multiply_add(
                        element, self.scores[k // self.parts, share + rows[i]], sums[i, vector, lane]
                    )
        for i, row in enumerate(rows):
            if self.rows % self.slots and row >= self.rows % self.slots:
                with T.If(self.start + row < self.rows), T.Then():
                    self._store(sums, i, row, first, vectors)
            else:
                self._store(sums, i, row, first, vectors)

    def _store(self, sums: Any, i: int, row: int, first: Expr, vectors: int) -> None:
        for vector in range(vectors):
            with T.vectorized(0, self.lanes) as lane:
                column = first + vector * self.lanes + lane
                self.out[(*self.place, self.start + row, column)] = sums[i, vector, lane] / self.total[row]


def _scratch(*shape: int, dtype: str = "float32") -> Any:
    return T.buffer_proxy(T.decl_buffer(shape, dtype, scope="global"))


def _added(vectors: list[Expr], lanes: int) -> Expr:
    """The sums of the lanes of each row, of `len(vectors)` lanes in each vector, one vector's behind the other's."""
    if len(vectors) == 1:
        return vectors[0]
    evens, odds = ([*range(first, 2 * lanes, 2)] for first in (0, 1))
    pairs = zip(vectors[::2], vectors[1::2], strict=True)
    return _added([_shuffled(pair, evens) + _shuffled(pair, odds) for pair in pairs], lanes)


def _shuffled(vectors: Sequence[Expr], order: list[int]) -> Expr:
    """The lanes of all vectors in this order."""
    return tirx.Shuffle(list(vectors), [tirx.const(lane, "int32") for lane in order])
