"""Complex numbers in torch.export's programs and in TorchScript: spectra there and back, and each rule."""

from __future__ import annotations

import numpy as np
import pytest

import qnn_ext
from qnn_ext import UnsupportedOperatorError

torch = pytest.importorskip("torch")

WINDOW = torch.hann_window(24)
PHASES = torch.polar(torch.ones(6, 4), torch.arange(24.0).reshape(6, 4))


class Network(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def imported(function, inputs, way):
    network = Network(function).eval()
    if way == "export":
        return qnn_ext.from_pytorch(torch.export.export(network, inputs))
    return qnn_ext.from_pytorch(torch.jit.trace(network, inputs, check_trace=False), inputs)


def spectrum(x, **options):
    return torch.stft(x, 32, 8, 24, WINDOW, return_complex=True, **options)


def signal(spectrum, **options):
    return torch.istft(spectrum, 32, 8, 24, WINDOW, **options)


def masked(x):
    found = spectrum(x)
    return signal(found * torch.complex(torch.tanh(found.real), torch.sigmoid(found.imag)), length=200)


def turned(x):
    """The rotary position embedding of language models."""
    pairs = torch.view_as_complex(x.reshape(2, 6, 4, 2))
    return torch.view_as_real(pairs * PHASES).flatten(2)


SIGNALS = {
    "magnitudes": lambda x: spectrum(x).abs(),
    "power": lambda x: spectrum(x, center=False, onesided=False, normalized=True).abs().pow(2),
    "padded with zeros": lambda x: torch.view_as_real(spectrum(x, pad_mode="constant")),
    "there and back": lambda x: signal(spectrum(x)),
    "a mask": lambda x: signal(spectrum(x) * spectrum(x).abs().sigmoid()),
    "a complex mask": masked,
    "phases": lambda x: signal(torch.polar(spectrum(x).abs().sqrt(), spectrum(x).angle())),
    "a convolution": lambda x: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(x.flip(-1)), n=200),
    "a shift": lambda x: torch.fft.fftshift(torch.fft.fft2(x.reshape(2, 10, 20))).real,
}


@pytest.mark.parametrize("way", ["export", "trace"])
@pytest.mark.parametrize("name", SIGNALS)
def test_signals(name, way):
    x = torch.randn(2, 200, generator=torch.Generator().manual_seed(0))
    expected = SIGNALS[name](x).numpy()
    module = imported(SIGNALS[name], (x,), way)
    for runner in (qnn_ext.Interpreter(module), qnn_ext.build(module, num_threads=1)):
        np.testing.assert_allclose(runner(x.numpy()), expected, rtol=1e-4, atol=2e-5 * np.abs(expected).max())


def both(z):
    """Real and imaginary parts."""
    return torch.view_as_real(z.resolve_conj())


RULES = {
    "rotary": lambda z, y, x: turned(torch.cat([x.reshape(-1), x.reshape(-1)])[:96].reshape(2, 6, 8)),
    "sum of complex and real": lambda z, y, x: both(z + x - y),
    "sum with a factor": lambda z, y, x: both(torch.sub(z, y, alpha=3)),
    "number minus": lambda z, y, x: both(2 - z),
    "dtypes": lambda z, y, x: both((z.to(torch.complex128) + x.to(torch.complex64)).to(torch.complex64)),
    "numbers": lambda z, y, x: both((z + 1.5) * (2 - 3j) * 1j),
    "product with reals": lambda z, y, x: both(x * z),
    "quotients": lambda z, y, x: both(z / y + z / x + x / y + 1 / z),
    "reciprocal": lambda z, y, x: both(z.reciprocal()),
    "conjugate": lambda z, y, x: both(z.conj() * y),
    "matrices": lambda z, y, x: both(z @ y.transpose(1, 2)),
    "angle": lambda z, y, x: z.angle(),
    "sign": lambda z, y, x: both(torch.sgn(z)),
    "exponential": lambda z, y, x: both(torch.exp(z)),
    "square": lambda z, y, x: both(z**2 + y.pow(3)),
    "moves": lambda z, y, x: both(z.permute(2, 0, 1).flip(0).reshape(5, 12).transpose(0, 1)[1:4].unsqueeze(0)),
    "mean and sums": lambda z, y, x: both(z.mean(1) + y.sum(1) + z.cumsum(1)[:, 0]),
    "joins": lambda z, y, x: both(torch.stack([torch.cat([z, x, y], 2)[..., 2:9], torch.cat([y, z], 2)[..., :7]])),
    "split": lambda z, y, x: both(torch.split(z, [2, 3], 2)[1] * torch.chunk(y, 2, 2)[0]),
    "padding": lambda z, y, x: both(torch.nn.functional.pad(z, (1, 2))),
    "choice": lambda z, y, x: both(torch.where(x > 0, z, y)),
    "rows": lambda z, y, x: both(z[:, [3, 0, 1]] + z.index_select(1, torch.tensor([2, 2, 0]))),
}


@pytest.mark.parametrize("way", ["export", "trace"])
@pytest.mark.parametrize("name", RULES)
def test_rules(name, way):
    inputs = tuple(torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(i)) for i in range(5))

    def function(a, b, c, d, x):
        return RULES[name](torch.complex(a, b), torch.complex(c, d), x)

    module = imported(function, inputs, way)
    found = qnn_ext.Interpreter(module)(*(one.numpy() for one in inputs))
    np.testing.assert_allclose(found, function(*inputs).numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: torch.view_as_real(torch.fft.fft(x).tan()), "not supported for complex numbers|is not supported"),
        (lambda x: torch.fft.fft(x), "return torch.view_as_real of it"),
        (lambda x: torch.view_as_real(torch.fft.fft(x) ** 0.5), "no integer from 1 to 8"),
    ],
)
@pytest.mark.parametrize("way", ["export", "trace"])
def test_refusals(function, message, way):
    with pytest.raises(UnsupportedOperatorError, match=message):
        imported(function, (torch.randn(3, 8),), way)


def test_changes_in_place_are_refused():
    def function(x):
        found = torch.fft.fft(x)
        found[0] = 0
        return found.abs()

    with pytest.raises(UnsupportedOperatorError, match="in place"):
        imported(function, (torch.randn(3, 8),), "trace")
