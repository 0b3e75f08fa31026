"""Attention over a key-value cache, read where it is: keys behind the last one that a query sees are never touched.

    for tile of as many rows as a register has lanes:
        scores[k, lanes] = scale · Σ_d query[lanes, d] · key[k, d]        KEYS keys at a time, each value a broadcast
        softmax of each lane, over k
        out[row, …] = Σ_k scores[k, row] · value[k, …]                    rows × vectors of registers

Rows are in the lanes for the scores, so that nothing is transposed but the queries; heads that share keys are rows of
one tile, and read them once. Sums are in float32 and in order.
"""

from __future__ import annotations

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
"""Keys whose scores are summed at the same time: enough to hide a multiply-add's latency."""
VECTORS = 2
ROWS = 5
"""Rows × vectors whose results are summed at the same time: with the vectors and a broadcast, within 16 registers."""


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
    batch, groups, rows, _ = map(int, ins[0].shape)
    tiles = -(-rows // lanes)
    with IRBuilder() as builder, T.parallel(0, batch * groups * tiles) as index:
        place = index // (groups * tiles), index // tiles % groups
        _Tile([*ins, *outs], place, index % tiles * lanes, scale, lanes).emit()
    return builder.get()


class _Tile:
    """The code for one tile: `lanes` rows from `start` on, of one sample and one group.

    Behind the last row, lanes compute what that row does, and store nothing.
    """

    def __init__(self, buffers: list[Any], place: tuple[Expr, Expr], start: Expr, scale: float, lanes: int) -> None:
        self.query, self.key, self.value, self.positions, *self.scales, self.out = map(T.buffer_proxy, buffers)
        _, _, self.rows, self.depth = map(int, buffers[0].shape)
        _, _, self.length, self.size = map(int, buffers[2].shape)
        self.samples, self.count = map(int, buffers[3].shape)
        self.place, self.start, self.scale, self.lanes = place, start, scale, lanes
        room = -(-self.length // KEYS) * KEYS
        self.scores = T.buffer_proxy(T.decl_buffer([room, lanes], "float32", scope="global"))
        self.turned = T.buffer_proxy(T.decl_buffer([self.depth, lanes], "float32", scope="global"))
        self.limit = T.buffer_proxy(T.decl_buffer([lanes], "int32", scope="global"))
        self.most = T.buffer_proxy(T.decl_buffer([1], "int32", scope="global"))
        self.widens = str(buffers[1].ty.dtype) != "float32"
        self.wide = T.buffer_proxy(T.decl_buffer([KEYS, self.depth], "float32", scope="global"))
        self.high, self.total = (T.buffer_proxy(T.decl_buffer([lanes], "float32", scope="global")) for _ in range(2))

    def row(self, lane: Expr) -> Expr:
        return tirx.min(self.start + lane, self.rows - 1) if self.rows % self.lanes else self.start + lane

    def read(self, key: Expr) -> Expr:
        """The key that is read in place of one that may be behind the last."""
        return tirx.min(key, self.length - 1) if self.length % KEYS else key

    def emit(self) -> None:
        self._turn()
        self._scores()
        self._softmax()
        used = min(self.rows, self.lanes)
        parts = -(-used // ROWS)
        each = -(-used // parts)
        vectors = VECTORS if self.size % (VECTORS * self.lanes) == 0 else 1
        width = vectors * self.lanes
        with T.serial(0, self.size // width) as chunk:
            for first in range(0, used, each):
                self._mix(range(first, min(first + each, used)), chunk * width, vectors)

    def _turn(self) -> None:
        """Queries with rows in the lanes, and how many keys each of them sees."""
        sample = self.place[0] if self.samples > 1 else 0
        self.most[0] = 1
        for lane in range(self.lanes):
            position = self.positions[sample, self.row(lane) % self.count]
            last = tirx.max(tirx.min(position, tirx.const(self.length - 1, position.ty.dtype)), 0)
            self.limit[lane] = last.astype("int32") + 1
            self.most[0] = tirx.max(self.most[0], self.limit[lane])
            with T.serial(0, self.depth) as d:
                self.turned[d, lane] = self.query[(*self.place, self.row(lane), d)]

    def _blocks(self) -> Any:
        """A loop over the blocks of keys that some row sees."""
        blocks = (self.most[0] + (KEYS - 1)) // KEYS
        return T.serial(0, blocks, annotations={TRIPS: -(-self.length // KEYS)})

    def _scores(self) -> None:
        sums = T.buffer_proxy(T.decl_buffer([KEYS, self.lanes], "float32", scope="local"))
        lowest = tirx.min_value("float32")
        with self._blocks() as block:
            keys = [block * KEYS + k for k in range(KEYS)]
            read = [self.read(key) for key in keys]
            for k in range(KEYS):
                with T.vectorized(0, self.lanes) as lane:
                    sums[k, lane] = tirx.const(0.0, "float32")
            if self.widens:
                for k in range(KEYS):
                    with T.serial(0, self.depth) as d:
                        self.wide[k, d] = self.key[(*self.place, read[k], d)].astype("float32")
            with T.serial(0, self.depth) as d:
                for k in range(KEYS):
                    with T.vectorized(0, self.lanes) as lane:
                        element = self.wide[k, d] if self.widens else self.key[(*self.place, read[k], d)]
                        sums[k, lane] = tir.fused_multiply_add(self.turned[d, lane], element, sums[k, lane])
            for k in range(KEYS):
                with T.vectorized(0, self.lanes) as lane:
                    score = sums[k, lane] * tirx.const(self.scale, "float32")
                    if self.scales:
                        score = score * self.scales[0][(*self.place, read[k], 0)]
                    self.scores[keys[k], lane] = tirx.Select(keys[k] < self.limit[lane], score, lowest)

    def _softmax(self) -> None:
        """Exponentials instead of scores, and their sums; then, for int8, each times the scale of its value."""
        with T.vectorized(0, self.lanes) as lane:
            self.high[lane] = tirx.min_value("float32")
        with self._blocks() as block:
            for k in range(KEYS):
                with T.vectorized(0, self.lanes) as lane:
                    self.high[lane] = tirx.max(self.high[lane], self.scores[block * KEYS + k, lane])
        with T.vectorized(0, self.lanes) as lane:
            self.total[lane] = tirx.const(0.0, "float32")
        with self._blocks() as block, T.serial(0, KEYS) as k:
            key = block * KEYS + k
            with T.vectorized(0, self.lanes) as lane:
                power = elementary.exp(self.scores[key, lane] - self.high[lane], elementary.TIR)
                seen = key < self.limit[lane]
                self.scores[key, lane] = tirx.Select(seen, power, tirx.const(0.0, "float32"))
            with T.vectorized(0, self.lanes) as lane:
                self.total[lane] = self.total[lane] + self.scores[key, lane]
            if self.scales:
                with T.vectorized(0, self.lanes) as lane:
                    scale = self.scales[1][(*self.place, self.read(key), 0)]
                    self.scores[key, lane] = tirx.Select(
                        key < self.limit[lane], self.scores[key, lane] * scale, tirx.const(0.0, "float32")
                    )

    def _mix(self, rows: range, first: Expr, vectors: int) -> None:
        """The results of some rows, `vectors` vectors from `first` on."""
        sums = T.buffer_proxy(T.decl_buffer([len(rows), vectors, self.lanes], "float32", scope="local"))
        places = [(i, vector) for i in range(len(rows)) for vector in range(vectors)]
        for i, vector in places:
            with T.vectorized(0, self.lanes) as lane:
                sums[i, vector, lane] = tirx.const(0.0, "float32")
        with T.serial(0, self.most[0], annotations={TRIPS: self.length}) as k:
            for i, vector in places:
                with T.vectorized(0, self.lanes) as lane:
                    column = first + vector * self.lanes + lane
                    element = self.value[(*self.place, k, column)].astype("float32")
                    sums[i, vector, lane] = tir.fused_multiply_add(
                        element, self.scores[k, rows[i]], sums[i, vector, lane]
                    )
        for i, row in enumerate(rows):
            if self.rows % self.lanes and row >= self.rows % self.lanes:
                with T.If(self.start + row < self.rows), T.Then():
                    self._store(sums, i, row, first, vectors)
            else:
                self._store(sums, i, row, first, vectors)

    def _store(self, sums: Any, i: int, row: int, first: Expr, vectors: int) -> None:
        for vector in range(vectors):
            with T.vectorized(0, self.lanes) as lane:
                column = first + vector * self.lanes + lane
                self.out[(*self.place, self.start + row, column)] = sums[i, vector, lane] / self.total[row]
