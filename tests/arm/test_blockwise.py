"""Products with packed weights on emulated ARM: equal to the interpreter where integers are summed, within the
stated bound where floats are."""

from __future__ import annotations

import numpy as np
import pytest

import qnn_ext
from qnn_ext.interpreter import interpret
from qnn_ext.module import QnnModule, TensorSpec
from qnn_ext.numerics.packed import WIDTHS
from tests.arm.engines import emulated
from tests.cases.blockwise import SHAPES, ZEROS, bound_of, float_product, int8_product, weight_of
from tests.cpus import cpu_target


def engine_of(mod, inputs, cpu):
    """The module as a model with an engine for a CPU."""
    ports = [TensorSpec(f"x{i}", x.shape, str(x.dtype)) for i, x in enumerate(inputs)]
    (result,) = interpret(mod, inputs)
    module = QnnModule(mod, tuple(ports), (TensorSpec("y", result.shape, str(result.dtype)),))
    return emulated(qnn_ext.build(module, cpu_target(cpu, 1))), result


@pytest.mark.one_in(4)
@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("cpu", ["dotprod", "asimd", "armv7"])
@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("zeros", ZEROS[:2])
@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_int8(shape, by_row, zeros, dtype, cpu):
    rng, (rows, depth, units, group) = np.random.default_rng(1), shape
    mod, inputs = int8_product(rng, rows, weight_of(rng, units, depth, group, dtype, zeros), by_row)
    engine, expected = engine_of(mod, inputs, cpu)
    np.testing.assert_array_equal(engine(*inputs), expected)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("shape", SHAPES)
def test_floats(shape, zeros, dtype):
    rng, (rows, depth, units, group) = np.random.default_rng(2), shape
    weight = weight_of(rng, units, depth, group, dtype, zeros)
    mod, inputs = float_product(rng, rows, weight)
    engine, expected = engine_of(mod, inputs, "asimd")
    distance = np.abs(engine(*inputs).astype(np.float64) - expected)
    assert (distance <= bound_of(inputs[0], weight)).all()
