"""Functions of one quantized value, for all 256 integers, against PyTorch; float ones within float32's accuracy."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from .oracle import check, quantized, run

ops = torch.ops.quantized

QUANTIZED = {
    "relu": torch.relu,
    "relu_": lambda x: torch.relu_(x.clone()),
    "relu6": F.relu6,
    "quantized_relu6": lambda x: ops.relu6(x, False),
    "hardtanh": lambda x: F.hardtanh(x, -1.3, 0.8),
    "clamp": lambda x: torch.clamp(x, -0.4, 1.1),
    "sigmoid": torch.sigmoid,
    "quantized_sigmoid": lambda x: ops.sigmoid(x, 1 / 256, 0),
    "tanh": torch.tanh,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": lambda x: ops.hardswish(x, 0.021, 17),
    "elu": lambda x: ops.elu(x, 0.019, 55, 1.2),
    "celu": lambda x: ops.celu(x, 0.019, 55, 0.7),
    "leaky_relu": lambda x: ops.leaky_relu(x, 0.1, False, 0.02, 31),
    "aten_leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "threshold": lambda x: ops.threshold(x, 0.2, 0.5),
}


@pytest.mark.sampled("engine")
@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized(rng, engine, name):
    for zero in (0, 77, 200):
        check(QUANTIZED[name], quantized(rng, (4, 16, 8, 8), 0.0311, zero), engine=engine)


LAYOUTS = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "permuted": lambda x: x.permute(0, 2, 3, 1),
    "every other channel": lambda x: x[:, ::2],
    "every other column": lambda x: x[..., ::2],
    "short": lambda x: x[0, 0, 0, :5],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("function", ["hardswish", "elu", "celu", "leaky_relu"])
def test_midpoints_by_layout(rng, function, layout):
    """PyTorch rounds midpoints otherwise where it takes no vectors. Many results of this scale are midpoints."""
    arguments = {"leaky_relu": (0.1, False, 0.025, 1), "hardswish": (0.025, 1)}.get(function, (0.025, 1, 1.0))
    check(lambda x: getattr(ops, function)(LAYOUTS[layout](x), *arguments), quantized(rng, (2, 16, 8, 8), 1 / 16, 3))


def test_gelu(rng, engine):
    check(lambda x: F.gelu(x), quantized(rng, (2, 128), 0.02, 120), engine=engine)


@pytest.mark.parametrize("count", [1, 6])
def test_prelu(rng, engine, count):
    class Prelu(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("weight", quantized(rng, (count,), 0.004, 30))

        def forward(self, x):
            return ops.prelu(x, self.weight, 0.02, 61)

    check(Prelu(), quantized(rng, (2, 6, 5, 7), 0.03, 77), engine=engine)


def test_clip_needs_no_table(rng):
    """What only clips becomes a clip, which a kernel takes into its registers."""
    from qnn_ext.frontends.pytorch import from_pytorch

    from .oracle import Wrapped

    x = quantized(rng, (2, 64), 0.02, 120)
    module = from_pytorch(torch.jit.trace(Wrapped(F.relu6).eval(), (x,)), (x,))
    assert "R.clip" in module.script() and "table" not in module.script()


FLOAT = {
    "relu": torch.relu, "relu6": F.relu6, "hardtanh": F.hardtanh, "sigmoid": torch.sigmoid, "tanh": torch.tanh,
    "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish, "leaky_relu": F.leaky_relu, "elu": F.elu, "celu": lambda x: F.celu(x, 0.6),
    "selu": F.selu, "softplus": F.softplus, "mish": F.mish, "threshold": lambda x: F.threshold(x, 0.1, 2.0),
    "exp": torch.exp, "abs": torch.abs, "neg": torch.neg, "clamp": lambda x: torch.clamp(x, min=-0.5),
    "clamp_crossed": lambda x: torch.clamp(x, 1.1, 0.4),
    "sqrt": lambda x: torch.sqrt(torch.abs(x)),
    "prelu": lambda x: F.prelu(x, torch.linspace(-1, 2, 17)),
    "prelu_of_a_vector": lambda x: F.prelu(x[0], torch.tensor([0.3])),
    "prelu_with_one_slope": lambda x: F.prelu(x[:, :, None], torch.tensor([0.3])),
    "prelu_of_images": lambda x: F.prelu(x.reshape(1, 3, 17, 1), torch.tensor([-0.5, 0.3, 2])),
    "log2": lambda x: torch.log2(x.abs()), "log10": lambda x: torch.log10(x.abs()), "log1p": lambda x: (x**8).log1p(),
    "expm1": lambda x: (x**9).expm1(),
    "reciprocal": torch.reciprocal, "pow": lambda x: x**2,
}  # fmt: skip


@pytest.mark.parametrize("name", FLOAT)
def test_float(rng, name):
    x = torch.from_numpy(rng.normal(0, 2, (3, 17)).astype(np.float32))
    result, expected = run(FLOAT[name], x)
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-6)


def test_compiled(rng, engine):
    def network(x):
        return torch.tanh(ops.hardswish(torch.relu(x), 0.021, 17))

    check(network, quantized(rng, (2, 64), 0.0311, 77), engine=engine, compiled=True)


LAYERS = {
    "conv3d": (lambda: torch.nn.Conv3d(4, 6, (2, 3, 1), 2, 1), (2, 4, 5, 6, 7)),
    "transposed 1-D": (lambda: torch.nn.ConvTranspose1d(4, 6, 3, 2, 1, 1, groups=2), (2, 4, 9)),
    "transposed 2-D": (lambda: torch.nn.ConvTranspose2d(4, 6, (3, 2), (2, 1), (1, 0), dilation=(1, 2)), (2, 4, 9, 5)),
    "transposed 3-D": (lambda: torch.nn.ConvTranspose3d(4, 2, 2, 2, bias=False), (1, 4, 3, 4, 2)),
    "group norm": (lambda: torch.nn.GroupNorm(2, 4), (2, 4, 3, 5)),
    "instance norm": (lambda: torch.nn.InstanceNorm2d(4, affine=True), (2, 4, 3, 5)),
    "instance norm without weights": (lambda: torch.nn.InstanceNorm1d(4), (2, 4, 7)),
    "instance norm, tracked": (lambda: torch.nn.InstanceNorm2d(4, track_running_stats=True), (2, 4, 3, 5)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_float_layers(rng, name):
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    layer = make().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    result, expected = run(layer, torch.from_numpy(rng.normal(0, 1, shape).astype(np.float32)))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
