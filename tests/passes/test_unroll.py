"""Loops written out: the same results, round by round."""

import numpy as np
import pytest
from tvm import relax

from qnn_ext import op
from qnn_ext.errors import LimitError
from qnn_ext.interpreter import interpret
from qnn_ext.limits import Limits, limited
from qnn_ext.op.loop import Loop
from qnn_ext.passes.rewrite import bindings_of
from qnn_ext.passes.unroll import unrolled
from tests.cases.loops import assembled
from tests.cases.samples import ZEROS, round_of_a_loop


def module(trips=4, back_in=False, back_out=False):
    inputs = [("going", (), "bool"), ("state", (4,), "int32"), ("sequence", (trips, 4), "int32")]

    def walk(assembly, going, state, sequence):
        call = op.loop(
            round_of_a_loop(), [relax.const(ZEROS)], [state], [sequence], trips, [back_in], [back_out], going
        )
        results = assembly.emit(call)
        return [assembly.emit(relax.TupleGetItem(results, index)) for index in range(2)]

    return assembled(inputs, walk)


@pytest.mark.parametrize("trips", [1, 4])
@pytest.mark.parametrize("back_in,back_out", [(False, True), (True, False)])
@pytest.mark.parametrize("going,most", [(True, 2), (True, 9), (False, 2)])
def test_equals_the_loop(going, most, back_in, back_out, trips, rng):
    mod = module(trips, back_in, back_out)
    inputs = [np.bool_(going), *(rng.integers(-most, most, shape, np.int32) for shape in ((4,), (trips, 4)))]
    written_out = unrolled(mod)
    assert not any(Loop.of(binding.value) for binding in bindings_of(written_out["main"]))
    for one, other in zip(interpret(written_out, inputs), interpret(mod, inputs), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_modules_without_loops_stay():
    mod = unrolled(module())
    assert unrolled(mod).same_as(mod)


def test_too_many_rounds():
    mod = module(9)
    with limited(Limits(unrolled=8)), pytest.raises(LimitError, match="a loop that has to be unrolled takes 9 steps"):
        unrolled(mod)
    with limited(Limits(unrolled=9)):
        unrolled(mod)
