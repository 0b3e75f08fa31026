"""Float products on emulated 64-bit ARM: the bits of fused multiply-adds in the order of the reduction.

The same bits as x86's kernels, which are compared here as well. Operands of 16 bits give the bits of their float32
values, except by bfdot, whose own rounding is written out here.
"""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.numerics import bfloat16
from qnn_ext.numerics.reference import fused_multiply_add
from qnn_ext.op.base import constant
from tests.arm.engines import emulated
from tests.compiling.program.small import small_module
from tests.cpus import cpu_target
from tests.passes.test_float_products import CONVOLUTIONS, MATRICES

LAYOUTS = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}
CPUS = ("asimd", "avx2")


def exact(x, w, **attributes):
    """The convolution in float64."""
    return convolved(x, w, **attributes, multiply_add=lambda a, b, c: a * b + c)


def convolved(x, w, padding=(0, 0, 0, 0), strides=(1, 1), dilation=(1, 1), groups=1, multiply_add=fused_multiply_add):
    """Σ over (row, column, channel), in this order, each product rounded with the sum before it."""
    top, left, bottom, right = padding
    out_channels, height, width, channels = w.shape
    x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    rows, columns = (
        (size - (kernel - 1) * step - 1) // stride + 1
        for size, kernel, step, stride in zip(x.shape[1:3], (height, width), dilation, strides, strict=True)
    )
    group = np.arange(out_channels) // (out_channels // groups) * channels
    total = np.zeros((len(x), rows, columns, out_channels), x.dtype)
    for r, s, c in np.ndindex(height, width, channels):
        y = r * dilation[0] + np.arange(rows) * strides[0]
        z = s * dilation[1] + np.arange(columns) * strides[1]
        total = multiply_add(x[:, y][:, :, z][..., group + c], w[:, r, s, c], total)
    return total


def multiplied(x, y):
    """x · y, each product rounded with the sum of those before it."""
    total = np.zeros((*x.shape[:-1], y.shape[-1]), np.float32)
    for k in range(x.shape[-1]):
        total = fused_multiply_add(x[..., k, None], y[..., k, None, :], total)
    return total


def of_one(inputs, build):
    """The module of build(emit, *variables)."""
    return small_module(lambda builder, params: [build(builder.emit, *params)], inputs)


def run(build, arrays, cpu, precision="float32"):
    """The result of a module compiled for a CPU, and the implementations of its products."""
    module = of_one([(x.shape, str(x.dtype)) for x in arrays], build)
    engine = qnn_ext.build(module, cpu_target(cpu, 1), precision=precision)
    names = [kernel.implementation for kernel in engine.kernels if kernel.macs]
    return (engine if cpu == "avx2" else emulated(engine))(*arrays), names


@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name, cpu, rng):
    """With a bias, an activation and a residual in the same kernel."""
    shape, weight_shape, attributes = CONVOLUTIONS[name]
    x, w, bias = (rng.standard_normal(size).astype(np.float32) for size in (shape, weight_shape, weight_shape[:1]))
    total = convolved(x, w, **attributes)
    residual = rng.standard_normal(total.shape).astype(np.float32)

    def build(emit, x, other):
        biased = emit(relax.op.add(emit(relax.op.nn.conv2d(x, constant(w), **attributes, **LAYOUTS)), constant(bias)))
        return emit(relax.op.add(emit(relax.op.nn.relu(biased)), other))

    found, names = run(build, [x, residual], cpu)
    assert len(names) == 1 and ("fmla" if cpu == "asimd" else "fma_256") in names[0]
    np.testing.assert_array_equal(found, np.maximum(total + bias, 0) + residual)


@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", MATRICES)
def test_matrices(name, cpu, rng):
    *shapes, is_constant = MATRICES[name]
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    build = lambda emit, x, *more: emit(relax.op.matmul(x, *(more or [constant(y)])))  # noqa: E731
    found, names = run(build, [x] if is_constant else [x, y], cpu)
    assert len(names) == 1 and ("fmla" if cpu == "asimd" else "fma_256") in names[0]
    np.testing.assert_array_equal(found, multiplied(x, y))


@pytest.mark.parametrize("name", ["window", "groups", "depthwise"])
def test_infinities_stay_where_they_are(name, rng):
    """Nothing is multiplied by a zero that the model does not have."""
    shape, weight_shape, attributes = CONVOLUTIONS[name]
    x, w = (rng.standard_normal(size).astype(np.float32) for size in (shape, weight_shape))
    x[0, shape[1] // 2, shape[2] // 2, shape[3] // 2] = np.inf
    build = lambda emit, x: emit(relax.op.nn.conv2d(x, constant(w), **attributes, **LAYOUTS))  # noqa: E731
    with np.errstate(invalid="ignore"):
        expected = convolved(x, w, **attributes)
    np.testing.assert_array_equal(run(build, [x], "asimd")[0], expected)


@pytest.mark.parametrize("name", ["window", "colours"])
def test_data_dequantized_as_they_are_copied(name, rng):
    """The kernel reads bytes."""
    shape, weight_shape, attributes = CONVOLUTIONS[name]
    w = rng.standard_normal(weight_shape).astype(np.float32)
    q = rng.integers(-128, 127, shape, endpoint=True).astype(np.int8)

    def build(emit, q):
        x = emit(qnn_ext.op.dequantize(q, constant(np.float32(0.04)), constant(np.int32(3))))
        return emit(relax.op.nn.conv2d(x, constant(w), **attributes, **LAYOUTS))

    x = (q.astype(np.int32) - 3).astype(np.float32) * np.float32(0.04)
    module = of_one([(shape, "int8")], build)
    engine = qnn_ext.build(module, cpu_target("asimd", 1))
    assert [kernel.implementation for kernel in engine.kernels if kernel.macs] and len(engine.kernels) == 1
    np.testing.assert_array_equal(emulated(engine)(q), convolved(x, w, **attributes))


# ---- operands of 16 bits -----------------------------------------------------------------------------------------

ROUNDED = {"float16": lambda x: x.astype(np.float16).astype(np.float32), "bfloat16": bfloat16.rounded}
KERNELS = {
    ("asimd", "float16"): "fmla_{}_float16",
    ("asimd", "bfloat16"): "fmla_{}_bfloat16",
    ("arm_halves", "float16"): "fmlal_{}",
}
"""CPU and precision -> the instruction, whose bits are those of multiply-adds of rounded operands."""


def has_instruction(names, instruction):
    """Whether the only product is computed by an instruction, with a chain of any length."""
    return len(names) == 1 and any(f"_{instruction.format(chain)}" in names[0] for chain in (1, 2, 3, 4))


@pytest.mark.sampled("kind")
@pytest.mark.parametrize("kind", KERNELS, ids="-".join)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_of_16_bits(name, kind, rng):
    shape, weight_shape, attributes = CONVOLUTIONS[name]
    x, w = (rng.standard_normal(size).astype(np.float32) for size in (shape, weight_shape))
    build = lambda emit, x: emit(relax.op.nn.conv2d(x, constant(w), **attributes, **LAYOUTS))  # noqa: E731
    found, names = run(build, [x], *kind)
    assert has_instruction(names, KERNELS[kind]) or weight_shape[-1] == 1
    np.testing.assert_array_equal(found, convolved(*map(ROUNDED[kind[1]], (x, w)), **attributes))


@pytest.mark.sampled("kind")
@pytest.mark.parametrize("kind", KERNELS, ids="-".join)
@pytest.mark.parametrize("name", MATRICES)
def test_matrices_of_16_bits(name, kind, rng):
    *shapes, is_constant = MATRICES[name]
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    build = lambda emit, x, *more: emit(relax.op.matmul(x, *(more or [constant(y)])))  # noqa: E731
    found, names = run(build, [x] if is_constant else [x, y], *kind)
    assert has_instruction(names, KERNELS[kind]) == (is_constant or kind[0] == "arm_halves")
    np.testing.assert_array_equal(found, multiplied(*map(ROUNDED[kind[1]], (x, y))))


def rounded_to_odd(a, b):
    """a + b as float32: what is not exact becomes the neighbour nearer to zero with its last bit set."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)  # of the sum in float64
    total = np.where(error * total < 0, np.nextafter(total, 0), total)
    bits = total.view(np.uint64)
    inexact = (bits & np.uint64((1 << 29) - 1) != 0) | (error != 0)
    kept = (bits & ~np.uint64((1 << 29) - 1)).view(np.float64).astype(np.float32)
    return (kept.view(np.uint32) | inexact).view(np.float32)


def dot_products(x, y):
    """x · y by bfdot: acc = odd(acc + odd(x0 · y0 + x1 · y1)), two products at a time."""
    x, y = (bfloat16.rounded(value) for value in (x, y))
    total = np.zeros((*x.shape[:-1], y.shape[-1]), np.float32)
    for k in range(0, x.shape[-1], 2):
        first, second = (x[..., i, None] * y[..., i, None, :] for i in (k, k + 1))  # exact
        total = rounded_to_odd(total, rounded_to_odd(first, second))
    return total


@pytest.mark.parametrize("name", MATRICES)
def test_bfdot(name, rng):
    *shapes, is_constant = MATRICES[name]
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    build = lambda emit, x, *more: emit(relax.op.matmul(x, *(more or [constant(y)])))  # noqa: E731
    found, names = run(build, [x] if is_constant else [x, y], "arm_halves", "bfloat16")
    assert has_instruction(names, "bfdot_{}")
    np.testing.assert_array_equal(found, dot_products(x, y))


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_by_bfdot(name, rng):
    """Within k · 2⁻²³ · Σ |a · b| of exact sums, two roundings for two products."""
    shape, weight_shape, attributes = CONVOLUTIONS[name]
    x, w = (rng.standard_normal(size).astype(np.float32) for size in (shape, weight_shape))
    build = lambda emit, x: emit(relax.op.nn.conv2d(x, constant(w), **attributes, **LAYOUTS))  # noqa: E731
    found, names = run(build, [x], "arm_halves", "bfloat16")
    assert has_instruction(names, "bfdot_{}") or "depthwise" in names[0]
    x, w = (bfloat16.rounded(value).astype(np.float64) for value in (x, w))
    limit = w[0].size * 2.0**-23 * exact(np.abs(x), np.abs(w), **attributes)
    assert (np.abs(found - exact(x, w, **attributes)) <= limit).all()


def test_tiles_stay_in_registers(rng):
    """Accumulators, and activations by element: nothing is spilled in the loop over k, no element is copied apart."""
    w = rng.standard_normal((256, 64)).astype(np.float32)
    module = of_one([((28, 256), "float32")], lambda emit, x: emit(relax.op.matmul(x, constant(w))))
    code = qnn_ext.build(module, cpu_target("asimd", 1)).source("asm").splitlines()
    products = [number for number, line in enumerate(code) if "fmla" in line]
    assert len(products) >= 4 * 14
    loop = code[products[0] : products[-1]]
    assert all(".s[" in code[number] for number in products)
    assert not [line for line in loop if "[sp" in line or "dup" in line]
