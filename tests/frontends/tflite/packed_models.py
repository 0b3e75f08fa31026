"""Files with weights of 4 and 2 bits, per tensor, channel and block, and a decoder of such layers with its cache."""

from __future__ import annotations

from dataclasses import dataclass

import ai_edge_litert.schema_py_generated as schema
import numpy as np
from flatbuffers import flexbuffers

from qnn_ext.numerics.packed import narrow_range, pack

from .schema_models import TYPES, Sketch, quantization

OPS = schema.BuiltinOperator
DTYPES = {2: TYPES.INT2, 4: TYPES.INT4, 8: TYPES.INT8}
ROWS, UNITS = 3, 20


@dataclass(frozen=True)
class Weight:
    """What a test quantizes: `scales` is "tensor", "channel" or the size of blocks."""

    bits: int
    scales: str | int = "channel"
    zero_point: int = 0

    def add(self, sketch: Sketch, shape: tuple[int, ...], rng: np.random.Generator) -> tuple[int, np.ndarray]:
        """Its index in a model, and its real values."""
        low, high = narrow_range(f"int{self.bits}")
        values = rng.integers(low, high + 1, shape)
        packed = pack(values.reshape(-1), f"int{self.bits}")
        if isinstance(self.scales, int):
            scale = rng.uniform(0.01, 0.1, (shape[0], shape[1] // self.scales)).astype(np.float16)
            params = schema.QuantizationParametersT()
            params.detailsType = schema.QuantizationDetails.BlockwiseQuantization
            params.details = schema.BlockwiseQuantizationT()
            params.details.scales = sketch.tensor(scale.shape, TYPES.FLOAT16, scale, name="scales")
            params.details.blockSize = self.scales
            real = values * np.repeat(scale.astype(np.float64), self.scales, axis=1)
        else:
            scale = rng.uniform(0.01, 0.1, shape[0] if self.scales == "channel" else 1).astype(np.float32)
            params = quantization(scale.tolist(), [self.zero_point] * len(scale))
            real = (values - self.zero_point) * scale.astype(np.float64).reshape(-1, *[1] * (len(shape) - 1))
        return sketch.tensor(shape, DTYPES[self.bits], packed, params, name="weight"), real


def dense(
    weight: Weight,
    depth: int,
    asymmetric: bool = False,
    weight_only: bool = False,
    bias: bool = True,
    offset: float = 0.0,
) -> tuple[bytes, np.ndarray, np.ndarray]:
    """FULLY_CONNECTED of floats: the file, the real weights, an input. All biases are `offset`."""
    rng, sketch = np.random.default_rng(depth), Sketch()
    x = sketch.tensor((ROWS, depth), TYPES.FLOAT32, name="x")
    w, real = weight.add(sketch, (UNITS, depth), rng)
    if weight_only:
        floats = sketch.tensor((UNITS, depth), TYPES.FLOAT32)
        sketch.operator(OPS.DEQUANTIZE, [w], [floats], schema.DequantizeOptionsT(), version=6)
        w = floats
    b = sketch.tensor((UNITS,), TYPES.FLOAT32, np.full(UNITS, offset, np.float32)) if bias else -1
    y = sketch.tensor((ROWS, UNITS), TYPES.FLOAT32, name="y")
    options = schema.FullyConnectedOptionsT()
    options.asymmetricQuantizeInputs = asymmetric
    sketch.operator(OPS.FULLY_CONNECTED, [x, w, b], [y], options, version=12)
    sketch.graph.inputs, sketch.graph.outputs = [x], [y]
    return sketch.bytes(), real, rng.normal(size=(ROWS, depth)).astype(np.float32)


def lookup(weight: Weight, shape: tuple[int, ...], dtype: int = TYPES.FLOAT32) -> bytes:
    sketch = Sketch()
    i = sketch.tensor((5,), TYPES.INT32, name="i")
    w, _ = weight.add(sketch, shape, np.random.default_rng(0))
    y = sketch.tensor((5, *shape[1:]), dtype, name="y")
    sketch.operator(OPS.EMBEDDING_LOOKUP, [i, w], [y], version=4)
    sketch.graph.inputs, sketch.graph.outputs = [i], [y]
    return sketch.bytes()


VOCABULARY, WIDTH, ROOM = 12, 32, 6


def decoder() -> bytes:
    """A token and its position [place, 0] → logits, which depend on all rows of the cache: EMBEDDING_LOOKUP,
    a STABLEHLO_COMPOSITE, FULLY_CONNECTED, DYNAMIC_UPDATE_SLICE of a variable."""
    rng, sketch = np.random.default_rng(3), Sketch()

    def floats(*shape: int) -> int:
        return sketch.tensor(shape, TYPES.FLOAT32)

    def product(x: int, how: Weight, units: int) -> int:
        options, y = schema.FullyConnectedOptionsT(), floats(1, units)
        w, _ = how.add(sketch, (units, WIDTH), rng)
        sketch.operator(OPS.FULLY_CONNECTED, [x, w, -1], [y], options, version=12)
        return y

    def handle() -> int:
        options, found = schema.VarHandleOptionsT(), sketch.tensor((), TYPES.RESOURCE)
        options.container, options.sharedName = "", "cache"
        sketch.operator(OPS.VAR_HANDLE, [], [found], options)
        return found

    token = sketch.tensor((1,), TYPES.INT32, name="token")
    place = sketch.tensor((2,), TYPES.INT32, name="position")
    once = schema.CallOnceOptionsT()
    once.initSubgraphIndex = 1
    sketch.operator(OPS.CALL_ONCE, [], [], once)
    table, _ = Weight(4).add(sketch, (VOCABULARY, WIDTH), rng)
    x, normed = floats(1, WIDTH), floats(1, WIDTH)
    sketch.operator(OPS.EMBEDDING_LOOKUP, [token, table], [x], version=4)
    composite = sketch.operator(OPS.STABLEHLO_COMPOSITE, [x], [normed])
    composite.builtinOptions2Type = schema.BuiltinOptions2.StableHLOCompositeOptions
    composite.builtinOptions2 = schema.StableHLOCompositeOptionsT()
    composite.builtinOptions2.name, composite.builtinOptions2.decompositionSubgraphIndex = "odml.rms_norm", 2
    composite.builtinOptions2.compositeAttributes = list(flexbuffers.Dumps({"epsilon": 0.0}))
    cache, before, after = handle(), floats(ROOM, WIDTH), floats(ROOM, WIDTH)
    sketch.operator(OPS.READ_VARIABLE, [cache], [before], schema.ReadVariableOptionsT())
    key = product(normed, Weight(4, 32), WIDTH)
    update = schema.DynamicUpdateSliceOptionsT()
    sketch.operator(OPS.DYNAMIC_UPDATE_SLICE, [before, key, place], [after], update)
    sketch.operator(OPS.ASSIGN_VARIABLE, [cache, after], [], schema.AssignVariableOptionsT())
    total, axis, kept = (
        floats(1, WIDTH),
        sketch.tensor((1,), TYPES.INT32, np.zeros(1, np.int32)),
        schema.ReducerOptionsT(),
    )
    kept.keepDims = True
    sketch.operator(OPS.SUM, [after, axis], [total], kept)
    sketch.graph.inputs, sketch.graph.outputs = [token, place], [product(total, Weight(2), VOCABULARY)]
    _begin(sketch, "initial")
    zeros = sketch.tensor((ROOM, WIDTH), TYPES.FLOAT32, np.zeros((ROOM, WIDTH), np.float32))
    sketch.operator(OPS.ASSIGN_VARIABLE, [handle(), zeros], [], schema.AssignVariableOptionsT())
    _begin(sketch, "rms_norm")
    x, square, mean, root, y = floats(1, WIDTH), floats(1, WIDTH), floats(1, 1), floats(1, 1), floats(1, WIDTH)
    last = sketch.tensor((1,), TYPES.INT32, np.ones(1, np.int32))
    sketch.operator(OPS.MUL, [x, x], [square], schema.MulOptionsT())
    sketch.operator(OPS.MEAN, [square, last], [mean], kept)
    sketch.operator(OPS.RSQRT, [mean], [root])
    sketch.operator(OPS.MUL, [x, root], [y], schema.MulOptionsT())
    sketch.graph.inputs, sketch.graph.outputs = [x], [y]
    return sketch.bytes()


def _begin(sketch: Sketch, name: str) -> None:
    """Another subgraph."""
    sketch.graph = schema.SubGraphT()
    sketch.graph.name, sketch.graph.tensors, sketch.graph.operators = name, [], []
    sketch.graph.inputs, sketch.graph.outputs = [], []
    sketch.model.subgraphs.append(sketch.graph)
