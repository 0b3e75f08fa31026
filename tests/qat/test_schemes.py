"""The rounding in training against NumPy, its gradient, and the observers."""

import itertools

import numpy as np
import pytest
import torch

from qnn_ext.qat import FakeBias, FakeQuantize, Scheme

KINDS = {
    "symmetric": Scheme(8, True, False, False),
    "affine": Scheme(8, False, False, True),
    "affine weight": Scheme(8, False, False, False),
    "cambricon": Scheme(8, True, True, False),
}


def parameters(kind: str, bits: int, least: np.ndarray, greatest: np.ndarray) -> tuple:
    """Scale, zero point and limits of a range, as OneFlow's min_max_observer computes them."""
    half, one = 2 ** (bits - 1), np.float32(1)
    if kind == "symmetric":
        return np.maximum(-least, greatest) / np.float32(half - 1), 0, 1 - half, half - 1
    if kind == "cambricon":
        exponent = np.floor(np.log2(np.maximum(-least, greatest).astype(np.float64))) - (bits - 2)
        return np.exp2(exponent).astype(np.float32), 0, 1 - half, half - 1
    low = 0 if kind == "affine" else -half
    scale = (np.maximum(greatest, 0) - np.minimum(least, 0)) / np.float32(2 * half - 1) * one
    return scale, low - np.rint(np.minimum(least, 0) / scale), low, low + 2 * half - 1


@pytest.mark.one_in(4)
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize(("kind", "bits"), list(itertools.product(KINDS, range(2, 9))))
def test_equals_numpy(kind, bits, axis):
    rng = np.random.default_rng(bits)
    x = (rng.standard_normal((5, 6, 7)) * np.exp(rng.standard_normal((5, 6, 1))) + 0.3).astype(np.float32)
    scheme = Scheme(bits, KINDS[kind].symmetric, KINDS[kind].power_of_two, KINDS[kind].unsigned)
    quantizer = FakeQuantize(scheme, axis, 0 if axis is None else x.shape[axis], current=True)
    found = quantizer(torch.from_numpy(x)).numpy()
    others = tuple(i for i in range(3) if i != axis)
    least, greatest = x.min(others, keepdims=True), x.max(others, keepdims=True)
    scale, zero_point, low, high = parameters(kind, bits, least, greatest)
    q = np.clip(np.rint(x * (np.float32(1) / scale)) + zero_point, low, high)
    np.testing.assert_array_equal(found, ((q - zero_point) * scale).astype(np.float32))
    assert scheme.limits == (low, high) and len(np.unique(q)) > 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axis", [None, 1])
def test_gradient_is_straight_through_within_the_range(kind, axis):
    quantizer = FakeQuantize(KINDS[kind], axis, 2)
    quantizer(torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))
    quantizer.eval()
    x = torch.tensor([[-3.0, -0.9], [0.5, 5.0], [0.0, 0.7]], requires_grad=True)
    upstream = torch.arange(1.0, 7.0).reshape(3, 2)
    quantizer(x).backward(upstream)
    inside = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    assert torch.equal(x.grad, upstream * inside)


def test_powers_of_two_are_exact():
    largest = torch.tensor([2.0**-20, 0.25, 1.0, 1.5, 4.0, 255.0, 256.0])
    scale, zero_point = KINDS["cambricon"].parameters(-largest / 2, largest)
    assert scale.tolist() == [2.0**e for e in (-23, -8, -6, -6, -4, 1, 2)] and not zero_point.any()


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_have_a_finite_scale(kind):
    quantizer = FakeQuantize(KINDS[kind], current=True)
    assert torch.equal(quantizer(torch.zeros(4)), torch.zeros(4))
    scale, _ = quantizer.parameters_of_range()
    assert scale > 0 and torch.isfinite(1 / scale)


def test_observers():
    batches = [torch.tensor([-1.0, 2.0]), torch.tensor([-3.0, 1.0]), torch.tensor([0.0, 8.0])]
    average, extremes = FakeQuantize(KINDS["affine"], averaging_constant=0.25), FakeQuantize(KINDS["affine"])
    assert not average.observed and torch.equal(average.eval()(batches[0]), batches[0])
    average.train()
    for batch in batches:
        average(batch), extremes(batch)
    assert average.minimum.item() == 0.75 * (0.75 * -1 + 0.25 * -3) and average.maximum.item() == 0.75 * 1.75 + 2
    assert (extremes.minimum.item(), extremes.maximum.item()) == (-3, 8)
    extremes.eval()(torch.tensor([100.0]))
    extremes.train().frozen = True
    extremes(torch.tensor([100.0]))
    assert extremes.maximum.item() == 8
    restored = FakeQuantize(KINDS["affine"])
    restored.load_state_dict(extremes.state_dict())
    assert restored.observed and restored.parameters_of_range() == extremes.parameters_of_range()


def test_half_precision_is_rounded_in_float32():
    quantizer = FakeQuantize(KINDS["affine"], current=True)
    x = torch.linspace(-1, 1, 50).to(torch.bfloat16)
    assert quantizer(x).dtype == torch.bfloat16
    assert torch.equal(quantizer(x), quantizer(x.float()).to(torch.bfloat16))


def test_bias():
    data, weight = FakeQuantize(KINDS["affine"], current=True), FakeQuantize(KINDS["symmetric"], 0, 2, current=True)
    rounding, bias = FakeBias(data, weight), torch.tensor([0.1, -0.7], requires_grad=True)
    assert rounding(bias) is bias
    data(torch.tensor([0.0, 255.0])), weight(torch.tensor([[127.0], [12.7]]))
    assert rounding(bias).tolist() == [0, pytest.approx(-0.7)] and rounding.integers(bias).tolist() == [0, -7]
    rounding(bias).sum().backward()
    assert bias.grad.tolist() == [1, 1]
    too_large = torch.tensor([1e12, 1.0])
    assert torch.equal(rounding(too_large), too_large) and rounding.integers(too_large) is None
