"""torch.compile with qnn_ext as its backend, against PyTorch and against `from_pytorch` of the exported program."""

from __future__ import annotations

import warnings
from importlib.metadata import entry_points

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import qnn_ext  # noqa: E402
from qnn_ext import InputError, QnnError, UnsupportedOperatorError  # noqa: E402
from qnn_ext.compat import torch_compile  # noqa: E402
from qnn_ext.compat.torch_compile import FallbackWarning, backend  # noqa: E402


class Mlp(torch.nn.Module):
    """Features and the number of rows: parameters, buffers, and an output that is no tensor."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.dense, self.norm = torch.nn.Linear(width, 3), torch.nn.BatchNorm1d(3)
        self.register_buffer("offset", torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x):
        return self.norm(self.dense(x)).tanh() + self.offset, x.shape[0]


@pytest.fixture(autouse=True)
def fresh():
    """Nothing compiled before, and the same weights."""
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture
def built(monkeypatch) -> list:
    """The modules that the backend builds."""
    modules: list = []

    def recording(module, **options):
        modules.append(module)
        return qnn_ext.build(module, **options)

    monkeypatch.setattr(torch_compile, "build", recording)
    return modules


def test_entry_point():
    (found,) = entry_points(group="torch_dynamo_backends", name="qnn_ext")
    assert found.load() is backend, "the installed package is another one: pip install -e ."
    assert "qnn_ext" in torch._dynamo.list_backends()
    with torch.no_grad():
        assert torch.compile(torch.neg, backend="qnn_ext")(torch.ones(2)).tolist() == [-1, -1]


@pytest.mark.parametrize("quantizer", ["x86", "xnnpack"])
def test_pt2e_gives_the_integers_of_its_exported_program(quantizer, built):
    networks = pytest.importorskip("tests.frontends.pytorch.exported.networks", reason="needs torchao")
    data = networks.images(4)
    quantized = networks.pt2e(networks.seeded(networks.Cnn), data, networks.QUANTIZERS[quantizer]())
    model, x = quantized.module(), networks.images(1, seed=9)[0]
    with torch.inference_mode():
        found, eager = torch.compile(model, backend=backend)(x), model(x)
    expected = qnn_ext.build(qnn_ext.from_pytorch(quantized))(x.numpy())
    assert np.array_equal(found.numpy(), expected)
    assert found.std() > 0.1 and (found - eager).abs().max() < 0.2
    (module,) = built
    assert len(module.inputs) == 1 and module.script().count("R.qnn.conv2d") == 7


def test_torchao_gives_the_integers_of_its_exported_program():
    quantization = pytest.importorskip("torchao.quantization")
    model, x = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)), torch.randn(4, 64)
    quantization.quantize_(model.eval(), quantization.Int8DynamicActivationInt8WeightConfig())
    with torch.inference_mode():
        found = torch.compile(model, backend=backend)(x).numpy()
    with torch.no_grad():
        module = qnn_ext.from_pytorch(torch.export.export(model, (x,)))
    assert np.array_equal(found, qnn_ext.build(module)(x.numpy())) and found.std() > 0.01


def test_float_module_at_new_shapes(built):
    model = Mlp().eval()
    compiled = torch.compile(model, backend=backend, options={"num_threads": 1})
    for rows in (2, 3, 5, 3):
        x = torch.randn(rows, 4)
        with torch.no_grad():
            (found, count), (expected, _) = compiled(x), model(x)
        torch.testing.assert_close(found, expected)
        assert count == rows
    # Dynamo makes a graph for the first shape and another for all others
    assert [module.inputs[0].shape for module in built] == [(2, 4), (3, 4), (5, 4)]


def test_bfloat16():
    """Tensors have the module's own dtype, whatever the engine computes in."""
    model, x = torch.nn.Linear(32, 8).to(torch.bfloat16).eval(), torch.randn(3, 32).to(torch.bfloat16)
    with torch.inference_mode():
        found, expected = torch.compile(model, backend=backend)(x), model(x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=1e-3)


def test_results_are_the_callers_own():
    compiled = torch.compile(lambda x: (x.T, [x * 2, x.sum()]), backend=backend)
    with torch.inference_mode():
        first, [double, _] = compiled(torch.ones(2, 3))
        other, [_, total] = compiled(torch.zeros(2, 3))
    assert first.tolist() == [[1, 1]] * 3 and double.tolist() == [[2] * 3] * 2
    assert not other.any() and total == 0 and total.shape == ()


def test_changed_weights_are_seen():
    model, x = Mlp().eval(), torch.randn(2, 4)
    compiled = torch.compile(model, backend=backend)

    def check():
        with torch.no_grad():
            torch.testing.assert_close(compiled(x)[0], model(x)[0])

    check()
    with torch.no_grad():
        model.dense.weight.add_(1)
    check()
    model.load_state_dict(Mlp().state_dict())
    check()
    model.dense.bias.data = torch.ones(3)
    check()
    model.dense.weight = torch.nn.Parameter(torch.zeros(3, 4))
    check()


def test_modules_of_one_class_keep_their_weights():
    x, models = torch.randn(2, 4), [Mlp().eval(), Mlp().eval()]
    compiled = [torch.compile(model, backend=backend) for model in models]
    with torch.no_grad():
        for which in (0, 1, 0, 1):
            torch.testing.assert_close(compiled[which](x)[0], models[which](x)[0])
        assert not torch.equal(compiled[0](x)[0], compiled[1](x)[0])


def test_graph_break():
    def function(x):
        return x + 1 if x.sum() > 0 else x - 1

    compiled = torch.compile(function, backend=backend)
    with torch.no_grad():
        assert compiled(torch.ones(2)).tolist() == [2, 2]
        assert compiled(-torch.ones(2)).tolist() == [-2, -2]


def test_training_is_refused():
    compiled = torch.compile(Mlp().eval(), backend=backend, options={"fallback": True})
    with pytest.raises(QnnError, match=r"computes no gradients: call the model within torch\.no_grad"):
        compiled(torch.randn(2, 4))


def test_gradients_may_be_off_inside():
    @torch.no_grad()
    def function(x):
        return x * 2

    assert torch.compile(function, backend=backend)(torch.ones(2, requires_grad=True)).tolist() == [2, 2]


REFUSED = {
    "operator": (lambda x: torch.linalg.svdvals(x), UnsupportedOperatorError, "operator aten._linalg_svd.default is"),
    "random": (lambda x: x * torch.rand(2), UnsupportedOperatorError, "operator aten.rand.default is not supported"),
    "in place": (lambda x: x.add_(1) * 2, UnsupportedOperatorError, "changes its input 'inputs_0' in place"),
    "dtype": (lambda x: x.to(torch.float8_e4m3fn).float() * 2, UnsupportedOperatorError, "float8"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    function, error, message = REFUSED[name]
    with torch.inference_mode(), pytest.raises(error, match=message):
        torch.compile(function, backend=backend)(torch.ones(2, 2))


def test_statistics_of_a_training_module_are_refused():
    with (
        torch.no_grad(),
        pytest.raises(UnsupportedOperatorError, match=r"in training mode .*; export the model in eval mode"),
    ):
        torch.compile(Mlp(), backend=backend)(torch.randn(2, 4))


def test_fallback():
    compiled, x = torch.compile(REFUSED["in place"][0], backend=backend, options={"fallback": True}), torch.ones(2)
    with torch.inference_mode():
        with pytest.warns(FallbackWarning, match="changes its input 'inputs_0' in place"):
            assert compiled(x).tolist() == [4, 4]
        assert x.tolist() == [2, 2]
        with warnings.catch_warnings():
            warnings.simplefilter("error", FallbackWarning)  # said once
            assert compiled(x).tolist() == [6, 6]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"mode": "max-autotune"}, "mode='max-autotune' is for Inductor"), ({"options": {"fast": 1}}, "no option 'fast'")],
)
def test_arguments_without_a_meaning(arguments, message):
    with torch.inference_mode(), pytest.raises(QnnError, match=message):
        torch.compile(torch.neg, backend=backend, **arguments)(torch.ones(2))


def test_other_devices():
    with torch.inference_mode(), pytest.raises(InputError, match="found one on meta"):
        torch.compile(torch.neg, backend=backend)(torch.ones(2, device="meta"))
