"""Attention's reshapes and transposes are part of the products' kernels, and change no bit."""

import numpy as np
import pytest
from tvm import relax

from qnn_ext import op as qnn
from qnn_ext.numerics.annotations import COMPOSITE
from qnn_ext.op.compound import matmul
from qnn_ext.op.evaluate import interpret
from qnn_ext.passes import canonicalize, fuse, legalize, sink_reshapes
from qnn_ext.targets.names import make_target
from tests.cpus import TARGETS

from .modules import compile_and_run, inputs_of, module


def scores(emit, query, key, zero_points):
    """(B, M, H, D) and (B, N, H, D) -> (B, H, M, N) uint8"""
    q = emit(relax.op.permute_dims(query, [0, 2, 1, 3]))
    k = emit(relax.op.permute_dims(emit(relax.op.permute_dims(key, [0, 2, 3, 1])), [0, 1, 3, 2]))
    k = emit(relax.op.permute_dims(k, [0, 1, 3, 2]))
    acc = matmul(q, k, *zero_points, emit=emit)
    return emit(qnn.requantize(acc, 0.01, 0, 3.0, 120, out_dtype="uint8"))


def context(emit, weights, value, zero_points):
    """(B, H, M, N) and (B, N, H, D) -> (B, M, H·D) uint8"""
    v = emit(relax.op.permute_dims(value, [0, 2, 1, 3]))
    acc = matmul(weights, v, *zero_points, emit=emit)
    out = emit(qnn.requantize(acc, 0.01, 0, 2.0, 128, out_dtype="uint8"))
    batch, heads, rows, depth = (int(dim) for dim in out.ty.shape)
    merged = emit(relax.op.permute_dims(out, [0, 2, 1, 3]))
    return emit(relax.op.reshape(merged, [batch, rows, heads * depth]))


def attention(batch, rows, heads, depth, dtype="uint8"):
    shape = (batch, rows, heads * depth)

    def body(emit, *inputs):
        q, k, v = (emit(relax.op.reshape(x, [batch, rows, heads, depth])) for x in inputs)
        return context(emit, scores(emit, q, k, (126, 123)), v, (3, 130 if dtype == "uint8" else -5))

    return module([(shape, dtype)] * 3, body)


def kernels(mod):
    mod = legalize(mod, make_target("native", 1))
    fused = fuse(sink_reshapes(canonicalize(mod)))
    names = [str(f.attrs[COMPOSITE]) for f in fused.functions.values() if f.attrs and COMPOSITE in f.attrs]
    return names, str(fused["main"])


def check(mod, rng, targets=TARGETS):
    inputs = inputs_of(rng, mod)
    expected = interpret(mod, inputs)
    for target in targets:
        for actual, wanted in zip(compile_and_run(mod, target, inputs), expected, strict=True):
            np.testing.assert_array_equal(actual, wanted)


def test_nothing_moves_outside_of_the_products():
    names, main = kernels(attention(1, 12, 4, 16))
    assert len(names) == 2
    assert "permute_dims" not in main and "row_sum" not in main


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("batch, rows, heads, depth", [(1, 12, 4, 16), (2, 13, 3, 10), (1, 50, 2, 33), (1, 1, 2, 8)])
def test_attention_equals_the_interpreter(batch, rows, heads, depth, dtype, rng):
    check(attention(batch, rows, heads, depth, dtype), rng)
