"""Small float modules built by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax

from qnn_ext import build
from qnn_ext.module import QnnModule, State, TensorSpec
from qnn_ext.op.base import call_attributes, constant, shape_of
from qnn_ext.op.evaluate import evaluate
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.quantize.annotate import annotate
from qnn_ext.quantize.config import QConfig
from qnn_ext.quantize.fold import fold
from qnn_ext.quantize.ranges import Range


def float_module(shape: Sequence[int], body: Callable) -> QnnModule:
    """`main` of one float32 input "x"; body(emit, x) returns the output "y"."""
    x = relax.Var("x", relax.TensorType(tuple(shape), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = body(builder.emit, x)
            result = builder.emit_output(relax.Tuple([y]))
        builder.emit_func_output(result)
    return QnnModule(
        builder.get(), (TensorSpec("x", tuple(shape), "float32"),), (TensorSpec("y", shape_of(y), "float32"),)
    )


def recurrent_module(rng: np.random.Generator) -> QnnModule:
    """s ← tanh(x·W + s·U), y = s·V, of one row of 6."""
    x, s = (relax.Var(name, relax.TensorType((1, 6), "float32")) for name in ("x", "s"))
    w, u, v = (relax.const(rng.normal(size=(6, 6)).astype(np.float32)) for _ in range(3))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, s]):
        with builder.dataflow():
            parts = [builder.emit(relax.op.matmul(data, weight)) for data, weight in ((x, w), (s, u))]
            new = builder.emit(relax.op.tanh(builder.emit(relax.op.add(*parts))))
            result = builder.emit_output(relax.Tuple([builder.emit(relax.op.matmul(new, v)), new]))
        builder.emit_func_output(result)
    x_spec, y_spec = (TensorSpec(name, (1, 6), "float32") for name in "xy")
    return QnnModule(builder.get(), (x_spec,), (y_spec,), (State("s", np.zeros((1, 6), np.float32)),))


def run_sequence(module: QnnModule, data: np.ndarray) -> np.ndarray:
    """The first output for each row, one after the other."""
    engine = build(module, num_threads=1)
    return np.concatenate([engine(row[None]) for row in data])


RNG = np.random.default_rng(11)
START = RNG.bit_generator.state  # of each test: see `conftest`


def weight(*shape: int) -> relax.Expr:
    fan_in = np.prod(shape[1:]) if len(shape) > 2 else shape[0]
    return constant((RNG.normal(size=shape) / np.sqrt(fan_in)).astype(np.float32))


def conv(emit, x, channels, kernel=3, groups=1, **attributes):
    w = weight(channels, int(x.ty.shape[1]) // groups, kernel, kernel)
    y = emit(relax.op.nn.conv2d(x, w, groups=groups, padding=(kernel // 2, kernel // 2), **attributes))
    return emit(relax.op.add(y, weight(1, channels, 1, 1)))


def bottleneck(emit, x):
    """A small MobileNet: stem, depthwise, residual sum, squeeze and excite, global mean, classifier."""
    relu, clip = relax.op.nn.relu, relax.op.clip
    x = emit(clip(conv(emit, x, 8, strides=(2, 2)), 0, 6))
    y = emit(clip(conv(emit, x, 8, groups=8), 0, 6))
    y = emit(relax.op.add(conv(emit, y, 8, 1), x))
    gate = emit(relu(conv(emit, emit(relax.op.mean(y, [2, 3], keepdims=True)), 4, 1)))
    y = emit(relax.op.multiply(y, emit(relax.op.sigmoid(conv(emit, gate, 8, 1)))))
    y = emit(relax.op.nn.max_pool2d(y, (2, 2), strides=(2, 2)))
    return emit(relax.op.matmul(emit(relax.op.mean(y, [2, 3])), weight(8, 5)))


def encoder(emit, x):
    """Attention and a feed-forward layer with gelu, normalized before, residual."""
    hidden, ones, zeros = 16, constant(np.ones(16, np.float32)), constant(np.zeros(16, np.float32))

    def dense(x, n):
        return emit(relax.op.add(emit(relax.op.matmul(x, weight(int(x.ty.shape[-1]), n))), weight(n)))

    def heads(x, axes):
        return emit(relax.op.permute_dims(emit(relax.op.reshape(x, [1, 6, 2, hidden // 2])), axes))

    n = emit(relax.op.nn.layer_norm(x, ones, zeros, axes=[-1]))
    q, k, v = (heads(dense(n, hidden), axes) for axes in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
    p = emit(relax.op.nn.softmax(emit(relax.op.divide(emit(relax.op.matmul(q, k)), constant(np.float32(8**0.5)))), -1))
    mixed = emit(relax.op.permute_dims(emit(relax.op.matmul(p, v)), [0, 2, 1, 3]))
    x = emit(relax.op.add(dense(emit(relax.op.reshape(mixed, [1, 6, hidden])), hidden), x))
    n = emit(relax.op.nn.layer_norm(x, ones, zeros, axes=[-1]))
    return emit(relax.op.add(dense(emit(relax.op.nn.gelu(dense(n, 32))), hidden), x))


def decoder(emit, x):
    """A skip connection, upsampled by interpolation and by a transposed convolution."""
    y = emit(relax.op.nn.relu(conv(emit, x, 6, strides=(2, 2))))
    up = emit(relax.op.image.resize2d(y, (8, 8), method="linear", coordinate_transformation_mode="half_pixel"))
    learned = emit(relax.op.nn.conv2d_transpose(y, weight(6, 3, 2, 2), strides=(2, 2)))
    joined = emit(relax.op.concat([up, learned, x], 1))
    return conv(emit, emit(relax.op.nn.pad(joined, [0, 0, 0, 0, 1, 0, 0, 1])), 4)


NETWORKS = {
    "bottleneck": (bottleneck, (1, 3, 8, 8)),
    "encoder": (encoder, (1, 6, 16)),
    "decoder": (decoder, (1, 3, 8, 8)),
}


def prepared(name: str, config: QConfig):
    """The folded and the annotated network, the ranges of random data, and such data."""
    RNG.bit_generator.state = START  # the same weights wherever this is called
    body, shape = NETWORKS[name] if isinstance(name, str) else name
    folded = fold(float_module(shape, body), config)
    annotated = annotate(folded, config)
    x = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    table = ranges(annotated, x)
    return folded, annotated, table, x


def ranges(annotated, x) -> dict[str, Range]:
    """Smallest and largest value of each site on `x`."""
    values = {param: x for param in annotated.ir["main"].params}
    table = {}
    for binding in bindings_of(annotated.ir["main"]):
        values[binding.var] = evaluate(annotated.ir, binding.value, values)
        if op_name(binding.value) == "qnn.observe":
            attributes = call_attributes(binding.value)
            table[attributes["site"]] = Range.of(values[binding.var], attributes["axis"])
    return table
