"""Two models side by side: outputs in real values, inner tensors where names match."""

from dataclasses import replace

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.errors import InputError, QuantizationError
from qnn_ext.module import TensorSpec
from qnn_ext.quantize.analysis import fidelity
from qnn_ext.quantize.compare import compare, random_batches
from qnn_ext.quantize.config import QConfig
from qnn_ext.quantize.pipeline import quantize
from tests.quantize.networks import float_module


@pytest.fixture
def module(rng):
    first, second = (rng.normal(size=(8, 8)).astype(np.float32) for _ in range(2))

    def body(emit, x):
        hidden = emit(relax.op.nn.relu(emit(relax.op.matmul(x, relax.const(first)))), "hidden")
        return emit(relax.op.matmul(hidden, relax.const(second)))

    return float_module((1, 8), body)


def test_quantized_against_float(module, rng):
    data = rng.normal(size=(30, 8)).astype(np.float32)
    quantized = quantize(module, dataset=data, config=QConfig(calibrate_mode="minmax"))
    found = compare(module, quantized, data, samples=20)
    assert found.samples == 20
    run, integers = qnn_ext.Interpreter(module), qnn_ext.Interpreter(quantized)
    exact = np.concatenate([run(sample[None]) for sample in data[:20]])
    simulated = np.concatenate([integers(sample[None]) for sample in data[:20]])
    output = found.outputs["y"]
    assert output.fidelity.sqnr == pytest.approx(fidelity(exact, simulated).sqnr, abs=1e-3)
    assert output.same_answer == np.mean(exact.argmax(1) == simulated.argmax(1))
    assert list(found.tensors) == ["hidden"], "what has no name of its own is not compared"
    assert 30 < found.tensors["hidden"].sqnr < 60


def test_a_model_against_itself(module):
    engine = qnn_ext.build(module, num_threads=1)
    found = compare(engine, module, random_batches(module, 3))
    assert found.outputs["y"].fidelity.largest == 0 and found.outputs["y"].equal == 1 and found.tensors == {}


def test_models_that_do_not_match(module):
    other = float_module((1, 9), lambda emit, x: emit(relax.op.nn.relu(x)))
    with pytest.raises(InputError, match="inputs do not match"):
        compare(module, other, [])
    renamed = replace(module, inputs=(TensorSpec("other", (1, 8), "float32"),))
    assert compare(module, renamed, random_batches(module, 1)).samples == 1, "one input: its name does not matter"
    with pytest.raises(QuantizationError, match="empty"):
        compare(module, module, [])
