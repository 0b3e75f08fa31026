"""Programs of torch.export made elsewhere: the bundled ones, and those of ../shared/models where they are.

Their outputs equal PyTorch's to a few float32 steps; the layers are compared in
tests/frontends/pytorch/exported."""

import os
from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from qnn_ext import Interpreter
from qnn_ext.module import QnnModule

os.environ.setdefault("OMP_NUM_THREADS", "1")
pytest.importorskip("torch")

DATA = Path(qnn_ext.__file__).parent / "data"
BUNDLED = ("digits_cnn_pt2e_x86", "digits_cnn_pt2e_xnnpack")
REAL = (
    "bert_tiny_pt2e_x86",
    "cnn_pt2e_x86",
    "cnn_pt2e_x86_qat",
    "cnn_pt2e_xnn",
    "enc_pt2e_x86",
    "enc_pt2e_x86_dyn",
    "enc_pt2e_xnn",
)
QUANTIZED_ATTENTION = ("enc_pt2e_xnn",)


def load(path: Path) -> QnnModule:
    from qnn_ext.frontends.pytorch import from_pytorch

    return from_pytorch(path)


def float_products(module: QnnModule) -> list[str]:
    """The products of the module that do not run as integers."""
    products = ("matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d")
    calls = [binding.value for block in module.ir["main"].body.blocks for binding in block.bindings]
    names = [str(call.op.name).removeprefix("relax.") for call in calls if hasattr(call, "op")]
    return [name for name in names if name in products]


@pytest.mark.parametrize("name", REAL)
def test_real_program_equals_pytorch(models, name):
    module = load(models / "pytorch" / f"{name}.pt2")
    with np.load(models / "pytorch" / f"{name}_io.npz") as arrays:
        x, golden = arrays["x"], arrays["y"]
    oracle, compiled = Interpreter(module)(x), qnn_ext.build(module)(x)
    np.testing.assert_allclose(oracle, golden, rtol=0, atol=2e-6)
    np.testing.assert_allclose(compiled, oracle, rtol=0, atol=2e-6)
    if "xnn" in name:
        np.testing.assert_array_equal(oracle, golden)
        np.testing.assert_array_equal(compiled, golden)
    attention = [product for product in float_products(module) if product == "matmul"]
    assert float_products(module) == attention, "convolutions run as integers"
    assert name not in QUANTIZED_ATTENTION or len(attention) <= 1


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_program(name):
    path = DATA / f"{name}.pt2"
    if not path.exists():
        pytest.skip(f"{name} is not bundled")
    module = load(path)
    assert not float_products(module)
    engine, oracle = qnn_ext.build(module), Interpreter(module)
    with np.load(DATA / "digits_test.npz") as arrays:
        images = arrays["x"][:20, None, None].astype(np.float32) / 16
        labels = arrays["y"][:20]
    assert np.mean([engine(image).argmax() for image in images] == labels) >= 0.95
    np.testing.assert_allclose(engine(images[0]), oracle(images[0]), rtol=0, atol=1e-6)
