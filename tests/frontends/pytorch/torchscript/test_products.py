"""Convolutions and linear layers of every engine against PyTorch, exactly."""

import numpy as np
import pytest
import torch
import torch.ao.nn.intrinsic.quantized as nniq
import torch.ao.nn.quantized as nnq

from qnn_ext.errors import UnsupportedOperatorError

from .oracle import Wrapped, check, quantized, require_exact, run


@pytest.fixture(autouse=True)
def exact(engine):
    """Operands here use all of their 8 bits."""
    require_exact(engine)


def quantized_weight(rng, shape, per_channel, axis=0):
    values = torch.from_numpy(rng.integers(-127, 128, shape).astype(np.int8))
    if not per_channel:
        return torch._make_per_tensor_quantized_tensor(values, 0.0131, 0)
    scales = torch.from_numpy(rng.uniform(0.005, 0.025, shape[axis]))
    return torch._make_per_channel_quantized_tensor(values, scales, torch.zeros(shape[axis], dtype=torch.long), axis)


def layer(kind, rng, channels, out, kernel, per_channel, scale, zero, **geometry):
    groups = geometry.get("groups", 1)
    module = kind(channels, out, kernel, **geometry)
    transposed = "Transpose" in kind.__name__
    dims = module.kernel_size
    first = (channels, out // groups) if transposed else (out, channels // groups)
    weight = quantized_weight(rng, (*first, *dims), per_channel)
    module.set_weight_bias(weight, torch.from_numpy(rng.normal(0, 1, out).astype(np.float32)))
    module.scale, module.zero_point = scale, zero
    return module


def data(rng, shape, reduced, scale=0.0217):
    """Activations 0 … 127, as fbgemm's and x86's default configurations give them, or the whole range."""
    return quantized(rng, shape, scale, 41 if reduced else 117, high=127 if reduced else 255)


def output_scale(fan_in):
    return float(0.0217 * 0.013 * np.sqrt(fan_in) * 73 * 1.2)


@pytest.mark.sampled("engine")
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize(
    ("channels", "out", "kernel", "geometry"),
    [
        (5, 7, 3, {}),
        (16, 24, 3, {"padding": 1, "stride": 2}),
        (8, 8, 3, {"padding": 2, "dilation": 2}),
        (12, 8, (1, 5), {"padding": (0, 3), "stride": (1, 2), "groups": 4}),
        (16, 16, 3, {"padding": 1, "groups": 16}),
        (9, 40, 1, {}),
    ],
)
def test_conv2d(rng, engine, per_channel, channels, out, kernel, geometry):
    fan_in = (
        channels // geometry.get("groups", 1) * int(np.prod(kernel if isinstance(kernel, tuple) else (kernel,) * 2))
    )
    for kind, zero in ((nnq.Conv2d, 131), (nniq.ConvReLU2d, 0), (nniq.ConvReLU2d, 77)):
        module = layer(kind, rng, channels, out, kernel, per_channel, output_scale(fan_in), zero, **geometry)
        check(module, data(rng, (3, channels, 13, 11), engine in ("fbgemm", "x86")), engine=engine)


def test_conv2d_of_many_groups(rng, engine):
    """The x86 engine leaves more than 100 groups to fbgemm."""
    module = layer(nnq.Conv2d, rng, 104, 104, 3, True, 0.6, 120, groups=104, padding=1)
    check(module, data(rng, (2, 104, 9, 9), True), engine=engine)


@pytest.mark.parametrize("per_channel", [True, False])
def test_depthwise_beyond_7_bits(rng, engine, per_channel):
    """fbgemm's depthwise kernel, x86's too for so many groups, adds the products of taps 2i and 2i + 1 in 16 bits,
    which saturate. Ours are exact: the results differ where a pair leaves int16, and nowhere else."""
    channels = 104
    module = layer(nnq.Conv2d, rng, channels, channels, 3, per_channel, 0.6, 120, groups=channels, padding=1)
    x = data(rng, (2, channels, 9, 9), False)
    result, expected = run(module, x, engine=engine)
    padded = np.pad(x.int_repr().numpy(), ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=117).astype(np.int64)
    weight = module.weight().int_repr().numpy().astype(np.int64).reshape(channels, 3, 3)
    taps = [padded[:, :, i : i + 9, j : j + 9] * weight[:, i, j, None, None] for i in range(3) for j in range(3)]
    pairs = np.stack([first + second for first, second in zip(taps[:-1:2], taps[1::2], strict=True)])
    saturated = (np.abs(pairs * 2 + 1) > 65535).any(axis=0)
    assert 0.05 < saturated.mean() < 0.5
    assert not ((result != expected) & ~saturated).any()
    if engine in ("onednn", "qnnpack"):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("padding", [0, 2])
def test_conv1d(rng, engine, padding):
    for kind in (nnq.Conv1d, nniq.ConvReLU1d):
        module = layer(kind, rng, 6, 10, 5, True, 0.7, 90, padding=padding, stride=2)
        check(module, data(rng, (2, 6, 37), True), engine=engine)


def test_conv3d(rng, engine):
    if engine == "qnnpack":
        pytest.skip("QNNPACK's parameters of three dimensions cannot be unpacked")
    for kind in (nnq.Conv3d, nniq.ConvReLU3d):
        module = layer(kind, rng, 4, 6, 3, True, 0.8, 100, padding=1, stride=(1, 2, 1))
        check(module, data(rng, (2, 4, 5, 6, 7), True), engine=engine)


@pytest.mark.sampled("engine")
@pytest.mark.parametrize(
    ("kind", "shape", "geometry"),
    [
        (nnq.ConvTranspose1d, (2, 8, 9), {"stride": 2, "output_padding": 1}),
        (nnq.ConvTranspose2d, (2, 8, 6, 5), {"stride": 2, "padding": 1}),
        (nnq.ConvTranspose2d, (1, 8, 6, 5), {"stride": (3, 2), "padding": 1, "output_padding": (1, 0)}),
        (nnq.ConvTranspose3d, (1, 8, 3, 4, 5), {"stride": 2}),
    ],
)
def test_transposed(rng, engine, kind, shape, geometry):
    """As many channels out as in: PyTorch's oneDNN kernel returns noise for 8 to 6, which is not reproduced."""
    if kind is nnq.ConvTranspose3d and engine == "qnnpack":
        pytest.skip("QNNPACK has no transposed convolution over three dimensions")
    if "output_padding" in geometry and engine == "onednn":
        pytest.skip("oneDNN has no output padding")
    out = 8 if engine in ("x86", "onednn") else 6
    module = layer(kind, rng, 8, out, 3, False, 0.5, 110, **geometry)
    check(module, data(rng, shape, True), engine=engine)


@pytest.mark.parametrize("channels", [8, 16])
def test_transposed_with_kernels_of_two_rows(rng, engine, channels):
    """fbgemm does not give their weights back, which oneDNN and QNNPACK do; with other numbers of channels it does."""
    module = layer(nnq.ConvTranspose2d, rng, channels, channels, 2, False, 0.5, 110, stride=2)
    x = data(rng, (1, channels, 5, 6), True)
    if engine == "fbgemm":
        with pytest.raises(UnsupportedOperatorError, match=r"fbgemm does not give back .*engine = \"x86\""):
            check(module, x, engine=engine)
        module, x = layer(nnq.ConvTranspose2d, rng, 6, 6, 2, False, 0.5, 110, stride=2), data(rng, (1, 6, 5, 6), True)
    check(module, x, engine=engine)


@pytest.mark.sampled("engine")
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("shape", [(5, 33), (2, 3, 64)])
def test_linear(rng, engine, per_channel, shape):
    """oneDNN's own matrix product rounds in an order that depends on the shape: at most 1 of the outputs may differ."""
    for kind, zero in ((nnq.Linear, 128), (nniq.LinearReLU, 3)):
        module = kind(shape[-1], 19)
        bias = torch.from_numpy(rng.normal(0, 1, 19).astype(np.float32))
        module.set_weight_bias(quantized_weight(rng, (19, shape[-1]), per_channel), bias)
        module.scale, module.zero_point = output_scale(shape[-1]), zero
        check(module, data(rng, shape, False), engine=engine, off_by_one=1 if engine == "onednn" else 0)


def test_midpoints(rng, engine):
    """Multipliers near powers of two put many results next to midpoints, where every rounding shows."""
    module = nnq.Conv2d(16, 16, 1)
    values = torch.from_numpy(rng.integers(-3, 4, (16, 16, 1, 1)).astype(np.int8))
    scales = 0.007 * torch.from_numpy(rng.choice([1.0, 2.0, 0.5, 0.25], 16))
    weight = torch._make_per_channel_quantized_tensor(values, scales, torch.zeros(16, dtype=torch.long), 0)
    bias = torch.from_numpy(
        (rng.integers(-40, 40, 16) * 0.02 * 0.007 * rng.choice([1, 0.5, 1 / 3], 16)).astype(np.float32)
    )
    module.set_weight_bias(weight, bias)
    module.scale, module.zero_point = 0.02 * 0.007 * 4, 101
    check(module, quantized(rng, (16, 16, 8, 8), 0.02, 13, high=127), engine=engine)


def test_saturation(rng, engine):
    module = layer(nnq.Conv2d, rng, 8, 8, 3, True, 0.01, 5)
    check(module, data(rng, (1, 8, 6, 6), True), engine=engine)


def test_without_bias(rng, engine):
    module = nnq.Conv2d(4, 6, 3, bias=False)
    module.set_weight_bias(quantized_weight(rng, (6, 4, 3, 3), True), None)
    module.scale, module.zero_point = 0.6, 128
    check(module, data(rng, (1, 4, 7, 7), True), engine=engine)


def test_compiled(rng, engine):
    """The kernel of a convolution, an addition and a linear layer gives the interpreter's bits."""
    conv = layer(nniq.ConvReLU2d, rng, 8, 8, 3, True, 0.3, 9, padding=1)
    linear = nnq.Linear(8 * 36, 5)
    linear.set_weight_bias(quantized_weight(rng, (5, 8 * 36), True), torch.ones(5))
    linear.scale, linear.zero_point = 3.0, 100

    def network(x):
        total = torch.ops.quantized.add(conv(x), x, 0.31, 12)
        return linear(torch.flatten(total, 1))

    module = Wrapped(network, conv=conv, linear=linear)
    check(
        module, data(rng, (2, 8, 6, 6), True), engine=engine, compiled=True, off_by_one=1 if engine == "onednn" else 0
    )
