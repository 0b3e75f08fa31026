"""Float convolutions over one dimension and transposed ones: as the interpreter computes them, on the register tile."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from qnn_ext.passes.plain_convolutions import plain_convolutions
from qnn_ext.passes.rewrite import bindings_of, op_name
from tests.arm.engines import emulated
from tests.compiling.program.small import small_module
from tests.cpus import cpu_target

nn = relax.op.nn
CASES = {
    "conv1d": (nn.conv1d, (2, 6, 19), (8, 6, 3), {"padding": (1, 2)}),
    "conv1d strided": (nn.conv1d, (1, 8, 40), (12, 4, 5), {"strides": 2, "dilation": 3, "groups": 2}),
    "conv1d transposed": (nn.conv1d_transpose, (2, 6, 9), (6, 8, 4), {"strides": 2, "padding": (1, 1)}),
    "conv1d of a stride of 3": (nn.conv1d_transpose, (1, 8, 7), (8, 4, 5), {"strides": 3, "output_padding": 1}),
    "2 by 2": (nn.conv2d_transpose, (1, 16, 5, 6), (16, 12, 2, 2), {"strides": (2, 2)}),
    "4 by 4": (nn.conv2d_transpose, (2, 8, 5, 7), (8, 6, 4, 4), {"strides": (2, 2), "padding": (1, 1, 1, 1)}),
    "3 by 3": (
        nn.conv2d_transpose,
        (1, 8, 6, 5),
        (8, 12, 3, 3),
        {"strides": (2, 2), "padding": (1, 1, 1, 1), "output_padding": (1, 1)},
    ),
    "groups": (nn.conv2d_transpose, (1, 16, 4, 4), (16, 5, 3, 4), {"strides": (1, 2), "groups": 2}),
    "groups apart": (nn.conv2d_transpose, (1, 16, 4, 4), (16, 5, 3, 5), {"strides": (2, 2), "groups": 2}),
    "depthwise": (nn.conv2d_transpose, (1, 16, 5, 5), (16, 1, 4, 4), {"strides": (2, 2), "groups": 16}),
    "dilated": (
        nn.conv2d_transpose,
        (1, 6, 7, 7),
        (6, 4, 3, 3),
        {"dilation": (2, 1), "padding": (2, 1, 0, 1)},
    ),
    "cropped": (nn.conv2d_transpose, (1, 6, 7, 7), (6, 4, 2, 2), {"strides": (2, 2), "padding": (3, 0, 5, 2)}),
}
LEFT = {
    "more steps than taps": (nn.conv2d_transpose, (1, 6, 5, 5), (6, 4, 2, 2), {"strides": (3, 3)}),
    "steps and dilation": (nn.conv2d_transpose, (1, 6, 5, 5), (6, 4, 3, 3), {"strides": (2, 2), "dilation": (2, 2)}),
}


def operands(case, rng):
    operator, shape, weight_shape, attributes = case
    x, w = (rng.standard_normal(size).astype(np.float32) for size in (shape, weight_shape))
    return x, w, lambda x, w: operator(x, constant(w), **attributes)


def names_of(mod):
    return [op_name(binding.value) for binding in bindings_of(mod["main"])]


def close(found, expected, magnitudes, terms):
    """Within (k + 2) · 2⁻²³ · Σ |a · b|: the terms in any order."""
    return (np.abs(found.astype(np.float64) - expected) <= (terms + 2) * 2.0**-23 * magnitudes).all()


@pytest.mark.parametrize("name", CASES)
def test_pass(name, rng):
    x, w, build = operands(CASES[name], rng)
    module = small_module(lambda builder, params: [build(*params, w)], [(x.shape, "float32")]).ir
    changed = plain_convolutions(module)
    assert not [found for found in names_of(changed) if "transpose" in found or found == "nn.conv1d"]
    (expected,), (found,) = interpret(module, [x]), interpret(changed, [x])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.sampled("cpu", whole="avx2")
@pytest.mark.parametrize("cpu", ["avx2", "avx512", "x86-64"])
@pytest.mark.parametrize("name", CASES)
def test_kernels(name, cpu, rng):
    """With a bias and an activation; on CPUs with multiply-adds every convolution is one of the register tile."""
    x, w, build = operands(CASES[name], rng)
    magnitude = small_module(lambda builder, params: [build(*params, np.abs(w))], [(x.shape, "float32")]).ir
    (magnitudes,) = interpret(magnitude, [np.abs(x)])
    bias = rng.standard_normal((magnitudes.shape[1],) + (1,) * (x.ndim - 2)).astype(np.float32)

    def network(builder, params):
        biased = builder.emit(relax.op.add(builder.emit(build(*params, w)), constant(bias)))
        return [nn.relu(biased)]

    module = small_module(network, [(x.shape, "float32")])
    engine = qnn_ext.build(module, cpu_target(cpu, 1))
    (expected,) = interpret(module.ir, [x])
    assert close(engine(x), expected, magnitudes + np.abs(bias), w.size)
    products = [kernel.implementation for kernel in engine.kernels if kernel.macs]
    if cpu != "x86-64":
        assert products and all("fma" in product for product in products)


@pytest.mark.parametrize("name", ["conv1d", "2 by 2", "groups apart"])
def test_arm(name, rng):
    """The same bits as on x86."""
    x, w, build = operands(CASES[name], rng)
    module = small_module(lambda builder, params: [build(*params, w)], [(x.shape, "float32")])
    engine = emulated(qnn_ext.build(module, cpu_target("asimd", 1)))
    assert all("fmla" in kernel.implementation for kernel in engine.kernels if kernel.macs)
    np.testing.assert_array_equal(engine(x), qnn_ext.build(module, cpu_target("avx2", 1))(x))


@pytest.mark.parametrize("name", ["2 by 2", "4 by 4", "conv1d transposed"])
def test_one_kernel(name, rng):
    """The bias and the activation belong to the product, and so does the order in which it stores its phases."""
    x, w, build = operands(CASES[name], rng)
    out = CASES[name][2][1]
    bias = rng.standard_normal((out,) + (1,) * (x.ndim - 2)).astype(np.float32)
    network = lambda builder, params: [  # noqa: E731
        nn.relu(builder.emit(relax.op.add(builder.emit(build(*params, w)), constant(bias))))
    ]
    engine = qnn_ext.build(small_module(network, [(x.shape, "float32")]), cpu_target("avx2", 1))
    (product,) = [kernel for kernel in engine.kernels if kernel.macs]
    assert "+add+nn.relu" in product.operators


@pytest.mark.parametrize("name", ["3 by 3", "groups apart", "4 by 4", "conv1d of a stride of 3"])
def test_infinities_stay_where_they_are(name, rng):
    """No tap is filled up with a zero, by which an infinity would become NaN."""
    x, w, build = operands(CASES[name], rng)
    x[(0, 1, *(size // 2 for size in x.shape[2:]))] = np.inf
    module = small_module(lambda builder, params: [build(*params, w)], [(x.shape, "float32")])
    with np.errstate(invalid="ignore"):
        (expected,) = interpret(module.ir, [x])
    found = qnn_ext.build(module, cpu_target("avx2", 1))(x)
    assert np.isinf(found).any()
    np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["conv1d", "2 by 2", "3 by 3"])
def test_precision(name, precision, rng):
    x, w, build = operands(CASES[name], rng)
    module = small_module(lambda builder, params: [build(*params, w)], [(x.shape, "float32")])
    engine = qnn_ext.build(module, cpu_target("avx2", 1), precision=precision)
    assert all(f"_{precision}" in kernel.implementation for kernel in engine.kernels if kernel.macs)
    (expected,) = interpret(module.ir, [x])
    np.testing.assert_allclose(engine(x), expected, rtol=0, atol=0.1)


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left(name, rng):
    x, w, build = operands(LEFT[name], rng)
    module = small_module(lambda builder, params: [build(*params, w)], [(x.shape, "float32")])
    assert "nn.conv2d_transpose" in names_of(plain_convolutions(module.ir))
    (expected,) = interpret(module.ir, [x])
    np.testing.assert_allclose(qnn_ext.build(module, cpu_target("avx2", 1))(x), expected, rtol=1e-4, atol=1e-4)
