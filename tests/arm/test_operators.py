"""Every operator on emulated ARM CPUs, equal to its NumPy reference: on random and on extreme data."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.interpreter import interpret
from tests.arm.engines import emulated
from tests.program.small import small_module
from tests.test_build_ops import FILLS, SAMPLES, arrays
from tests.topi_int8.kernels import ARM_CPUS, cpu_target


@pytest.mark.parametrize("cpu", ARM_CPUS)
@pytest.mark.parametrize("name", SAMPLES)
def test_operator_equals_the_oracle(name, cpu, rng):
    variables, call = SAMPLES[name]
    forms = [(shape, dtype) for _, shape, dtype in variables]
    module = small_module(lambda builder, params: [builder.emit(call(*params))], forms)
    engine = emulated(qnn_ext.build(module, cpu_target(cpu, 2)))
    for fill in FILLS:
        inputs = arrays(variables, fill, rng)
        with np.errstate(all="ignore"):
            (expected,) = interpret(module.ir, inputs)
        np.testing.assert_array_equal(engine(*inputs), expected, err_msg=fill, strict=True)
