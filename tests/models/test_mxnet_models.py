"""Models quantized by MXNet, bundled and beside the repository: import, build, run, bit for bit as MXNet."""

from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from qnn_ext.interpreter import Interpreter

DATA = Path(qnn_ext.__file__).parent / "data"
TINY = [f"tinyfused_{form}" for form in ("int8_naive_smart_te", "auto_naive_smart_te", "auto_naive_smart_ch",
                                         "auto_entropy_smart_te")]  # fmt: skip


def load(folder: Path, name: str, shape: tuple[int, ...], sum_mode: str = "mxnet") -> qnn_ext.QnnModule:
    return qnn_ext.from_mxnet(folder / f"{name}-symbol.json", folder / f"{name}-0000.params", {"data": shape}, sum_mode)


def recorded(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return {key: arrays[key] for key in arrays.files}


def noise(reference: np.ndarray, values: np.ndarray) -> float:
    """Signal over noise in dB."""
    return float(10 * np.log10((reference**2).sum() / ((reference - values) ** 2).sum()))


@pytest.mark.parametrize("name", [*TINY, "mobilenet_v2_0_25_qnet_te"])
def test_models(models, name):
    arrays = recorded(models / "mxnet" / f"{name}_io.npz")
    module = load(models / "mxnet", name, arrays["x"].shape)
    np.testing.assert_array_equal(Interpreter(module)(arrays["x"]), arrays["y"])
    np.testing.assert_array_equal(qnn_ext.build(module, num_threads=1)(arrays["x"]), arrays["y"])
    assert not module.notes


@pytest.mark.parametrize("name", TINY)
def test_other_batch_sizes(models, name):
    arrays = recorded(models / "mxnet" / f"{name}_io.npz")
    module = load(models / "mxnet", name, (1, *arrays["x"].shape[1:]))
    outputs = [Interpreter(module)(image[None])[0] for image in arrays["x"]]
    np.testing.assert_array_equal(np.stack(outputs), arrays["y"])


def test_bundled_digits_equal_mxnet():
    arrays = recorded(DATA / "digits_mxnet_io.npz")
    module = load(DATA, "digits_mxnet", arrays["x"].shape[1:])
    engine, interpreter = qnn_ext.build(module, num_threads=1), Interpreter(module)
    for image, answer in zip(arrays["x"], arrays["y"], strict=True):
        np.testing.assert_array_equal(engine(image), answer)
        np.testing.assert_array_equal(interpreter(image), answer)


def test_bundled_digits_intended_sum():
    """The residual sum's operand is int8 and its result uint8: as meant, it is far nearer to the float model."""
    arrays = recorded(DATA / "digits_mxnet_io.npz")
    interpreter = Interpreter(load(DATA, "digits_mxnet", arrays["x"].shape[1:], "intended"))
    outputs = np.stack([interpreter(image) for image in arrays["x"]])
    assert noise(arrays["y_fp32"], outputs) > noise(arrays["y_fp32"], arrays["y"]) + 6
