"""Pooling of quantized tensors against PyTorch: engine, memory format and zero point decide how midpoints fall."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qnn_ext import LimitError, from_pytorch

from .oracle import check, quantized

LAYOUTS = [torch.contiguous_format, torch.channels_last]


def image(rng, shape, zero, layout, signed=False):
    return quantized(rng, shape, 0.031, zero, signed).contiguous(memory_format=layout)


@pytest.mark.sampled("engine")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "options", [(2, 2), (3, 2, 1), (3, 2, 1, 1, True), (2, 3, 0, 2, True), ((3, 2), (1, 2), (1, 0))]
)
def test_max_pool2d(rng, engine, layout, options):
    check(lambda x: F.max_pool2d(x, *options), image(rng, (2, 5, 11, 14), 77, layout), engine=engine)


@pytest.mark.parametrize("options", [(2, 2), (3, 2, 1), (3, 2, 1, 1, True), ((3, 2), (1, 2), (1, 0), (2, 1))])
def test_places_of_maxima(rng, options):
    """Of equal elements the first counts."""
    x = torch.from_numpy(rng.integers(-4, 4, (2, 5, 11, 14)).astype("float32"))
    check(lambda x: F.max_pool2d(x, *options, return_indices=True)[1], x)
    check(lambda x: F.max_pool2d(x[1], *options, return_indices=True)[0], x)


def test_max_unpool(rng):
    """By the operator: F.max_unpool2d compares sizes, which cannot be traced."""
    unpool = torch._C._nn.max_unpool2d
    x = torch.from_numpy(rng.normal(0, 1, (2, 5, 12, 14)).astype("float32"))
    check(lambda x: unpool(*F.max_pool2d(x, 2, return_indices=True), [12, 14]), x, compiled=True)
    places = torch.from_numpy(rng.permutation(12 * 14)[: 6 * 7].reshape(1, 6, 7)).expand(5, 6, 7)
    check(lambda x, i: unpool(x[0, :, :6, :7], i, [12, 14]), x, places)


def test_max_pool1d(rng, engine):
    check(lambda x: F.max_pool1d(x, 3, 2, 1), quantized(rng, (2, 5, 17), 0.03, 77), engine=engine)
    check(lambda x: F.max_pool1d(x, 3, 2, 1, ceil_mode=True), quantized(rng, (2, 5, 16), 0.03, 77), engine=engine)


@pytest.mark.sampled("engine")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [3, 16, 24, 64])
@pytest.mark.parametrize("zero", [76, 77])
@pytest.mark.parametrize(
    "options",
    [
        (2, 2),
        (3, 2, 1),
        (3, 2, 1, False, False),
        (2, 2, 1),
        (2, 2, 1, False, False),
        (3, 2, 1, True),
        (2, 2, 0, True),
        (3, 1, 1, False, True, 5),
        (3, 2, 1, True, True, 4),
        ((3, 2), (2, 3), (1, 0), True),
        ((3, 2), 1),
    ],
)
def test_avg_pool2d(rng, engine, layout, channels, zero, options):
    check(lambda x: F.avg_pool2d(x, *options), image(rng, (2, channels, 9, 13), zero, layout), engine=engine)


def test_avg_pool2d_of_int8(rng, engine):
    check(lambda x: F.avg_pool2d(x, 2, 2), image(rng, (2, 5, 8, 8), -21, torch.contiguous_format, True), engine=engine)


def test_avg_pool1d(rng, engine):
    check(lambda x: F.avg_pool1d(x, 2, 2), quantized(rng, (2, 16, 18), 0.03, 76), engine=engine)


@pytest.mark.sampled("engine")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [5, 33, 64])
@pytest.mark.parametrize(
    ("size", "out"), [((8, 8), 1), ((8, 8), (2, 4)), ((7, 10), (3, 4)), ((8, 6), (None, 2)), ((9, 10), (3, 5))]
)
def test_adaptive_avg_pool2d(rng, engine, layout, channels, size, out):
    x = image(rng, (2, channels, *size), 77, layout)
    check(lambda x: F.adaptive_avg_pool2d(x, out), x, engine=engine)


def test_the_number_of_uneven_windows_is_limited():
    """Each is an operator of its own: a file must not ask for millions."""
    x = torch.quantize_per_tensor(torch.zeros(1, 1, 8, 8), 0.1, 0, torch.quint8)
    model = torch.jit.trace(torch.nn.AdaptiveAvgPool2d((3, 100_000)).eval(), x)
    with pytest.raises(LimitError, match=r"adaptive_avg_pool2d.*takes 100,003 steps.*--limit unrolled="):
        from_pytorch(model, (x,))


@pytest.mark.sampled("engine")
@pytest.mark.parametrize("options", [(2, 1, 1, 2), (3, 2, 1, (2, 3)), ((2, 3), 1, (1, 0), (3, 1))])
def test_dilated_max_pool_with_padding(rng, engine, options):
    """QNNPACK moves what a window takes of the padding into the image."""
    check(lambda x: F.max_pool2d(x, *options), image(rng, (2, 5, 11, 14), 77, LAYOUTS[0]), engine=engine)


def volume(rng, zero, layout, signed=False, channels=21):
    return quantized(rng, (2, channels, 5, 7, 6), 0.031, zero, signed).contiguous(memory_format=layout)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize(("zero", "signed"), [(76, False), (77, False), (-3, True)])
@pytest.mark.parametrize(
    "options",
    [
        (2,),
        (3, 2, 1),
        (3, 2, 1, False, False),
        (3, 2, 0, True),
        (3, 2, 1, True, False),
        ((2, 3, 2), (1, 2, 1), (1, 1, 0)),
        (2, 2, 0, False, True, 3),
    ],
)
def test_avg_pool3d(rng, layout, zero, signed, options):
    check(lambda x: F.avg_pool3d(x, *options), volume(rng, zero, layout, signed))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("out", [1, (2, 1, 2), (5, 7, 3), (3, 4, 5)])
def test_adaptive_avg_pool3d(rng, layout, out):
    check(lambda x: F.adaptive_avg_pool3d(x, out), volume(rng, 77, layout))


@pytest.mark.parametrize("options", [(2,), (3, 2, 1), ((2, 3, 2), (1, 2, 1), (1, 1, 0)), (2, 1, 0, 2)])
def test_max_pool3d(rng, options):
    check(lambda x: F.max_pool3d(x, *options), volume(rng, 77, torch.contiguous_format), compiled=options == (2,))


@pytest.mark.parametrize("dims", [(1,), (1, -1), (2, 3)])
def test_std(rng, dims):
    """Of the values, quantized as they were."""
    x = quantized(rng, (3, 40, 8, 6), 0.031, 77)
    check(lambda x: x.std(dims), x)
    check(lambda x: x.std(dims, unbiased=False, keepdim=True), x, compiled=dims == (1,))


@pytest.mark.sampled("engine")
@pytest.mark.parametrize("dims", [(2, 3), (3,), (-1, -2), (1,), (0, 1)])
@pytest.mark.parametrize("keepdim", [False, True])
def test_mean(rng, engine, dims, keepdim):
    x = image(rng, (3, 40, 8, 6), 77, torch.contiguous_format)
    check(lambda x: torch.mean(x, dims, keepdim=keepdim), x, engine=engine)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dims", [(1,), (0,), (0, 1), (0, 2, 3), (2, 3), (0, 3), (3,)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(4, 40, 7, 7), (2, 24, 5, 3), (3, 5, 8, 8), (1, 196, 3, 2), (17, 3, 1, 2)])
def test_midpoints_of_a_mean(rng, shape, layout, dims):
    """PyTorch adds float32 values, in an order that depends on the sizes, whose sum may be beside a midpoint.
    That of dimensions which lie apart in memory is not followed."""
    x = quantized(rng, shape, 0.24219261109828949, 2, high=40).contiguous(memory_format=layout)
    apart = dims in ((0, 3), (0, 1) if layout == torch.channels_last else (0, 2, 3)) and shape[0] > 1
    check(lambda x: x.mean(dims), x, engine="fbgemm", off_by_one=12 if apart else 0, compiled=dims == (2, 3))


def test_compiled(rng, engine):
    def network(x):
        x = F.avg_pool3d(x.reshape(2, 8, 2, 16, 16), (1, 2, 2), 1, (0, 1, 0)).flatten(1, 2)
        x = F.max_pool2d(x, 3, 2, 1)
        return torch.flatten(F.adaptive_avg_pool2d(F.avg_pool2d(x, 2), 1), 1)

    check(network, image(rng, (2, 16, 16, 16), 77, torch.channels_last), engine=engine, compiled=True)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 14])
@pytest.mark.parametrize("keepdim", [False, True])
def test_midpoints_of_the_mean_of_a_channels_last_image(rng, size, keepdim):
    """PyTorch adds float32 values, whose sum may be beside a midpoint."""
    integers = torch.from_numpy(rng.integers(0, 40, (1, 256, size, size), np.uint8))
    x = torch._make_per_tensor_quantized_tensor(integers, 0.24219261109828949, 2)
    check(lambda x: x.mean([2, 3], keepdim=keepdim), x.contiguous(memory_format=torch.channels_last), engine="fbgemm")
