"""Whole models on emulated ARM CPUs equal the interpreter: the bundled ones, and small ones around a kernel of ARM."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext import op
from qnn_ext.interpreter import interpret
from qnn_ext.op.base import constant
from tests.arm.engines import emulated
from tests.cpus import cpu_target
from tests.program.small import small_module
from tests.topi_int8.test_lookup import DTYPES, every_byte, table

DATA = Path(qnn_ext.__file__).parent / "data"
CPUS = ("asimd", "dotprod", "armv7")
MODELS = (
    "digits_cnn_int8.tflite",
    "digits_cnn_uint8.tflite",
    "digits_cnn_int16x8.tflite",
    "digits_lstm_int8.tflite",
    "digits_cnn_qdq.onnx",
    "digits_cnn_qoperator.onnx",
    "digits_cnn_pt2e_xnnpack.pt2",
    "digits_transformer_qdq.onnx",
)


def load(name: str) -> qnn_ext.QnnModule:
    read = {".tflite": qnn_ext.from_tflite, ".onnx": qnn_ext.from_onnx, ".pt2": qnn_ext.from_pytorch}
    return read[Path(name).suffix](DATA / name)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", MODELS)
def test_bundled(name, cpu, rng):
    module = load(name)
    engine, oracle = emulated(qnn_ext.build(module, cpu_target(cpu, 1))), qnn_ext.Interpreter(module)
    for _ in range(2):
        inputs = [_values(rng, spec) for spec in module.inputs]
        np.testing.assert_array_equal(engine(*inputs), oracle(*inputs))


def _values(rng: np.random.Generator, spec) -> np.ndarray:
    if spec.dtype.startswith("float"):
        return rng.standard_normal(spec.shape).astype(spec.dtype)
    info = np.iinfo(spec.dtype)
    return rng.integers(info.min, info.max + 1, spec.shape).astype(spec.dtype)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("rounding", ["TFLITE", "TONEAREST_EVEN"])
@pytest.mark.parametrize("channels", [16, 20, 3])
def test_depthwise_with_bias(channels, rounding, cpu, rng):
    """The accumulators start at the bias, also in channels that fill up a vector; scales shift both ways."""
    weight, bias = rng.integers(-127, 128, (channels, 3, 3, 1)).astype(np.int8), rng.integers(-(2**20), 2**20, channels)
    scale = (2.0 ** rng.uniform(-14, 2, channels)).astype(np.float32)

    def build(builder, params):
        acc = op.conv2d(*params, weight, -3, 0, 1.0, 1.0, padding=(1, 0, 1, 2), groups=channels)
        biased = builder.emit(relax.op.add(builder.emit(acc), constant(bias.astype(np.int32))))
        return [op.requantize(biased, scale, 0, 1.0, 7, -1, out_dtype="int8", rounding=rounding)]

    module = small_module(build, [((2, 7, 9, channels), "int8")])
    x = rng.integers(-128, 128, (2, 7, 9, channels)).astype(np.int8)
    engine = emulated(qnn_ext.build(module, cpu_target(cpu, 1)))
    np.testing.assert_array_equal(engine(x), interpret(module.ir, [x])[0])


@pytest.mark.parametrize("shape", [(4, 64), (2, 8, 48), (3, 24), (3, 21)])
@pytest.mark.parametrize(("source", "result"), DTYPES)
def test_table(source, result, shape):
    """Tables of 64-bit CPUs, in registers where vectors fit the shape."""
    module = small_module(lambda builder, params: [op.table(*params, table(result))], [(shape, source)])
    x = every_byte(shape, source)
    engine = emulated(qnn_ext.build(module, cpu_target("asimd", 1)))
    np.testing.assert_array_equal(engine(x), interpret(module.ir, [x])[0])
