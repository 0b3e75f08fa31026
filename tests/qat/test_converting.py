"""convert and to_onnx: every runtime computes the integers that training has simulated."""

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import qnn_ext
from qnn_ext import Interpreter, qat
from qnn_ext.errors import QuantizationError, QuantizationWarning, UnsupportedOperatorError
from qnn_ext.qat.runtimes import with_layers
from tests.frontends.onnx.graphs import onnx, ort_saturates, run_ort

from .networks import CONFIGS, images, seeded, trained


def assert_near_ties_only(differences: list[np.ndarray], is_exact: bool, what: str) -> None:
    """Equal, or but for the few values so near to a tie that the order of float32 operations decides."""
    different, total = sum(int((d > 0).sum()) for d in differences), sum(d.size for d in differences)
    assert different <= (0 if is_exact else total // 500), what
    assert max(int(d.max()) for d in differences) <= (0 if is_exact else 1), what


@pytest.mark.one_in(3)
@pytest.mark.parametrize("config", CONFIGS)
def test_integers_are_those_of_training(config):
    """Training in evaluation mode, PyTorch, the interpreter of both imports, ONNX Runtime: each quantized tensor."""
    prepared, x = trained(seeded(), images(8), **CONFIGS[config]), images(8, seed=9)
    program = qat.convert(prepared)
    with torch.no_grad():
        simulated = prepared(x).numpy()
        np.testing.assert_allclose(program.module()(x).numpy(), simulated, rtol=0, atol=1e-6 * np.abs(simulated).max())
    layers, _ = with_layers(program, (x,))
    expected = [value.numpy() for value in layers.module()(x)]
    module, model = qnn_ext.from_pytorch(layers), qat.to_onnx(layers)
    feed = {"image": x.numpy()}
    found = {
        "interpreter": Interpreter(module).run(feed).values(),
        "from ONNX": Interpreter(qnn_ext.from_onnx(model.SerializeToString())).run(feed).values(),
        "ONNX Runtime": run_ort(model, feed),
    }
    for name, values in found.items():
        differences = [np.abs(a.astype(int) - b.astype(int)) for a, b in zip(values, expected, strict=True)]
        assert_near_ties_only(differences, is_exact="cambricon" in config, what=name)
    bits = CONFIGS[config].get("activation_bits", 8)
    assert all(len(np.unique(value)) <= 2**bits for value in expected[1:-1]) and len(np.unique(expected[-1])) > 4
    products = sum(module.script().count(f"R.qnn.{name}(") for name in ("conv2d", "dense"))
    assert products == 7 and not module.notes


@pytest.mark.parametrize(("config", "layers"), [("cambricon, 5 bits", True), ("google mixed, per channel", False)])
def test_all_runtimes_agree(config, layers):
    """With 7 bits of weights at most, ONNX Runtime saturates on no CPU, OpenVINO not with unsigned activations."""
    program = qat.convert(trained(seeded(), images(8), **CONFIGS[config]))
    found = {one.runtime: one for one in qat.agreement(program, images(8, seed=9), layers=layers)}
    assert {"PyTorch", "qnn_ext", "qnn_ext from ONNX", "ONNX Runtime, not optimized", "ONNX Runtime"} <= found.keys()
    for name, one in found.items():
        assert one.total == (sum(_sizes(program)) if layers else 40)
        if "cambricon" not in config:
            assert one.different <= 4 and one.largest <= 1
        elif name != "OpenVINO":
            assert one.different == 0, name


def _sizes(program: torch.export.ExportedProgram) -> list[int]:
    quantized = [node for node in program.graph.nodes if "quantize_per_tensor" in str(node.target).split(".")[1:2]]
    return [node.meta["val"].numel() for node in quantized]


@pytest.mark.skipif(not ort_saturates(), reason="ONNX Runtime is exact on this CPU, which has VNNI")
def test_a_runtime_that_saturates_is_reported():
    """Its unsigned activations times weights of 8 bits, both as large as they can be."""
    module = nn.Conv2d(4, 2, 3, bias=False)
    nn.init.ones_(module.weight)
    prepared = qat.prepare(module, torch.ones(1, 4, 8, 8))
    prepared(torch.ones(1, 4, 8, 8))
    found = {one.runtime: one for one in qat.agreement(qat.convert(prepared))}
    assert found["ONNX Runtime"].different == found["ONNX Runtime"].total == 72
    assert found["ONNX Runtime"].largest > 50
    assert all(found[name].different == 0 for name in ("PyTorch", "qnn_ext", "ONNX Runtime, not optimized"))


def test_the_onnx_model():
    model = qat.to_onnx(qat.convert(trained(seeded(), images(2), weight_bits=4, activation_bits=4)))
    onnx.checker.check_model(model, full_check=True)
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    weights = [value for value in stored.values() if value.dtype == np.int8 and value.ndim > 1]
    assert len(weights) == 7 and all(np.abs(value).max() == 7 for value in weights)
    kinds = [node.op_type for node in model.graph.node]
    assert "BatchNormalization" not in kinds and "Dropout" not in kinds and kinds.count("Clip") >= 6
    assert [value.name for value in model.graph.input] == ["image"]
    assert not any(node.doc_string for node in model.graph.node)


def test_other_shapes_and_files(tmp_path):
    prepared = trained(seeded(), images(8))
    before = copy.deepcopy(prepared.state_dict())
    program = qat.convert(prepared, images(1))
    qat.to_onnx(program, tmp_path / "network.onnx")
    torch.export.save(program, tmp_path / "network.pt2")
    assert qnn_ext.from_onnx(tmp_path / "network.onnx").inputs[0].shape == (1, 3, 16, 16)
    after = prepared.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    batch = torch.export.Dim("batch", min=2)
    open_batch = qat.convert(prepared, images(4), dynamic_shapes=({0: batch},))
    x = images(3, seed=4)
    module = qnn_ext.from_pytorch(open_batch, shapes={"image": (3, 3, 16, 16)})
    np.testing.assert_array_equal(Interpreter(module)(x.numpy()), open_batch.module()(x).detach().numpy())


def test_outputs_in_float():
    program = qat.convert(trained(seeded(), images(4), io_bits=None, weight_bits=7))
    x = images(4, seed=3)
    with torch.no_grad():
        expected = program.module()(x).numpy()
    np.testing.assert_allclose(Interpreter(qnn_ext.from_pytorch(program))(x.numpy()), expected, rtol=1e-5, atol=1e-6)
    assert len(np.unique(expected)) == expected.size


def test_a_bias_beyond_int32_stays_in_float():
    module = nn.Conv2d(1, 1, 1)
    module.weight.data.fill_(1e-6)
    module.bias.data.fill_(1e5)
    prepared = qat.prepare(module, torch.randn(2, 1, 4, 4))
    prepared(torch.randn(2, 1, 4, 4))
    with pytest.warns(QuantizationWarning, match="too large for int32"):
        program = qat.convert(prepared)
    assert not any(value.dtype == torch.int32 and value.ndim and value.any() for value in program.buffers())


def test_what_changes_its_operand_is_kept():
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            nn.functional.relu(x, inplace=True)
            return self.second(x)

    prepared, x = trained(seeded(InPlace), torch.randn(8, 4)), torch.randn(8, 4)
    program = qat.convert(prepared)
    with torch.no_grad():
        expected = program.module()(x).numpy()
        np.testing.assert_allclose(expected, prepared(x).numpy(), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(Interpreter(qnn_ext.from_pytorch(program))(x.numpy()), expected)


def test_operators_that_onnx_lacks_are_named():
    class Bessel(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.bessel_j0(x) + x

    with pytest.raises(UnsupportedOperatorError, match="bessel_j0"):
        qat.to_onnx(qat.convert(trained(nn.Sequential(nn.Linear(3, 3), Bessel()), torch.randn(2, 3), steps=1)))


def test_converting_needs_data():
    prepared = qat.prepare(seeded(), images(2))
    with pytest.raises(QuantizationError, match="image: its range has not been observed; run the module"):
        qat.convert(prepared)
    prepared(images(2) * torch.nan)
    with pytest.raises(QuantizationError, match="image: its values are not finite"):
        qat.convert(prepared)


def test_what_stays_in_float_computes_in_float():
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.second = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(self.second(torch.tanh(self.norm(self.first(x)))), -1)

    with pytest.warns(QuantizationWarning, match="norm: LayerNorm stays in float"):
        prepared = trained(seeded(Mixed), torch.randn(8, 6))
    x = torch.randn(8, 6)
    program = qat.convert(prepared)
    with torch.no_grad():
        expected = program.module()(x)
        torch.testing.assert_close(expected, prepared(x))
    module = qnn_ext.from_pytorch(program)
    assert module.script().count("R.qnn.dense(") == 2
    np.testing.assert_allclose(Interpreter(module)(x.numpy()), expected.numpy(), rtol=1e-5, atol=1e-6)


def test_importing_the_package_does_not_import_torch():
    subprocess.run([sys.executable, "-c", "import sys, qnn_ext; assert 'torch' not in sys.modules"], check=True)
