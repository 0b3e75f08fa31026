"""Products with block-wise quantized weights on an emulated GPU, by the kernels that take everything."""

from __future__ import annotations

import numpy as np
import pytest

from qnn_ext.compiling.build import lower_module
from qnn_ext.interpreter import interpret
from qnn_ext.targets.names import make_target
from tests.cases.blockwise import bound_of, float_product, int8_product, weight_of

from .models import run_lowered


@pytest.mark.parametrize("dtype", ["int4", "uint2"])
def test_equal_to_the_interpreter(dtype):
    rng, target = np.random.default_rng(0), make_target("sm_80")
    weight = weight_of(rng, 17, 50, 16, dtype, "integers")
    mod, inputs = int8_product(rng, 3, weight, by_row=False)
    np.testing.assert_array_equal(run_lowered(lower_module(mod, target), "sm_80", inputs)[0], interpret(mod, inputs)[0])
    mod, inputs = float_product(rng, 3, weight)
    found = run_lowered(lower_module(mod, target), "sm_80", inputs)[0].astype(np.float64)
    assert (np.abs(found - interpret(mod, inputs)[0]) <= bound_of(inputs[0], weight)).all()
