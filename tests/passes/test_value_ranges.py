"""Quantization at run time: done once for all readers of a tensor, its range found in one pass, with the same bits."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from tvm import relax

from qnn_ext import op as qnn
from qnn_ext.interpreter import interpret
from qnn_ext.op.base import constant
from qnn_ext.passes.repeated import compute_once
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.passes.value_ranges import join_extremes

from .modules import compile_and_run, module

R = relax.op
AVX2 = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"}
SHAPES = [(1,), (63,), (64,), (65,), (3, 5), (7, 131), (50, 768), (1, 3, 224, 224), (2, 4096 * 3 + 64)]


def quantized(emit, x):
    """Data, scale and zero point, as DynamicQuantizeLinear finds them."""
    ends = emit(R.stack(both_ends(emit, x)))
    scale = emit(qnn.range_scale(ends, 255))
    zero_point = emit(qnn.range_zero_point(ends, scale, 0, "uint8"))
    return [emit(qnn.quantize(x, scale, zero_point, out_dtype="uint8")), scale, zero_point]


def names(mod):
    return Counter(op_name(binding.value) for binding in bindings_of(mod["main"]))


def both_ends(emit, x, **options):
    return [emit(R.min(x, **options)), emit(R.max(x, **options))]


@pytest.mark.parametrize("target", ["native", AVX2], ids=["native", "avx2"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_range_of_a_tensor(shape, target):
    """Each end wherever it is; NaN, infinities."""
    mod = module([(shape, "float32")], both_ends)
    joined = join_extremes(mod)
    assert names(joined)["qnn.value_range"] == 1 and not names(joined)["min"] + names(joined)["max"]
    rng = np.random.default_rng(len(shape))
    for special in (None, np.nan, np.inf, -np.inf):
        x = rng.normal(size=shape).astype(np.float32)
        for position in {0, x.size // 2, x.size - 1}:
            data = x.copy()
            data.reshape(-1)[position] = 9.0 if special is None else special
            data.reshape(-1)[-1 - position // 2] -= 9.0
            expected = [data.min(), data.max()]
            np.testing.assert_array_equal(interpret(joined, [data]), expected)
        np.testing.assert_array_equal(compile_and_run(mod, target, [data]), expected)


def test_quantization_at_run_time_reads_the_range():
    """Nothing is between the range and the scale and zero point, whatever order the other values stand in."""
    joined = join_extremes(module([((4, 80), "float32")], quantized))
    steps = ("reshape", "qnn.value_range", "qnn.range_scale", "qnn.range_zero_point", "qnn.quantize")
    assert {name: count for name, count in names(joined).items() if name} == dict.fromkeys(steps, 1)
    swapped = module([((4, 80), "float32")], lambda emit, x: [emit(R.stack(both_ends(emit, x)[::-1]))])
    x = np.random.default_rng(0).normal(size=(4, 80)).astype(np.float32)
    np.testing.assert_array_equal(interpret(join_extremes(swapped), [x])[0], [x.max(), x.min()])


def test_dimensions_that_are_kept():
    mod = module([((4, 80), "float32")], lambda emit, x: both_ends(emit, x, axis=[0, -1], keepdims=True))
    joined = join_extremes(mod)
    x = np.random.default_rng(0).normal(size=(4, 80)).astype(np.float32)
    for found, expected in zip(interpret(joined, [x]), interpret(mod, [x]), strict=True):
        np.testing.assert_array_equal(found, expected)
        assert found.shape == (1, 1)
    assert names(joined)["qnn.value_range"] == 1


@pytest.mark.parametrize(
    "body",
    [
        lambda emit, x: [emit(R.min(x))],
        lambda emit, x: both_ends(emit, x, axis=[1]),
        lambda emit, x: both_ends(emit, emit(R.astype(x, "float64"))),
    ],
    ids=["one end", "rows", "float64"],
)
def test_what_stays_a_reduction(body):
    mod = module([((4, 80), "float32")], body)
    assert not names(join_extremes(mod))["qnn.value_range"]


@pytest.mark.parametrize("target", ["native", AVX2], ids=["native", "avx2"])
def test_what_several_products_read_is_quantized_once(target):
    """Each reader's own reshape, range and quantize, as ONNX Runtime writes them."""

    def body(emit, x):
        return [one for _ in range(3) for one in quantized(emit, emit(R.reshape(x, (24, 32))))]

    mod = module([((4, 6, 32), "float32")], body)
    once = compute_once(mod)
    assert names(once)["qnn.quantize"] == 1 and names(once)["min"] == 1 and names(once)["reshape"] == 1
    x = np.random.default_rng(0).normal(size=(4, 6, 32)).astype(np.float32)
    expected = interpret(mod, [x])
    for found in (interpret(once, [x]), compile_and_run(mod, target, [x])):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_what_differs_stays():
    """Other data, other attributes, other constants; tensors that kernels compute along the way."""

    def body(emit, x, y):
        shifted = [emit(R.add(emit(R.min(one)), constant(np.float32(value)))) for one in (x, y) for value in (1, 2)]
        kept = [emit(R.min(x, axis=axis)) for axis in ([0], [1])]
        scales = [emit(qnn.quantize(x, scale, 0, out_dtype="int8")) for scale in (0.5, 0.25)]
        return [*shifted, *kept, *scales, emit(R.negative(x)), emit(R.negative(x))]

    mod = module([((4, 6), "float32"), ((4, 6), "float32")], body)
    found = names(compute_once(mod))
    assert (found["add"], found["min"], found["qnn.quantize"], found["negative"]) == (4, 4, 2, 2)
    inputs = [np.random.default_rng(seed).normal(size=(4, 6)).astype(np.float32) for seed in (0, 1)]
    for one, other in zip(interpret(compute_once(mod), inputs), interpret(mod, inputs), strict=True):
        np.testing.assert_array_equal(one, other)
