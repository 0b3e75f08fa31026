"""Cross-layer equalization: the same function, equal ranges; nothing moves across what is not homogeneous."""

from itertools import pairwise

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.module import QnnModule, TensorSpec
from qnn_ext.passes.rewrite import bindings_of
from qnn_ext.quantize.analysis import fidelity
from qnn_ext.quantize.channel_groups import groups_of, plain_groups_of
from qnn_ext.quantize.channels import weight_of
from qnn_ext.quantize.config import QConfig
from qnn_ext.quantize.equalize import equalize, equalizing_scales
from qnn_ext.quantize.pipeline import quantize

from .networks import conv, float_module


def network(rng, between, pool=True, shared=False) -> QnnModule:
    """conv → between → depthwise → between → conv → mean → dense, channels of very different ranges."""
    x = relax.Var("x", relax.TensorType((1, 3, 8, 8), "float32"))
    spread = np.exp(rng.normal(size=(16, 1, 1, 1)) * 2)
    weights = [
        (rng.normal(size=(16, 3, 3, 3)) * spread).astype(np.float32),
        (rng.normal(size=(16, 1, 3, 3)) / spread).astype(np.float32),
        rng.normal(size=(8, 16, 1, 1)).astype(np.float32),
        rng.normal(size=(8, 4)).astype(np.float32),
    ]
    bias = rng.normal(size=(1, 16, 1, 1)).astype(np.float32)
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.conv2d(x, relax.const(weights[0]), padding=1))
            y = builder.emit(relax.op.add(y, relax.const(bias)))
            y = builder.emit(between(y))
            first = y
            y = builder.emit(relax.op.nn.conv2d(y, relax.const(weights[1]), padding=1, groups=16))
            y = builder.emit(relax.op.add(y, relax.const(bias)))
            y = builder.emit(between(y))
            if shared:
                y = builder.emit(relax.op.add(y, first))
            y = builder.emit(relax.op.nn.conv2d(y, relax.const(weights[2])))
            y = builder.emit(between(y))
            y = builder.emit(relax.op.nn.avg_pool2d(y, 2, 2)) if pool else y
            y = builder.emit(relax.op.mean(y, [2, 3], keepdims=True))
            y = builder.emit(relax.op.reshape(y, (1, 8)))
            y = builder.emit(relax.op.matmul(y, relax.const(weights[3])))
            result = builder.emit_output(relax.Tuple([y]))
        builder.emit_func_output(result)
    specs = (TensorSpec("x", (1, 3, 8, 8), "float32"),), (TensorSpec("y", (1, 4), "float32"),)
    return QnnModule(builder.get(), *specs)


def weights_of(module):
    found = [weight_of(binding.value) for binding in bindings_of(module.ir["main"])]
    return [weight for weight in found if weight is not None]


@pytest.mark.parametrize("between", [relax.op.nn.relu, lambda x: relax.op.nn.leakyrelu(x, 0.1)], ids=["relu", "leaky"])
def test_same_function_with_equal_ranges(between, rng):
    module = network(rng, between)
    equalized = equalize(module)
    x = rng.normal(size=(1, 3, 8, 8)).astype(np.float32)
    expected = qnn_ext.Interpreter(module)(x)
    np.testing.assert_allclose(
        qnn_ext.Interpreter(equalized)(x), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max()
    )
    before, after = weights_of(module), weights_of(equalized)
    for producer, consumer in pairwise(after):
        np.testing.assert_allclose(producer.output_ranges(), consumer.input_ranges(), rtol=1e-3)
    assert spread(before[1].output_ranges()) > 50 * spread(after[1].output_ranges())


def test_one_scale_per_weight_is_enough_then(rng):
    module = network(rng, relax.op.nn.relu)
    data = rng.normal(size=(20, 3, 8, 8)).astype(np.float32)
    run = qnn_ext.Interpreter(module)
    exact = np.concatenate([run(sample[None]) for sample in data])
    found = {}
    for equalized in (False, True):
        config = QConfig(calibrate_mode="minmax", per_channel=False, equalize=equalized)
        integers = qnn_ext.Interpreter(quantize(module, dataset=data, config=config))
        found[equalized] = fidelity(exact, np.concatenate([integers(sample[None]) for sample in data])).sqnr
    assert found[True] > found[False] + 6, found


def spread(ranges):
    return ranges.max() / ranges.min()


@pytest.mark.parametrize(
    "between", [lambda x: relax.op.clip(x, 0, 6), relax.op.nn.gelu, relax.op.sigmoid], ids=["relu6", "gelu", "sigmoid"]
)
def test_functions_that_are_not_homogeneous_stay(between, rng):
    module = network(rng, between)
    assert groups_of(module.ir["main"]) == []
    for one, two in zip(weights_of(module), weights_of(equalize(module)), strict=True):
        np.testing.assert_array_equal(one.array, two.array)


def outputs_agree(module, other, rng):
    x = rng.normal(size=module.inputs[0].shape).astype(np.float32)
    expected = qnn_ext.Interpreter(module)(x)
    tolerance = 1e-4 * np.abs(expected).max()
    np.testing.assert_allclose(qnn_ext.Interpreter(other)(x), expected, rtol=1e-4, atol=tolerance)


def test_a_residual_sum_gives_its_layers_the_same_factors(rng):
    """conv → a; depthwise(a) → b; conv(a + b): a and b are scaled together, by the ranges of both that write them."""
    module = network(rng, relax.op.nn.relu, shared=True)
    groups = groups_of(module.ir["main"])
    assert [(len(group.producers), len(group.consumers)) for group in groups] == [(2, 2), (1, 1)]
    equalized = equalize(module)
    outputs_agree(module, equalized, rng)
    before, after = weights_of(module), weights_of(equalized)
    factors = before[0].output_ranges() / after[0].output_ranges()
    assert spread(factors) > 2, "something was scaled"
    np.testing.assert_allclose(before[1].array, after[1].array, rtol=1e-5, err_msg="reads and writes the group")
    written = np.maximum(after[0].output_ranges(), after[1].output_ranges())
    read = np.maximum(after[1].input_ranges(), after[2].input_ranges())
    np.testing.assert_allclose(written, read, rtol=1e-3)


@pytest.mark.parametrize("last", [relax.op.sigmoid, lambda x: relax.op.concat([x, x], 1)], ids=["sigmoid", "concat"])
def test_a_sum_that_something_else_reads_stays(last, rng):
    def body(emit, x):
        y = emit(relax.op.nn.relu(conv(emit, x, 6)))
        z = emit(relax.op.add(conv(emit, y, 6), y))
        return conv(emit, emit(last(z)), 4)

    assert plain_groups_of(float_module((1, 3, 6, 6), body).ir["main"]) == []


def test_groups(rng):
    """Channels of a grouped convolution: input i belongs to the outputs of its group."""
    x = relax.Var("x", relax.TensorType((1, 4, 5, 5), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.conv2d(x, relax.const(rng.normal(size=(6, 4, 1, 1)).astype(np.float32))))
            grouped = relax.const(rng.normal(size=(9, 2, 3, 3)).astype(np.float32))
            y = builder.emit(relax.op.nn.conv2d(y, grouped, groups=3))
            result = builder.emit_output(relax.Tuple([y]))
        builder.emit_func_output(result)
    specs = (TensorSpec("x", (1, 4, 5, 5), "float32"),), (TensorSpec("y", (1, 9, 3, 3), "float32"),)
    module = QnnModule(builder.get(), *specs)
    values = rng.normal(size=(1, 4, 5, 5)).astype(np.float32)
    expected = qnn_ext.Interpreter(module)(values)
    np.testing.assert_allclose(qnn_ext.Interpreter(equalize(module))(values), expected, rtol=1e-4, atol=1e-5)
    one, two = weights_of(equalize(module))
    np.testing.assert_allclose(one.output_ranges(), two.input_ranges(), rtol=1e-5)


def test_scales_of_the_paper():
    first, second = np.array([8.0, 0.5, 0.0, 3.0]), np.array([2.0, 2.0, 5.0, 0.0])
    scales = equalizing_scales(first, second)
    np.testing.assert_allclose(scales, [2.0, 0.5, 1.0, 1.0])
    np.testing.assert_allclose((first / scales)[:2], (second * scales)[:2])
