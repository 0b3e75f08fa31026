"""Which results of a microcontroller's kernels may overlap their operands."""

from __future__ import annotations

import numpy as np
from tvm import relax

import qnn_ext
from qnn_ext import op
from qnn_ext.compiling.program.graph import read_graph
from qnn_ext.compiling.program.overlaps import overlaps_of
from qnn_ext.op.base import constant
from tests.compiling.program.small import small_module

SHAPE = (1, 6, 6, 16)


def overlaps(body):
    """The pairs of a module's tensors that may overlap on a Cortex-M4, by the steps that write them, −1 for the input,
    with their distances. body: (layer, input) -> results"""
    rng = np.random.default_rng(0)

    def build(builder, params):
        def layer(data, residual=None):
            weight = rng.integers(-127, 128, (16, 1, 1, 16)).astype(np.int8)
            acc = builder.emit(op.conv2d(data, weight, 0, 0, 1.0, 1.0))
            biased = builder.emit(relax.op.add(acc, constant(np.ones(16, np.int32))))
            scale = np.full(16, 0.01, np.float32)
            result = builder.emit(op.requantize(biased, scale, 0, 1.0, 0, -1, out_dtype="int8", rounding="TFLITE"))
            if residual is None:
                return result
            parameters = 0.5, 0, 0.5, 0, 1.0, 0
            return builder.emit(op.add(result, residual, *parameters, out_dtype="int8", rounding="TFLITE"))

        return body(layer, params[0])

    engine = qnn_ext.build(small_module(build, [(SHAPE, "int8")]), "cortex-m4", code=False)
    ((_, lowered),) = engine.lowered_variants
    graph = read_graph(lowered)
    functions = graph.functions | {step.kernel: lowered[step.kernel] for step in graph.kernels}
    for storage in graph.outputs:
        storage.used_at(len(graph.steps))
    writers = {step.writes[0]: index for index, step in enumerate(graph.steps)}
    found = overlaps_of(graph, functions)
    return {(writers.get(operand, -1), writers[result]): distance for (operand, result), distance in found.items()}


def test_each_layer_overwrites_what_it_reads():
    found = overlaps(lambda layer, x: [layer(layer(x))])
    assert set(found) == {(-1, 0), (0, 1)}
    assert all(0 <= distance < np.prod(SHAPE) / 2 for distance in found.values())


def test_not_what_is_read_again():
    """The first layer's result lives until the last one adds it."""
    found = overlaps(lambda layer, x: [layer(layer(first := layer(x)), first)])
    assert set(found) == {(-1, 0), (1, 2), (0, 2)}
    assert found[0, 2] >= 4 * SHAPE[-1] > found[1, 2], "a tile of four pixels writes before it reads all of theirs"


def test_not_an_operand_that_is_an_output():
    assert (0, 1) not in overlaps(lambda layer, x: [first := layer(x), layer(first)])
