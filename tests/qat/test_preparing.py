"""prepare and freeze: what becomes of a module, and that it trains."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qnn_ext import qat
from qnn_ext.errors import QuantizationError, QuantizationWarning

from .networks import Network, images, quietly_prepared, seeded, trained, without_rounding

FOLDED = {
    "convolution": (lambda: nn.Conv2d(4, 6, 3, padding=1), lambda: nn.BatchNorm2d(6, eps=0.1), (5, 4, 6, 6)),
    "no bias": (lambda: nn.Conv1d(4, 6, 3, bias=False), lambda: nn.BatchNorm1d(6, momentum=0.7), (5, 4, 9)),
    "depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4), lambda: nn.BatchNorm2d(8, affine=False), (5, 4, 6, 6)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, 2), lambda: nn.BatchNorm2d(6, momentum=None), (5, 4, 4, 4)),
    "transposed in groups": (lambda: nn.ConvTranspose1d(4, 6, 3, groups=2), lambda: nn.BatchNorm1d(6), (5, 4, 6)),
    "reflected": (
        lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), lambda: nn.BatchNorm2d(6), (5, 4, 5, 5)
    ),
    "linear": (lambda: nn.Linear(4, 6), lambda: nn.BatchNorm1d(6), (9, 4)),
    "volume": (lambda: nn.Conv3d(2, 3, 2), lambda: nn.BatchNorm3d(3), (5, 2, 3, 3, 3)),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLDED)
def test_folding_changes_nothing_but_rounding(case):
    """In training, in evaluation and frozen; statistics move alike; a channel whose scale is zero is no exception."""
    product, norm, shape = FOLDED[case]
    torch.manual_seed(0)
    module = nn.Sequential(product(), norm())
    if module[1].affine:
        nn.init.normal_(module[1].weight)
        nn.init.normal_(module[1].bias)
        module[1].weight.data[0] = 0
    x = torch.randn(shape) + 1
    free = without_rounding(quietly_prepared(module, x))
    for _ in range(3):
        torch.testing.assert_close(free(x), module(x))
    torch.testing.assert_close(free.get_submodule("1").running_var, module[1].running_var)
    expected = module.eval()(x)
    torch.testing.assert_close(free.eval()(x), expected)
    frozen = qat.freeze(free, ranges=False).train()
    torch.testing.assert_close(frozen(x), expected)
    assert not any(
        isinstance(frozen.get_submodule(n.target), nn.BatchNorm2d) for n in frozen.graph.nodes if n.op == "call_module"
    )


def test_the_weight_rounded_is_the_folded_one():
    module = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4)).eval()
    nn.init.uniform_(module[1].weight, 0.5, 2)
    nn.init.uniform_(module[1].running_var, 0.1, 3)
    prepared = qat.prepare(module, torch.randn(2, 3, 4, 4), qat.QatConfig(weight_bits=3))
    folded = module[0].weight / torch.sqrt(module[1].running_var + 1e-5).reshape(-1, 1, 1, 1)
    folded = folded * module[1].weight.reshape(-1, 1, 1, 1)
    scale = folded.abs().amax((1, 2, 3), keepdim=True) / 3
    x = torch.randn(2, 3, 4, 4)
    expected = F.conv2d(x, torch.round(folded / scale) * scale) + module[1].bias.reshape(-1, 1, 1)
    expected = expected - (
        module[1].running_mean * module[1].weight / torch.sqrt(module[1].running_var + 1e-5)
    ).reshape(-1, 1, 1)
    torch.testing.assert_close(prepared(x), expected)  # its activations are not rounded: nothing has been observed


def test_the_users_module_is_untouched():
    module = seeded()
    before, code = copy.deepcopy(module.state_dict()), repr(module)
    prepared = trained(module, images(8))
    assert repr(module) == code and module.training
    after = module.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert not torch.equal(prepared.state_dict()["stem.0.weight"], before["stem.0.weight"])
    missing, _ = module.load_state_dict(prepared.state_dict(), strict=False)
    assert not missing  # parameters have kept their names


@pytest.mark.parametrize(
    "config", [{}, {"weight_bits": 4, "activation_bits": 4}, {"weight_bits": 2, "per_channel": False}]
)
def test_training_reduces_the_loss(config):
    module, x = seeded(), images(32)
    labels = (x.mean((1, 2, 3)) > 0).long()
    prepared = qat.prepare(module, x, qat.QatConfig(averaging_constant=0.1, **config))
    optimizer, losses = torch.optim.Adam(prepared.parameters(), 1e-2), []
    for step in range(40):
        if step == 30:
            qat.freeze(prepared)
            optimizer = torch.optim.Adam(prepared.parameters(), 1e-3)
        loss = F.cross_entropy(prepared(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert max(losses[-5:]) < 0.6 * losses[0]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in prepared.parameters())


def test_freeze():
    prepared = trained(seeded(), images(8))
    x = images(8, seed=5)
    expected = prepared(x)
    qat.freeze(prepared).train()
    ranges = {name: value.clone() for name, value in prepared.named_buffers()}
    for _ in range(2):
        prepared(10 * x)
    assert all(torch.equal(value, ranges[name]) for name, value in prepared.named_buffers())
    torch.testing.assert_close(prepared.eval()(x), expected)
    qat.freeze(prepared)
    torch.testing.assert_close(prepared(x), expected)


def test_functional_dropout_follows_the_mode():
    prepared = qat.prepare(nn.Sequential(_Dropping()), torch.ones(1, 100))
    assert (prepared(torch.ones(1, 100)) == 0).any()
    assert not (prepared.eval()(torch.ones(1, 100)) == 0).any()
    assert (prepared.train()(torch.ones(1, 100)) == 0).any()


class _Dropping(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5, self.training) + 1 - 1


def test_shared_layers():
    """A layer called twice, and a batch normalization behind two convolutions, have one set of parameters."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 3, padding=1)
            self.norm = nn.BatchNorm2d(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.second(self.norm(self.first(self.norm(self.first(x))))))

    module, x = seeded(Shared), torch.randn(4, 3, 5, 5)
    free = without_rounding(qat.prepare(module, x))
    torch.testing.assert_close(free(x), module(x))
    torch.testing.assert_close(free.eval()(x), module.eval()(x))
    assert len(list(free.parameters())) == len(list(module.parameters()))


def test_bits_where_they_differ():
    overrides = {"stem": {"weight_bits": 3, "activation_bits": 6}, "head": None, "twice": {"per_channel": False}}
    with pytest.warns(QuantizationWarning, match="head: in float, as configured"):
        prepared = qat.prepare(seeded(), images(2), qat.QatConfig(io_bits=None, activation_bits=4, overrides=overrides))
    quantizers = prepared.quantizers
    assert (quantizers.stem_0_weight.scheme.bits, quantizers.depthwise_0_weight.scheme.bits) == (3, 8)
    assert (quantizers.image.scheme.bits, quantizers.stem_2.scheme.bits) == (6, 4)
    assert quantizers.twice_weight.axis is None and quantizers.stem_0_weight.axis == 0
    assert not hasattr(quantizers, "head_weight")
    assert qat.notes(prepared) == ["head: in float, as configured"]
    assert quietly_prepared(seeded(), images(2), activation_bits=4).quantizers.image.scheme.bits == 8


def test_what_stays_in_float_is_said():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.layer_norm, self.lstm = nn.BatchNorm1d(4), nn.LayerNorm(4), nn.LSTM(4, 4)
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(self.lstm(self.layer_norm(self.norm(x)))[0])

    with pytest.warns(QuantizationWarning):
        prepared = qat.prepare(Odd(), torch.randn(5, 4))
    reasons = " ".join(qat.notes(prepared))
    assert "norm: in float" in reasons and "LayerNorm stays in float" in reasons and "LSTM stays in float" in reasons
    assert [name for name, _ in prepared.quantizers.named_children()] == [
        "linear_weight",
        "getitem",
        "linear_1",
        "linear_bias",
    ]


def test_nothing_is_tied_to_a_device(monkeypatch):
    """On the meta device, where operators on tensors of two devices fail; rounding itself is not implemented there."""
    monkeypatch.setattr(torch, "fake_quantize_per_tensor_affine", lambda x, scale, zero, low, high: x * scale + zero)
    monkeypatch.setattr(
        torch, "fake_quantize_per_channel_affine", lambda x, scale, zero, axis, low, high: x * (scale + zero).sum()
    )
    prepared = trained(seeded(), images(4)).train().to("meta")
    x = images(4).to("meta")
    prepared(x).sum().backward()
    assert all(p.grad.is_meta for p in prepared.parameters())
    qat.freeze(prepared, ranges=False)(x).sum().backward()


def test_autocast():
    prepared = trained(seeded(), images(4)).train()
    with torch.autocast("cpu", torch.bfloat16):
        loss = prepared(images(4)).float().pow(2).mean()
    loss.backward()
    assert all(p.grad.isfinite().all() for p in prepared.parameters())


# ---- errors ------------------------------------------------------------------------------------------------------


class _Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x
        return -x


class _Auxiliary(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x.mean() if self.training else x.relu()


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (_Branching(), r"test_preparing.py:\d+, in `if x.sum\(\) > 0:`"),
        (_Auxiliary(), "something else in training than in evaluation, from 'mean'"),
        (nn.Linear(7, 3), "does not run on the example inputs"),
        (nn.Bilinear(4, 4, 2), "example inputs are missing for input2"),
        (torch.relu, "takes an nn.Module"),
    ],
)
def test_modules_that_cannot_be_prepared(module, message):
    with pytest.raises(QuantizationError, match=message):
        qat.prepare(module, torch.randn(2, 4))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weight_bits": 1}, "weight_bits: expected 2 to 8 bits, found 1"),
        ({"activation_bits": 9}, "activation_bits: expected 2 to 8"),
        ({"io_bits": 2.5}, "io_bits"),
        ({"formula": "cambricon"}, "no zero points"),
        ({"observer": "median"}, "expected moving_average or min_max"),
        ({"averaging_constant": 0}, "averaging_constant"),
        ({"overrides": {"stem": {"formula": "google"}}}, "overrides of 'stem': formula cannot differ"),
        ({"overrides": {"stem": {"weight_bits": 16}}}, "weight_bits"),
    ],
)
def test_configurations_that_mean_nothing(fields, message):
    with pytest.raises(QuantizationError, match=message):
        qat.QatConfig(**fields)


def test_freezing_needs_data():
    with pytest.raises(QuantizationError, match="image: its range has not been observed"):
        qat.freeze(qat.prepare(Network(), images(2)))
    with pytest.raises(QuantizationError, match=r"made by qnn_ext\.qat\.prepare"):
        qat.freeze(Network())
