"""UNIDIRECTIONAL_SEQUENCE_LSTM and SVDF: float, hybrid and integer; their state persists between invocations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from .builder import Graph, Q, Spec, rng_for

GATES = ("input", "forget", "cell", "output")


@dataclass(frozen=True)
class Lstm:
    """One LSTM layer."""

    batch: int = 1
    time: int = 5
    depth: int = 6
    cells: int = 8
    outputs: int = 0
    """Projected size; 0 without projection."""
    time_major: bool = False
    peephole: bool = False
    layer_norm: bool = False
    cifg: bool = False
    projection_bias: bool = False
    cell_clip: float = 0.0
    projection_clip: float = 0.0


LSTM_VARIANTS = {
    "plain": Lstm(cell_clip=10.0),
    "no_clip": Lstm(),
    "batch3": Lstm(batch=3, time=3),
    "time_major": Lstm(batch=2, time=4, time_major=True),
    "peephole": Lstm(peephole=True),
    "projection": Lstm(outputs=5),
    "projection_bias_clip": Lstm(outputs=5, projection_bias=True, projection_clip=0.5, cell_clip=1.0),
    "layer_norm": Lstm(layer_norm=True),
    "cifg": Lstm(cifg=True),
    "cifg_peephole": Lstm(cifg=True, peephole=True),
    "peephole_projection_layer_norm": Lstm(batch=2, peephole=True, outputs=4, layer_norm=True),
    "one_step": Lstm(time=1, depth=20, cells=16),
    "small_clip": Lstm(cell_clip=0.6),
}
HIDDEN = Q(1 / 128, -1)
OUTPUT = Q(1 / 110, 3)
CELL_EXPONENT = -11


class LstmBuilder:
    """Adds the operands of one LSTM; `mode` is float32, hybrid, int8 or int16."""

    def __init__(self, name: str, mode: str, layer: Lstm) -> None:
        self.graph, self.rng, self.mode, self.layer = Graph(), rng_for(name), mode, layer
        self.integer = mode in ("int8", "int16")
        self.dtype = mode if self.integer else "float32"
        self.input_q = {"int8": Q(0.02, -7), "int16": Q(0.02 / 256)}.get(mode)
        self.norm_scale = 1 / 16384

    def matrix(self, rows: int, columns: int) -> tuple[int, float]:
        """A weight matrix and its scale."""
        scale = float(np.float32(self.rng.uniform(0.8, 1.2) / 127 / np.sqrt(columns) * 2))
        values = self.rng.integers(-127, 127, (rows, columns), endpoint=True)
        if self.mode == "float32":
            return self.graph.const((values * scale).astype("float32")), scale
        return self.graph.const(values, "int8", Q(scale)), scale

    def vector(self, size: int, scale: float, dtype: str, limit: float) -> int:
        """A vector of reals up to `limit`, stored with that scale in integer modes."""
        reals = self.rng.uniform(-limit, limit, size)
        if not self.integer:
            return self.graph.const(reals.astype("float32"))
        return self.graph.const(np.round(reals / scale), dtype, Q(scale))

    def gates(self, build, skip: bool = False) -> list[int]:
        """One operand per gate; -1 for all if `skip`, and for the input gate if it is coupled (CIFG)."""
        return [-1 if skip or (self.layer.cifg and g == "input") else build(g) for g in GATES]

    def bias(self, scale: float) -> int:
        """A gate's bias, in the unit of its accumulator (or of the layer norm's output)."""
        unit = (
            self.norm_scale * 2**-10 if self.layer.layer_norm else scale * (self.input_q.scale if self.input_q else 1)
        )
        return self.vector(self.layer.cells, unit, "int64" if self.mode == "int16" else "int32", 0.5)

    def output_q(self) -> Q | None:
        """Output quantization: that of the hidden state, or another one after a projection."""
        if self.mode == "int16":
            return Q(1 / 32768)
        return (OUTPUT if self.layer.outputs else HIDDEN) if self.integer else None

    def intermediates(self) -> list[int]:
        """The five tensors that carry the scales of the normalized gates and of the hidden state."""
        if not self.integer:
            return []
        if self.layer.layer_norm:
            made = [self.graph.tensor((0,), "int16", Q(2.0**-12), name=f"input_to_{g}_intermediate") for g in GATES]
        else:
            made = [self.graph.tensor((0,), "float32", name=f"input_to_{g}_intermediate") for g in GATES]
        hidden = HIDDEN if self.mode == "int8" else Q(1 / 32768)
        return made + [self.graph.tensor((0,), self.dtype, hidden, name="effective_hidden_scale_intermediate")]

    def operands(self, x: int) -> list[int]:
        """The 24 inputs."""
        layer, graph = self.layer, self.graph
        outputs = layer.outputs or layer.cells
        scales: dict[str, float] = {}

        def input_weights(gate: str) -> int:
            index, scales[gate] = self.matrix(layer.cells, layer.depth)
            return index

        operands = [x, *self.gates(input_weights)]
        operands += self.gates(lambda g: self.matrix(layer.cells, outputs)[0])
        peephole = self.gates(lambda g: self.peephole_weights(g), skip=not layer.peephole)
        operands += [peephole[0], peephole[1], peephole[3]]
        operands += self.gates(lambda g: self.bias(scales[g]))
        operands += self.projection(outputs)
        state_q = self.output_q()
        operands.append(graph.tensor((layer.batch, outputs), self.dtype, state_q, name="output_state", variable=True))
        cell_q = Q(2.0**CELL_EXPONENT) if self.integer else None
        cell_dtype = "int16" if self.integer else "float32"
        operands.append(graph.tensor((layer.batch, layer.cells), cell_dtype, cell_q, name="cell_state", variable=True))
        norms = self.gates(lambda g: self.norm_weights(), skip=not layer.layer_norm)
        return operands + norms

    def peephole_weights(self, gate: str) -> int:
        """Diagonal weights of the cell state; the cell gate has none."""
        if gate == "cell":
            return -1
        if self.mode == "hybrid":
            return self.graph.const(self.rng.integers(-127, 127, self.layer.cells), "int8", Q(0.3 / 127))
        return self.vector(self.layer.cells, 0.3 / 32767, "int16", 0.3)

    def norm_weights(self) -> int:
        """Layer normalization coefficients near 1."""
        reals = self.rng.uniform(0.5, 1.5, self.layer.cells)
        if not self.integer:
            return self.graph.const(reals.astype("float32"))
        return self.graph.const(np.round(reals / self.norm_scale), "int16", Q(self.norm_scale))

    def projection(self, outputs: int) -> list[int]:
        """Projection weights and bias, or -1."""
        if not self.layer.outputs:
            return [-1, -1]
        weight, scale = self.matrix(outputs, self.layer.cells)
        if not self.layer.projection_bias:
            return [weight, -1]
        hidden = HIDDEN.scale if self.mode == "int8" else 1 / 32768
        return [weight, self.vector(outputs, scale * hidden, "int32", 0.3)]


def lstm(mode: str, variant: str, layer: Lstm, asymmetric: bool = False) -> Spec:
    """One LSTM case."""
    name = f"UNIDIRECTIONAL_SEQUENCE_LSTM/{mode}/{'asymmetric_' if asymmetric else ''}{variant}"
    made = LstmBuilder(name, mode, layer)
    order = (layer.time, layer.batch) if layer.time_major else (layer.batch, layer.time)
    x = made.graph.input((*order, layer.depth), made.dtype, made.input_q, step=1 / 64)
    operands = made.operands(x)
    y = made.graph.output((*order, layer.outputs or layer.cells), made.dtype, made.output_q())
    made.graph.op(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", operands, [y], act="tanh", cellClip=layer.cell_clip,
        projClip=layer.projection_clip, timeMajor=layer.time_major, asymmetricQuantizeInputs=asymmetric,
        intermediates=made.intermediates(),
    )  # fmt: skip
    return Spec(name, made.graph, trials=5, stateful=True)


@dataclass(frozen=True)
class Svdf:
    """One SVDF layer."""

    batch: int = 1
    depth: int = 8
    units: int = 6
    rank: int = 1
    memory: int = 7
    act: str = "none"
    bias: bool = True


SVDF_VARIANTS = {
    "rank1": Svdf(),
    "rank2": Svdf(rank=2),
    "batch2_relu": Svdf(batch=2, act="relu"),
    "no_bias": Svdf(bias=False),
    "relu6": Svdf(rank=3, act="relu6"),
    "long_memory": Svdf(units=3, memory=20),
}


def svdf(mode: str, variant: str, layer: Svdf, time_dtype: str = "", asymmetric: bool = False) -> Spec:
    """One SVDF case; `time_dtype` is the dtype of the time weights and the state of integer layers."""
    name = f"SVDF/{mode}/{f'{time_dtype}_state_' if time_dtype else ''}{'asymmetric_' if asymmetric else ''}{variant}"
    graph, rng = Graph(), rng_for(name)
    integer = mode == "int8"
    dtype = "int8" if integer else "float32"
    filters = layer.units * layer.rank
    feature = rng.integers(-127, 127, (filters, layer.depth), endpoint=True)
    limit = 32767 if time_dtype == "int16" else 127
    time = rng.integers(-limit, limit, (filters, layer.memory), endpoint=True)
    feature_scale, time_scale = 0.004, 0.9 / limit
    state_scale = 12.0 / (32767 if time_dtype == "int16" else 127)
    input_q, output_q = (Q(0.03, 4), Q(0.12, -9)) if integer else (None, None)
    x = graph.input((layer.batch, layer.depth), dtype, input_q, step=1 / 64)
    if mode == "float32":
        weights = [
            graph.const((feature * feature_scale).astype("float32")),
            graph.const((time * time_scale).astype("float32")),
        ]
    else:
        weights = [
            graph.const(feature, "int8", Q(feature_scale)),
            graph.const(time, time_dtype or "int8", Q(time_scale)),
        ]
    bias = -1
    if layer.bias:
        reals = rng.uniform(-1, 1, layer.units)
        unit = state_scale * time_scale
        bias = graph.const(np.round(reals / unit), "int32", Q(unit)) if integer else graph.const(reals, "float32")
    state_shape = (layer.batch, layer.memory * filters)
    state_q = Q(state_scale) if integer else None
    state = graph.tensor(state_shape, time_dtype or "float32", state_q, name="state", variable=True)
    y = graph.output((layer.batch, layer.units), dtype, output_q)
    operands = [x, *weights, bias, state]
    graph.op("SVDF", operands, [y], rank=layer.rank, act=layer.act, asymmetricQuantizeInputs=asymmetric)
    return Spec(name, graph, trials=10, stateful=True)


def lstm_specs() -> Iterator[Spec]:
    """UNIDIRECTIONAL_SEQUENCE_LSTM in every mode."""
    for mode in ("int8", "int16", "float32", "hybrid"):
        for variant, layer in LSTM_VARIANTS.items():
            yield lstm(mode, variant, layer)
    yield lstm("hybrid", "plain", LSTM_VARIANTS["plain"], asymmetric=True)
    yield lstm("hybrid", "projection", LSTM_VARIANTS["projection"], asymmetric=True)


def svdf_specs() -> Iterator[Spec]:
    """SVDF in every mode."""
    for variant, layer in SVDF_VARIANTS.items():
        if layer.act != "relu6":  # integer kernels support RELU only
            yield svdf("int8", variant, replace(layer, act="relu"), time_dtype="int16")
        yield svdf("float32", variant, layer)
        yield svdf("hybrid", variant, layer)
        yield svdf("hybrid", variant, layer, asymmetric=True)
