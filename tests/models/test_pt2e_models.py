"""Programs of torch.export made elsewhere: the bundled ones, and those of ../shared/models where they are.

Their outputs equal PyTorch's to a few float32 steps unless a float sum of PyTorch's falls to the other side of a tie:
then a quantized value differs by one step, and what follows with it. How many do is asserted."""

from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from qnn_ext import Interpreter
from qnn_ext.module import QnnModule

torch = pytest.importorskip("torch")
pytest.importorskip("torchao")

from qnn_ext.frontends.pytorch import from_pytorch  # noqa: E402
from qnn_ext.frontends.pytorch.exported import load_program  # noqa: E402
from tests.frontends.pytorch.exported.networks import layer_differences  # noqa: E402

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


MOST_DIFFERENCES = {"cnn_pt2e_x86": 12, "cnn_pt2e_x86_qat": 19}  # averages of four integers fall on ties


def float_products(module: QnnModule) -> list[str]:
    """The products of the module that do not run as integers."""
    products = ("matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d")
    calls = [binding.value for block in module.ir["main"].body.blocks for binding in block.bindings]
    names = [str(call.op.name).removeprefix("relax.") for call in calls if hasattr(call, "op")]
    return [name for name in names if name in products]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", REAL)
def test_real_program_equals_pytorch(models, name):
    program = load_program(models / "pytorch" / f"{name}.pt2")
    module = from_pytorch(models / "pytorch" / f"{name}.pt2")
    with np.load(models / "pytorch" / f"{name}_io.npz") as arrays:
        x, golden = arrays["x"], arrays["y"]
    oracle, compiled = Interpreter(module)(x), qnn_ext.build(module)(x)
    different, _, largest = (0, 0, 0) if "dyn" in name else layer_differences(program, torch.from_numpy(x))
    assert different <= MOST_DIFFERENCES.get(name, 0) and largest <= 1
    if not different:
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
    module = from_pytorch(path)
    assert not float_products(module)
    engine, oracle = qnn_ext.build(module), Interpreter(module)
    with np.load(DATA / "digits_test.npz") as arrays:
        images = arrays["x"][:20, None, None].astype(np.float32) / 16
        labels = arrays["y"][:20]
    assert np.mean([engine(image).argmax() for image in images] == labels) >= 0.95
    np.testing.assert_allclose(engine(images[0]), oracle(images[0]), rtol=0, atol=1e-6)
