"""Operators of floats that torch.export's importer converts for TorchScript, and PyTorch's fused layers."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qnn_ext import Interpreter
from qnn_ext.errors import UnsupportedOperatorError
from qnn_ext.frontends.pytorch import from_pytorch

from .oracle import Wrapped, quantized, run


def check(module, *inputs):
    """As PyTorch computes it, but for the last bits."""
    result, expected = run(module, *inputs)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


OPERATORS = {
    "bitwise_not": lambda x: torch.where(~(x > 0), x, -x),
    "bitwise_and": lambda x: ((x > 0) & (x < 1)).float(),
    "einsum": lambda x: torch.einsum("nchw,ncdw->nhd", x, x),
    "antialias": lambda x: F.interpolate(x, (5, 9), mode="bicubic", antialias=True),
    "repeats": lambda x: x.repeat_interleave((x[0, 0, :4, 0] > -9).long() * 2, 3, output_size=8),
    "repeat_interleave": lambda x: x.repeat_interleave(3, 1),
    "of_a_constant": lambda x: x + torch.arange(4).repeat_interleave(1) + torch.tensor([3.0, 1, 2, 0]).diff().sum(),
    "diff": lambda x: x.diff(dim=1),
    "var": lambda x: x.var(1),
    "prod": lambda x: x.prod(-1),
    "atan2": lambda x: torch.atan2(x, x.flip(1)),
    "tan": lambda x: (x * 0.1).tan() + x.sign(),
    "baddbmm": lambda x: torch.baddbmm(x[0], x[1][:, :, :2], x[1][:, :2], beta=0.5),
    "argsort": lambda x: x.argsort(-1),
    "sort": lambda x: x.sort(1, descending=True)[0],
    "scatter": lambda x: torch.zeros_like(x).scatter(1, x.argmax(1, keepdim=True), 1.5),
    "scatter_add": lambda x: torch.ones_like(x).scatter_add(1, x[:, :3].abs().long() % 2, x),
    "scatter_reduce": lambda x: torch.ones_like(x).scatter_reduce(1, x[:, :3].abs().long() % 2, x, "mean"),
    "cummax": lambda x: torch.cummax(x, -1)[0],
    "masked_scatter": lambda x: x.masked_scatter(x > 0, -x),
    "powers_of_integers": lambda x: (2 ** x.abs().long() + x.long() ** 3).float(),
    "shift": lambda x: ((x * 9).int() >> 1).float(),
    "truncated": lambda x: torch.div((x * 50).int(), 7, rounding_mode="trunc").float(),
    "divisor": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "addmm": lambda x: torch.addmm(x[0, 0, :1], x[0, 0], x[0, 0, :4], beta=0.5, alpha=2),
    "grouped_queries": lambda x: F.scaled_dot_product_attention(x, x[:, :2], x[:, :2], enable_gqa=True),
    "clamp_of_integers": lambda x: (x * 3).long().clamp(-0.5, 1.5),
    "sigmoid_of_integers": lambda x: torch.sigmoid((x * 3).int()),
    "any": lambda x: torch.stack([(x > 2).any(), (x > 9).any(), (x > -9).all(), x.bool().all()]).float(),
    "hsplit": lambda x: x.hsplit(2)[1],
    "tile": lambda x: x.tile(2, 1),
    "in_place": lambda x: (x * 1).tan_().add_(1),
    "adaptive_pool_3d": lambda x: F.adaptive_avg_pool3d(x, (2, 3, 1)),
    "remainder": lambda x: torch.remainder(x, 0.7),
    "diagonal": lambda x: x.diagonal(0, 2, 3),
    "list_of_results": lambda x: torch.stack(torch.meshgrid(x[0, 0, 0], x[0, 0, :, 0], indexing="xy"), 0),
    "grid_sample": lambda x: F.grid_sample(x, x[:, :3, :5, :2].tanh(), align_corners=False),
    "addcmul": lambda x: torch.addcmul(x[:, :1], x, x, value=0.5),
}


pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", OPERATORS)
def test_operator(rng, name):
    check(OPERATORS[name], torch.from_numpy(rng.normal(0, 1, (2, 8, 6, 4)).astype(np.float32)))


class InPlace(torch.nn.Module):
    """Its operators' own results are read nowhere, as in most scripts."""

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        y.scatter_(0, index, x)
        y.tan_()
        y.pow_(2.0)
        y.requires_grad_(False)
        return y


class ComparedInPlace(torch.nn.Module):
    """Truths are written as numbers."""

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        y, z = x.clone(), x.round()
        y.gt_(0.1)
        z.logical_not_()
        return y * 2.5 - z


@pytest.mark.parametrize("kind", [InPlace, ComparedInPlace])
def test_operators_in_place_as_statements(rng, kind):
    x, index = torch.from_numpy(rng.normal(0, 0.4, (4, 3)).astype(np.float32)), torch.randint(0, 4, (4, 3))
    module = from_pytorch(torch.jit.script(kind().eval()), (x, index))
    given = {"x": x.numpy(), "index": index.numpy()}
    (found,) = Interpreter(module).run({spec.name: given[spec.name] for spec in module.inputs}).values()
    np.testing.assert_allclose(found, kind()(x, index).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mask", [None, "queries", "keys", "float"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_transformer_encoder(rng, mask, norm_first):
    """PyTorch fuses its encoder layers in eval mode."""
    torch.manual_seed(3)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 24, activation="gelu", batch_first=True, norm_first=norm_first)
    layer.eval().requires_grad_(False)
    options = {}
    if mask == "queries":
        options["src_mask"] = torch.ones(5, 5).triu(1).bool()
    elif mask == "keys":
        options["src_key_padding_mask"] = torch.tensor([[False, False, False, True, True], [False] * 5])
    elif mask == "float":
        options["src_mask"] = torch.nn.Transformer.generate_square_subsequent_mask(5)
    check(lambda x: layer(x, **options), torch.from_numpy(rng.normal(0, 1, (2, 5, 16)).astype(np.float32)))


def test_multi_head_attention(rng):
    """The layer and its weights, for all heads and averaged."""
    torch.manual_seed(4)
    layer = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval().requires_grad_(False)
    x = torch.from_numpy(rng.normal(0, 1, (2, 5, 16)).astype(np.float32))
    check(lambda x: torch.cat([value.flatten() for value in layer(x, x, x)]), x)
    check(lambda x: layer(x, x, x, average_attn_weights=False)[1], x)
    check(lambda x: layer(x, x, x, need_weights=False)[0], x)


def test_random_operators_are_refused():
    module = torch.jit.trace(Wrapped(lambda x: x + torch.randn_like(x)).eval(), torch.zeros(2, 3), check_trace=False)
    with pytest.raises(UnsupportedOperatorError, match="randn_like"):
        from_pytorch(module, shapes=[(2, 3)])


# ---- arguments that are usually constants, computed ----------------------------------------------------------------

COMPUTED = {
    "weight": (lambda x, w: F.linear(x, w), (3, 8), (5, 8)),
    "bias": (lambda x, b: F.linear(x, torch.ones(5, 8), b), (3, 8), (5,)),
    "bias_of_convolution": (lambda x, b: F.conv2d(x, torch.ones(2, 3, 3, 3), b), (1, 3, 5, 5), (2,)),
    "layer_norm": (lambda x, w: F.layer_norm(x, (8,), w), (3, 8), (8,)),
    "group_norm": (lambda x, w: F.group_norm(x, 2, None, w), (1, 4, 5), (4,)),
    "instance_norm": (lambda x, w: F.instance_norm(x, weight=w), (2, 3, 4, 4), (3,)),
    "clamp": (lambda x, v: torch.clamp(x, v.min(), v.max()), (3, 4), (3,)),
    "masked_fill": (lambda x, v: x.masked_fill(x > 0, v.min()), (3, 4), (3,)),
    "pow": (lambda x, v: x.abs() ** (v.sum() * 0 + 2 + v[0].abs()), (3, 4), (3,)),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_computed_arguments(rng, name):
    """The example's values do not enter the module."""
    function, *shapes = COMPUTED[name]
    example, *others = ([torch.from_numpy(rng.normal(0, 1, s).astype(np.float32)) for s in shapes] for _ in range(3))
    module = from_pytorch(torch.jit.trace(Wrapped(function), tuple(example)), tuple(example))
    for inputs in others:
        (found,) = Interpreter(module).run([value.numpy() for value in inputs]).values()
        np.testing.assert_allclose(found, function(*inputs).numpy(), rtol=1e-5, atol=1e-5)


def test_computed_statistics_are_refused(rng):
    inputs = torch.randn(2, 3, 4, 4), torch.randn(3)
    program = torch.jit.trace(Wrapped(lambda x, w: F.batch_norm(x, torch.zeros(3), torch.ones(3), w)), inputs)
    with pytest.raises(UnsupportedOperatorError, match="computed at run time"):
        from_pytorch(program, inputs)


COMPARISONS = {
    "number": lambda x: x > 0.3,
    "less": lambda x: x <= x.mean(),
    "equal": lambda x: x == x.flip(1),
}


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_of_quantized_tensors(rng, name):
    """They compare real values."""
    x = quantized(rng, (2, 8, 6, 4), 0.03, 77)
    found, expected = run(COMPARISONS[name], x)
    assert 0 < expected.mean() < 1
    np.testing.assert_array_equal(found, expected)


def test_comparisons_of_integers_with_fractions():
    x = torch.arange(-3, 4)
    for function in (lambda x: x < 0.5, lambda x: x >= 0.5, lambda x: x == 1.5, lambda x: x > x * 0.7):
        np.testing.assert_array_equal(*run(function, x))
