"""Models on emulated microcontrollers equal LiteRT's reference kernels: bundled ones everywhere, the real ones of
../shared/models where they are."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from tests.arm.test_models import digits
from tests.cases.bundled import module_of
from tests.micro import boards

DATA = Path(qnn_ext.__file__).parent / "data"
SHARED = Path(__file__).parents[3] / "shared" / "models" / "tflite"
BUNDLED = ("digits_cnn_int8", "digits_cnn_uint8", "digits_cnn_int16x8", "digits_lstm_int8", "digits_cnn_dynamic")
REAL = (
    "kws_ref_model",
    "vww_96_int8",
    "pretrainedResnet_quant",
    "ad01_int8",
    "micro_speech_quantized",
    "keras_lstm_mnist_ptq",
    "mobilenet_v1_0.25_128_quant",
)
INTEGER = ("digits_cnn_int8", "kws_ref_model", "micro_speech_quantized")  # whose inputs and outputs are integers, too
ELF_CODE, ELF_PURE_CODE = 0x4, 0x20000000  # flags of sections, the latter of ARM's
LARGE = ("mobilenet_v1_0.25_128_quant",)  # more than the emulated M55's flash takes


def check(
    module: qnn_ext.QnnModule, board: str, calls: list[list[np.ndarray]], expected: list[list[np.ndarray]]
) -> None:
    """The outputs of all calls, one after the other, on an emulated board."""
    boards.require()
    with boards.scratch() as folder:
        found = boards.firmware(module, boards.BOARDS[board], Path(folder), len(calls)).run_all(calls)
    for outputs, wanted in zip(found, expected, strict=True):
        for output, array in zip(outputs, wanted, strict=True):
            np.testing.assert_array_equal(output, array)


@pytest.mark.sampled("board")
@pytest.mark.parametrize("board", ["m4", "m0plus", "m55", "m7", "m3", "m33"])
@pytest.mark.parametrize("name", BUNDLED)
def test_bundled(name, board):
    module = qnn_ext.from_tflite(DATA / f"{name}.tflite", numerics="tflite")
    rng = np.random.default_rng(len(name))
    calls = [[_random(rng, spec) for spec in module.inputs] for _ in range(3)]
    oracle = qnn_ext.Interpreter(module)
    expected = [_listed(oracle(*inputs)) for inputs in calls]
    check(module, board, calls, expected)


@pytest.mark.sampled("board")
@pytest.mark.parametrize("board", ["m55", "m4", "m0plus"])
def test_transformer(board):
    """Long functions with predicated vectors in loops, of which LLVM dies on Helium if constants are among them."""
    module = module_of("digits_transformer_qdq.onnx")
    (image,) = digits(module, 1)
    check(module, board, [[image]], [_listed(qnn_ext.Interpreter(module)(image))])


@pytest.mark.parametrize("core", ["cortex-m52", "cortex-m55", "cortex-m85"])
def test_no_constants_among_heliums_instructions(core, tmp_path):
    module = qnn_ext.from_tflite(DATA / "digits_cnn_dynamic.tflite", numerics="tflite")
    (one,) = qnn_ext.build(module, core, code=False).export_c(tmp_path).library.compiled
    code = [section for section in one.object.sections if section.flags & ELF_CODE and section.size]
    assert code and all(section.flags & ELF_PURE_CODE for section in code)


@pytest.mark.sampled("board")
@pytest.mark.parametrize("board", ["m4", "m0plus", "m55", "m7"])
@pytest.mark.parametrize("name", REAL)
def test_real(name, board):
    if not SHARED.is_dir():
        pytest.skip("../shared/models/tflite is not there")
    if name in LARGE and board == "m55":
        pytest.skip("the emulated board has less flash than the model takes")
    module = qnn_ext.from_tflite(SHARED / f"{name}.tflite", numerics="tflite")
    with np.load(SHARED / f"{name}.npz") as arrays:
        inputs = [arrays[f"input0_{index}"] for index in range(len(module.inputs))]
        expected = [arrays[f"ref0_{index}"] for index in range(len(module.outputs))]
    check(module, board, [inputs], [expected])


@pytest.mark.sampled("board")
@pytest.mark.parametrize("board", ["m3", "m0plus"])
@pytest.mark.parametrize("name", INTEGER)
def test_integers_alone(name, board):
    """A core without an FPU runs no library function of floating point, and none of C++'s."""
    boards.require()
    path = DATA / f"{name}.tflite" if name in BUNDLED else SHARED / f"{name}.tflite"
    if not path.exists():
        pytest.skip("../shared/models/tflite is not there")
    module = qnn_ext.from_tflite(path, numerics="tflite")
    with boards.scratch() as folder:
        symbols = boards.firmware(module, boards.BOARDS[board], Path(folder)).symbols()
    floats = [name for name in symbols if name.startswith(("__aeabi_f", "__aeabi_d", "__aeabi_i2", "__aeabi_ui2"))]
    assert [name for name in floats if "div" not in name] == []
    assert not any("unwind" in name.lower() for name in symbols), "tables for exceptions brought the unwinder"


@pytest.mark.parametrize("board", ["m0plus", "m4", "m55"])
def test_make(board):
    """The Makefile compiles for the core as well: in Thumb code, and with its calling convention."""
    boards.require()
    module = qnn_ext.from_tflite(DATA / "digits_cnn_int8.tflite", numerics="tflite")
    image = _random(np.random.default_rng(0), module.inputs[0])
    with boards.scratch() as folder:
        firmware = boards.firmware(module, boards.BOARDS[board], Path(folder))
        subprocess.run(["make", "-B", "libmodel.a"], cwd=folder, check=True, capture_output=True)
        firmware.link()
        (found,) = firmware.run(image)
    np.testing.assert_array_equal(found, qnn_ext.Interpreter(module)(image))


def _random(rng: np.random.Generator, spec: qnn_ext.TensorSpec) -> np.ndarray:
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "f":
        return rng.random(spec.shape, np.float32)
    return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, spec.shape).astype(dtype)


def _listed(outputs: np.ndarray | list[np.ndarray]) -> list[np.ndarray]:
    return outputs if isinstance(outputs, list) else [outputs]
