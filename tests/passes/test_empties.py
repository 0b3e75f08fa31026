"""Tensors without elements: joins leave them out, in what TVM's virtual machine runs too."""

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.op.base import constant
from qnn_ext.passes.empties import without_empties
from qnn_ext.passes.rewrite import bindings_of, op_name
from tests.quantize.networks import float_module

R = relax.op


def nothing(emit, x):
    """Of a sorted tensor, so that no program is made of the model."""
    return emit(R.exp(emit(R.strided_slice(emit(R.sort(x)), [0], [2], [2]))))


BODIES = {
    "a join with another": lambda emit, x: emit(R.exp(emit(R.concat([x, nothing(emit, x)], 0)))),
    "a join of three": lambda emit, x: emit(R.concat([nothing(emit, x), x, constant(np.ones(3, np.float32))], 0)),
}


@pytest.mark.parametrize("name", BODIES)
def test_joins_leave_them_out(name, rng):
    module = float_module((5,), BODIES[name])
    names = [op_name(binding.value) for binding in bindings_of(without_empties(module.ir)["main"])]
    assert names.count("concat") == (name == "a join of three")
    x = rng.standard_normal(5).astype(np.float32)
    np.testing.assert_allclose(qnn_ext.build(module, num_threads=1)(x), qnn_ext.Interpreter(module)(x), rtol=1e-6)
