"""sink_shuffles: the same results, and elementwise operators in front of what shuffles a product."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import IRModule, relax

import qnn_ext
from qnn_ext import op
from qnn_ext.module import QnnModule, TensorSpec
from qnn_ext.op.evaluate import interpret
from qnn_ext.passes import canonicalize, sink_shuffles
from qnn_ext.passes.rewrite import bindings_of, op_name

from ..op.helpers import random_integers, var

Emit = Callable[[relax.Expr], relax.Expr]
SCALES = np.linspace(0.01, 0.02, 6).astype(np.float32)
BIAS = np.arange(-300, 300, 100, dtype=np.int32)
ORDERS = ("reshape", "permute_dims", "strided_slice")


def module(tail: Callable[..., relax.Expr], kernel=4, strides=(2, 2), padding=(1, 1, 1, 1), groups=1, layout="NHWC"):
    """tail(conv2d_transpose(x), skip, emit) on an input of 3 × 5 pixels and 4 channels, to 6 channels."""
    size = [((3, 5)[i] - 1) * strides[i] + kernel - padding[i] - padding[i + 2] for i in (0, 1)]
    shapes = [(2, 3, 5, 4), (2, *size, 6)]
    if layout == "NCHW":
        shapes = [(shape[0], shape[3], *shape[1:3]) for shape in shapes]
    params = [var("x", shapes[0], "uint8"), var("skip", shapes[1], "int8")]
    weight = random_integers(np.random.default_rng(3), (6 // groups, kernel, kernel, 4), "int8")
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            attributes = dict(strides=strides, padding=padding, groups=groups, data_layout=layout)
            acc = builder.emit(op.conv2d_transpose(params[0], weight, 5, 0, 0.1, 0.1, **attributes))
            result = builder.emit_output(builder.emit(tail(acc, params[1], builder.emit)))
        builder.emit_func_output(result)
    return builder.get(), shapes


def requantized(acc: relax.Expr, emit: Emit) -> relax.Expr:
    biased = emit(relax.op.add(acc, relax.const(BIAS)))
    return emit(op.requantize(biased, SCALES, 0, 0.5, 3, axis=-1))


TAILS = {
    "requantize": lambda acc, skip, emit: requantized(acc, emit),
    "clip": lambda acc, skip, emit: relax.op.clip(requantized(acc, emit), 0, 90),
    "table": lambda acc, skip, emit: op.table(requantized(acc, emit), np.arange(256).astype(np.uint8)),
    "constant summand": lambda acc, skip, emit: op.add(
        requantized(acc, emit), random_integers(np.random.default_rng(1), (6,), "int8"), 0.5, 3, 0.3, 1, 0.6, 0
    ),
    "two readers": lambda acc, skip, emit: op.add(
        requantized(acc, emit), emit(op.requantize(acc, 0.02, 0, SCALES, 1)), 0.5, 3, SCALES, 1, 0.6, 0
    ),
    "float tail": lambda acc, skip, emit: relax.op.nn.relu(
        emit(relax.op.multiply(emit(op.dequantize(acc, SCALES, 0, axis=-1)), relax.const(SCALES)))
    ),
}
SLOPES = np.linspace(-0.5, 2, 6).astype(np.float32)


def prelu(acc, skip, emit, slopes=SLOPES, axis=3):
    return relax.op.nn.prelu(emit(op.dequantize(acc, SCALES, 0, axis=-1)), relax.const(slopes), axis=axis)


TAILS["slopes for each channel"] = prelu
TAILS["one slope"] = lambda *given: prelu(*given, slopes=SLOPES[:1])
GEOMETRIES = [{}, {"kernel": 2, "padding": (0, 0, 0, 0)}, {"strides": (3, 2)}, {"groups": 2}, {"strides": (1, 3)}]


def behind_product(mod: IRModule) -> list[str]:
    names = [op_name(binding.value) for binding in bindings_of(mod["main"])]
    return [name for name in names[names.index("qnn.conv2d_accumulate") + 1 :] if name]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("name", TAILS)
def test_the_result_alone_is_shuffled(name, geometry, rng):
    original, shapes = module(TAILS[name], **geometry)
    inputs = [random_integers(rng, shape, dtype) for shape, dtype in zip(shapes, ("uint8", "int8"), strict=True)]
    mod = canonicalize(original)
    sunk = sink_shuffles(mod)
    np.testing.assert_array_equal(interpret(sunk, inputs)[0], interpret(original, inputs)[0])
    names = behind_product(sunk)
    first = min(names.index(move) for move in ORDERS if move in names)
    assert set(names[first:]) <= set(ORDERS)


@pytest.mark.parametrize("slopes", [SLOPES, SLOPES[:1]], ids=["for each channel", "one"])
def test_slopes_along_channels_in_the_middle(slopes, rng):
    """As of a parametric ReLU behind a pixel shuffle in a network for super-resolution."""

    def tail(acc, skip, emit):
        return relax.op.nn.prelu(emit(op.dequantize(acc, SCALES, 0, axis=1)), relax.const(slopes), axis=1)

    original, shapes = module(tail, layout="NCHW")
    inputs = [random_integers(rng, shape, dtype) for shape, dtype in zip(shapes, ("uint8", "int8"), strict=True)]
    sunk = sink_shuffles(canonicalize(original))
    np.testing.assert_array_equal(interpret(sunk, inputs)[0], interpret(original, inputs)[0])
    names = behind_product(sunk)
    assert set(names[names.index("nn.prelu") + 1 :]) <= set(ORDERS)


def test_channels_first(rng):
    original, shapes = module(lambda acc, skip, emit: op.requantize(acc, SCALES, 0, 0.5, 3, axis=1), layout="NCHW")
    inputs = [random_integers(rng, shape, dtype) for shape, dtype in zip(shapes, ("uint8", "int8"), strict=True)]
    sunk = sink_shuffles(canonicalize(original))
    np.testing.assert_array_equal(interpret(sunk, inputs)[0], interpret(original, inputs)[0])
    names = behind_product(sunk)
    assert set(names[names.index("qnn.requantize") + 1 :]) <= set(ORDERS)


STAYS = {
    "constants per row": lambda acc, skip, emit: relax.op.add(
        acc, relax.const(np.arange(6, dtype=np.int32).reshape(6, 1, 1))
    ),
    "scales per row": lambda acc, skip, emit: op.requantize(acc, SCALES, 0, 0.5, 3, axis=1),
    "slopes per row": lambda *given: prelu(*given, axis=1),
    "a second map": lambda acc, skip, emit: op.qlinear_add(requantized(acc, emit), skip, 0, 0, 0.5, 0.25, 1.5, 0),
    "a product of little that is left": lambda acc, skip, emit: op.requantize(
        emit(relax.op.strided_slice(acc, axes=[2], begin=[0], end=[2])), SCALES, 0, 0.5, 3
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_needs_the_order_stays_behind(name, rng):
    original, shapes = module(STAYS[name])
    inputs = [random_integers(rng, shape, dtype) for shape, dtype in zip(shapes, ("uint8", "int8"), strict=True)]
    sunk = sink_shuffles(canonicalize(original))
    np.testing.assert_array_equal(interpret(sunk, inputs)[0], interpret(original, inputs)[0])
    assert behind_product(sunk)[-1] not in ORDERS


@pytest.mark.parametrize("name", [*TAILS, "a second map"])
def test_built(name, rng):
    original, shapes = module((TAILS | STAYS)[name])
    specs = [TensorSpec(n, s, d, None) for n, s, d in zip(("x", "skip"), shapes, ("uint8", "int8"), strict=True)]
    result = original["main"].ret_ty
    built = QnnModule(original, tuple(specs), (TensorSpec("y", shapes[1], str(result.dtype), None),))
    inputs = [random_integers(rng, spec.shape, spec.dtype) for spec in specs]
    got = next(iter(qnn_ext.build(built, "native", num_threads=1).run(inputs).values()))
    np.testing.assert_array_equal(got, interpret(original, inputs)[0])
