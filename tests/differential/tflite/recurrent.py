"""Stateful layers: LSTM and SVDF, with parameters in the ranges that converters produce."""

from __future__ import annotations

import numpy as np

from tests.conformance.tflite_models.builder import Q
from tests.conformance.tflite_models.recurrent import Lstm, LstmBuilder

from .builder import Builder, generates


@generates("UNIDIRECTIONAL_SEQUENCE_LSTM")
def lstm(b: Builder) -> None:
    """The layer of the conformance models in random sizes, with int8 activations. A projection to more outputs than
    there are cells is left out: LiteRT's results for the second sequence then depend on what else the layer
    contains."""
    b.stateful = True
    flag, cells = b.draw.chance, b.draw.extent()
    layer = Lstm(
        batch=b.draw.between(1, 3), time=b.draw.between(1, 5), depth=b.draw.extent(), cells=cells,
        outputs=b.draw.extent(cells) if flag(0.4) else 0, time_major=flag(0.3), peephole=flag(0.4),
        layer_norm=flag(0.4), cifg=flag(0.3), cell_clip=b.draw.pick([0.0, 0.6, 10.0]),
    )  # fmt: skip
    made = LstmBuilder("differential", "int8", layer)
    made.graph, made.rng = b.graph, b.draw.rng
    order = (layer.time, layer.batch) if layer.time_major else (layer.batch, layer.time)
    x = b.fresh("int8", (*order, layer.depth), made.input_q)
    b.one(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", [x, *made.operands(x.index)[1:]], (*order, layer.outputs or layer.cells),
        "int8", made.output_q(), act="tanh", cellClip=layer.cell_clip, timeMajor=layer.time_major,
        intermediates=made.intermediates(),
    )  # fmt: skip


@generates("SVDF")
def svdf(b: Builder) -> None:
    """The integer kernel, whose state is int16."""
    b.stateful = True
    draw = b.draw
    batch, depth, units, rank, memory = (
        draw.between(1, 3),
        draw.extent(),
        draw.extent(),
        draw.between(1, 3),
        draw.extent(),
    )
    filters = units * rank
    state_scale, time_scale = 12.0 / 32767, 0.9 / 32767
    x = b.fresh("int8", (batch, depth), Q(0.03, draw.zero_point("int8")))
    operands = [
        b.const(draw.weights("int8", (filters, depth)), q=Q(0.004)),
        b.const(draw.integers("int16", (filters, memory), -32767), q=Q(time_scale)),
        b.const(draw.integers("int32", (units,), -(2**20), 2**20), q=Q(state_scale * time_scale)),
        b.graph.tensor((batch, memory * filters), "int16", Q(state_scale), name=f"state{len(b.values)}", variable=True),
    ]
    q = Q(float(np.float32(0.12)), draw.zero_point("int8"))
    b.one("SVDF", [x, *operands], (batch, units), "int8", q, rank=rank, act="relu")
