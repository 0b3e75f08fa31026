"""Whole TorchScript models: equal floats behind the last dequantize."""

import numpy as np
import pytest
import torch

import qnn_ext
from qnn_ext.frontends.pytorch import from_pytorch
from tests.frontends.pytorch.torchscript.oracle import require_exact

from . import torch_networks as networks

# file -> whether it is built too; every kernel in the others occurs in these
FILES = {
    "cnn_eager_fbgemm": False,
    "cnn_eager_x86": True,
    "cnn_eager_qnnpack": False,
    "cnn_fx_x86": False,
    "cnn_fx_qnnpack": True,
    "enc_fx_x86_sdpa0": True,
    "lstm_dynamic_x86": False,
    "mobilenet_v2_eager_fbgemm": False,
}
ENGINES = [
    name for name in ("fbgemm", "x86", "onednn", "qnnpack") if name in torch.backends.quantized.supported_engines
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", FILES)
def test_files(models, name):
    """PyTorch's answers, bit for bit; the LSTM's too, although its gates are float."""
    path = models / "pytorch" / f"{name}.pt"
    with np.load(path.with_name(f"{name}_io.npz")) as golden:
        x, expected = golden["x"], golden["y"]
    engine = next(engine for engine in ("fbgemm", "qnnpack", "x86") if engine in name)
    module = from_pytorch(path, (x,), engine=engine)
    result = qnn_ext.Interpreter(module)(x)
    np.testing.assert_array_equal(result, expected)
    if FILES[name]:
        np.testing.assert_array_equal(qnn_ext.build(module, num_threads=1)(x), expected)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("network", "mode"), [("resnet18", "fx"), ("mobilenet_v2", "eager")])
def test_networks(engine, mode, network):
    """Slim versions; oneDNN orders the roundings of its matrix product by shape, one step of the output."""
    if engine == "onednn":  # the others quantize activations to 7 bits
        require_exact(engine)
    size = 32
    relu = torch.nn.ReLU if engine == "qnnpack" else torch.nn.ReLU6
    build = {
        "resnet18": lambda: networks.resnet18(16, 10),
        "mobilenet_v2": lambda: networks.mobilenet_v2(0.25, 10, relu),
    }
    model = networks.sane(build[network]())
    quantize = networks.quantize_eager if mode == "eager" else networks.quantize_fx
    script = quantize(model, engine, size)
    (image,) = networks.images(1, size, seed=7)
    module = from_pytorch(script, (image,), engine=engine)
    assert not module.notes
    result = qnn_ext.Interpreter(module)(image.numpy())
    expected = script(image).detach().numpy()
    if engine == "onednn":
        step = np.diff(np.unique(expected)).min(initial=np.inf)
        assert np.abs(result - expected).max() <= step * 1.001
    else:
        np.testing.assert_array_equal(result, expected)
