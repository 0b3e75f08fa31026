"""FULLY_CONNECTED and BATCH_MATMUL: against LiteRT's reference kernels."""

import numpy as np
import pytest

from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter
from qnn_ext.op.base import constant_value
from tests.conformance.cases import load_cases

from .oracle_cases import assert_equals_reference, cases_of

EVERY = cases_of("FULLY_CONNECTED BATCH_MATMUL")


def case_named(name):
    (case,) = (case for case in load_cases() if case.name == name)
    return case


@pytest.mark.parametrize("case", EVERY)
def test_equals_litert(case):
    assert_equals_reference(case)


@pytest.mark.parametrize("name", ["FULLY_CONNECTED/hybrid/per_tensor_basic", "BATCH_MATMUL/hybrid/constant_y"])
def test_hybrid_layers_run_in_integers(name):
    module = from_tflite(case_named(name).model)
    assert "R.qnn.dense" in module.script() and "R.matmul" not in module.script()
    assert not module.notes


def test_scales_multiply_in_double():
    """Those per tensor too: rounded to float32, the multiplier differs from LiteRT's beside midpoints."""
    module = from_tflite(case_named("FULLY_CONNECTED/int8/per_tensor_basic").model, numerics="tflite")
    values = [binding.value for binding in module.ir["main"].body.blocks[0].bindings]
    product, requantize = (
        next(v for v in values if v.op.name == name) for name in ("relax.qnn.dense", "relax.qnn.requantize")
    )
    data, weight = (constant_value(argument) for argument in product.args[4:6])
    found = constant_value(requantize.args[1])
    assert found.dtype == "float64" and found == np.float64(data) * np.float64(weight)


@pytest.mark.parametrize("variant", ["per_tensor_basic", "per_tensor_asymmetric_basic"])
def test_hybrid_rows_are_quantized_on_their_own(variant):
    """A row of zeros, and a row a million times larger beside a small one, do not disturb each other."""
    case = case_named(f"FULLY_CONNECTED/hybrid/{variant}")
    module = from_tflite(case.model)
    rows = case.inputs[0][0].copy()
    (alone,) = Interpreter(module).run([rows]).values()
    rows[0] *= 1e6
    (beside,) = Interpreter(module).run([rows]).values()
    np.testing.assert_array_equal(alone[1], beside[1])
    rows[0] = 0
    (zeros,) = Interpreter(module).run([rows]).values()
    assert np.isfinite(zeros).all()


@pytest.mark.parametrize("name", ["FULLY_CONNECTED/int8/per_channel_basic", "BATCH_MATMUL/int8/basic"])
def test_batch_size_can_change(name):
    case = case_named(name)
    rows = [np.concatenate([trial[i] for trial in case.inputs]) for i in range(case.input_count)]
    shapes = {f"input{i}": array.shape for i, array in enumerate(rows)}
    module = from_tflite(case.model, numerics="tflite", shapes=shapes)
    (output,) = Interpreter(module).run(rows).values()
    np.testing.assert_array_equal(output, np.concatenate([trial[0] for trial in case.reference]))
