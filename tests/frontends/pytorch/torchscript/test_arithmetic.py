"""Sums, products, concatenations and matrix products of quantized tensors against PyTorch."""

import numpy as np
import pytest
import torch

from .oracle import check, quantized

ops = torch.ops.quantized


@pytest.mark.parametrize("name", ["add", "add_relu"])
def test_add(rng, engine, name):
    """Scales with midpoints. Sizes are multiples of the vector length: PyTorch's scalar tail contracts differently."""
    for lhs, rhs, out in ((0.1, 0.05, 0.1), (0.02, 0.04, 0.05), (0.3, 0.0711, 0.0823), (0.0123, 0.1, 0.2)):
        zeros = rng.integers(0, 256, 3)
        a = quantized(rng, (4, 32, 8, 8), lhs, int(zeros[0]))
        b = quantized(rng, (4, 32, 8, 8), rhs, int(zeros[1]))
        function = getattr(ops, name)
        check(lambda a, b, f=function, s=out, z=int(zeros[2]): f(a, b, s, z), a, b, engine=engine)


def test_add_of_an_odd_size(rng, engine):
    """The last elements go through PyTorch's scalar loop: at most one step away there."""
    a, b = quantized(rng, (3, 5, 7), 0.031, 100), quantized(rng, (3, 5, 7), 0.0711, 131)
    check(lambda a, b: ops.add(a, b, 0.0823, 117), a, b, engine=engine, off_by_one=1)


@pytest.mark.parametrize("length", [63, 64])
def test_midpoints_of_a_vector(rng, engine, length):
    """64 elements fill a vector, which adds the zero point after rounding; the scalar loop does before."""
    if "AVX512" not in torch.backends.cpu.get_cpu_capability():
        pytest.skip("vectors of other lengths")
    a = torch._make_per_tensor_quantized_tensor(torch.arange(3, 4 * length, 4, dtype=torch.uint8), 1 / 64, 255)
    b = torch._make_per_tensor_quantized_tensor(torch.full((length,), 255, dtype=torch.uint8), 1 / 64, 255)
    check(lambda a, b: ops.add(a, b, 0.25, 131), a, b, engine=engine)


@pytest.mark.parametrize("name", ["mul", "mul_relu"])
def test_mul(rng, engine, name):
    for lhs, rhs, out in ((0.1, 0.05, 0.1), (0.02, 0.04, 0.5), (0.3, 0.0711, 2.0)):
        zeros = rng.integers(0, 256, 3)
        a = quantized(rng, (3, 33, 7, 9), lhs, int(zeros[0]))
        b = quantized(rng, (3, 33, 7, 9), rhs, int(zeros[1]))
        function = getattr(ops, name)
        check(lambda a, b, f=function, s=out, z=int(zeros[2]): f(a, b, s, z), a, b, engine=engine)


def test_broadcast(rng, engine):
    """Which QNNPACK leaves to PyTorch's own kernel."""
    a, b = quantized(rng, (2, 64, 4, 4), 0.05, 120), quantized(rng, (2, 64, 1, 1), 0.004, 3)
    check(lambda a, b: ops.mul(a, b, 0.05, 118), a, b, engine=engine)
    check(lambda a, b: ops.add(a, b, 0.06, 110), a, b, engine=engine, off_by_one=2)


@pytest.mark.sampled("engine")
@pytest.mark.parametrize("value", [0.7, -0.3, 0.0, 5.9, -7.0, 100.0, -100.0])
@pytest.mark.parametrize("name", ["add", "add_scalar_relu", "mul", "mul_scalar_relu"])
def test_scalar(rng, engine, name, value):
    a = quantized(rng, (2, 3, 5), 0.031, 77)
    function = getattr(ops, name)
    check(lambda a: function(a, value), a, engine=engine)


@pytest.mark.sampled("engine")
@pytest.mark.parametrize("scale, out", [(0.025, (0.05, 101)), (0.095, (0.19, 66)), (0.03, (0.01, 120))])
@pytest.mark.parametrize("channels", [(8, 19), (3, 24)])
def test_midpoints_of_a_quantized_cat(engine, channels, scale, out):
    """Every value in every channel: PyTorch's loops over vectors of channels and over what is left round midpoints in
    different ways."""
    every = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    images = [
        torch._make_per_tensor_quantized_tensor(every.expand(1, c, 16, 16).contiguous(), scale, zero).contiguous(
            memory_format=torch.channels_last
        )
        for c, zero in zip(channels, (77, 91), strict=True)
    ]
    check(lambda a, b: ops.cat([a, b], 1, *out), *images, engine=engine)


@pytest.mark.sampled("engine")
@pytest.mark.parametrize("channels", [(16, 32), (64, 48), (3, 5)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_quantized_cat(rng, engine, channels, channels_last):
    layout = torch.channels_last if channels_last else torch.contiguous_format
    a, b = (
        quantized(rng, (2, c, 5, 4), s, z).contiguous(memory_format=layout)
        for c, s, z in zip(channels, (0.03, 0.05), (77, 90), strict=True)
    )
    for scale, zero in ((0.06, 100), (0.0671, 101), (0.03, 77)):
        for function in (ops.cat, ops.cat_relu):
            check(lambda a, b, f=function, s=scale, z=zero: f([a, b], 1, s, z), a, b, engine=engine)


def test_aten_cat(rng, engine):
    a, b = quantized(rng, (2, 16, 4), 0.03, 77), quantized(rng, (2, 16, 4), 0.05, 90)
    check(lambda a, b: torch.cat([a, b], 1), a, b, engine=engine)
    check(lambda a, b: torch.cat([a, a], 2), a, b, engine=engine)


def test_cat_with_a_constant(rng):
    """As the class token of a vision transformer is."""
    token, image = quantized(rng, (2, 3, 4), 0.02, 120), quantized(rng, (2, 5, 4), 0.03, 77)
    check(lambda a: torch.cat([a, token], 1), image)
    check(lambda a: torch.cat([token, a], 1), image)


@pytest.mark.parametrize("depth", [8, 64, 333])
def test_matmul(rng, engine, depth):
    """PyTorch adds float products in its own order: a midpoint in a thousand may fall the other way."""
    a, b = quantized(rng, (2, 4, 17, depth), 0.013, 120), quantized(rng, (2, 4, depth, 19), 0.021, 131)
    scale = 0.02 * float(np.sqrt(depth))
    check(lambda a, b: ops.matmul(a, b, scale, 119), a, b, engine=engine, off_by_one=3)


def test_compiled(rng, engine):
    a, b = quantized(rng, (2, 16, 6, 6), 0.1, 77), quantized(rng, (2, 16, 6, 6), 0.05, 90)

    def network(a, b):
        total = ops.mul(ops.add_relu(a, b, 0.1, 3), b, 0.3, 100)
        return ops.cat([total, ops.mul_scalar(a, -0.3), ops.add_scalar(b, 9.0)], 1, 0.2, 99)

    check(network, a, b, engine=engine, compiled=True)
