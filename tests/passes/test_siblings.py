"""Branches from one tensor: joined where that is predicted to save time, with the same bits."""

from collections import Counter

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext import op
from qnn_ext.interpreter import interpret
from qnn_ext.op.base import constant
from qnn_ext.passes import canonicalize, fold_constant_sums
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.passes.siblings import join_siblings
from qnn_ext.targets.names import make_target
from tests.compiling.program.small import small_module

TARGET = make_target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"})
CHANNELS = (3, 8, 5)


def product(builder, x, channels, seed=0, **options):
    """A convolution of an image, or a dense layer of rows, with a bias."""
    rng = np.random.default_rng((channels, seed))
    depth, image = int(x.ty.shape[-1]), len(x.ty.shape) == 4
    weight = rng.integers(-128, 128, (channels, 1, 1, depth) if image else (channels, depth)).astype(np.int8)
    acc = builder.emit((op.conv2d if image else op.dense)(x, constant(weight), 3, 0, 0.1, 0.1, **options))
    return builder.emit(relax.op.add(acc, constant(rng.integers(-999, 999, channels).astype(np.int32))))


def requantized(builder, acc, seed=0, scale=0.02, zero_point=7, **options):
    """`acc` in uint8."""
    options = {"out_dtype": "uint8", **options}
    return builder.emit(op.requantize(acc, scale, 0, 2.0, zero_point, **options))


def scales(channels):
    return np.linspace(0.01, 0.05, channels).astype(np.float32)


def check(build, shape, joined):
    """The pass leaves the results as they are, and this many products."""
    module = small_module(build, [(shape, "uint8")])
    before = fold_constant_sums(canonicalize(module.ir))
    after = join_siblings(before, TARGET)
    inputs = [np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)]
    for found, expected in zip(interpret(after, inputs), interpret(before, inputs), strict=True):
        np.testing.assert_array_equal(found, expected)
    names = Counter(op_name(binding.value) for binding in bindings_of(after["main"]))
    assert names["qnn.conv2d_accumulate"] + names["qnn.dense_accumulate"] == joined
    return module


@pytest.mark.parametrize("shape", [(1, 5, 6, 24), (7, 24)], ids=["conv2d", "dense"])
@pytest.mark.parametrize("rounding", ["TONEAREST_EVEN", "TFLITE"])
def test_branches_with_parameters_of_their_own(shape, rounding):
    """Scales of tensors and of channels, zero points, further elementwise operators, names of layers."""

    def build(b, x):
        options = {"rounding": rounding, "compute_dtype": "int64" if rounding == "TFLITE" else "float32"}
        found = []
        for number, channels in enumerate(CHANNELS):
            acc = b.emit(relax.op.maximum(product(b, x[0], channels), relax.const(-4000 * number, "int32")))
            scale = scales(channels) if number else 0.03
            found.append(requantized(b, acc, scale=scale, zero_point=7 * number, axis=len(shape) - 1, **options))
        return found

    module = check(build, shape, 1)
    engine = qnn_ext.build(module)
    x = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)
    for found, expected in zip(engine(x), qnn_ext.Interpreter(module)(x), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_only_branches_that_differ_in_constants():
    """Not with other strides or dtypes, of other tensors, or read before they have 8 bits."""

    def build(b, x):
        same = [requantized(b, product(b, x[0], channels)) for channels in CHANNELS]
        strided = requantized(b, product(b, x[0], 3, 1, strides=(2, 2)))
        signed = requantized(b, product(b, x[0], 3, 2), out_dtype="int8")
        clipped = requantized(b, b.emit(relax.op.clip(product(b, x[0], 3, 3), -99, 99)))
        acc = product(b, x[0], 3, 4)
        return [*same, strided, signed, clipped, acc, requantized(b, acc), requantized(b, product(b, same[1], 3))]

    check(build, (1, 4, 4, 24), 6)


def test_only_where_lanes_would_be_idle():
    """Channels that fill whole vectors gain nothing; few rows of a product are worth less than copies of its slices."""
    check(lambda b, x: [requantized(b, product(b, x[0], 64, seed)) for seed in (0, 1)], (1, 5, 6, 64), 2)
    check(lambda b, x: [requantized(b, product(b, x[0], channels)) for channels in (17, 15)], (1, 5, 6, 1), 2)


def test_depthwise_branches_stay():
    def build(b, x):
        weight = [constant(np.full((3, 1, 1, 1), seed + 1, np.int8)) for seed in (0, 1)]
        return [requantized(b, b.emit(op.conv2d(x[0], w, 3, 0, 0.1, 0.1, groups=3))) for w in weight]

    check(build, (1, 4, 4, 3), 2)


@pytest.mark.parametrize(("branches", "depth", "joined"), [(2, 256, 2), (6, 256, 6), (6, 2048, 1)])
def test_on_a_gpu(branches, depth, joined):
    """Where the launches of the slices cost less than those of the products and their idle multiprocessors."""
    models = pytest.importorskip("tests.cuda.models")

    def build(b, x):
        return [requantized(b, product(b, x[0], 8 + 8 * number), out_dtype="int8") for number in range(branches)]

    module = small_module(build, [((1, 4, 4, depth), "int8")])
    names = Counter(kernel.operators.split("_")[0] for kernel in qnn_ext.build(module, "sm_80").kernels)
    assert names["conv2d"] == joined
    x = np.random.default_rng(1).integers(-128, 128, (1, 4, 4, depth)).astype(np.int8)
    for found, expected in zip(models.run_model(module, "sm_80", [x]), qnn_ext.Interpreter(module)(x), strict=True):
        np.testing.assert_array_equal(found, expected)
