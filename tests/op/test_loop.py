"""qnn.loop: the reference against loops of NumPy, and what the type rule refuses."""

import numpy as np
import pytest
from tvm import relax

from qnn_ext import op
from qnn_ext.errors import ShapeError
from qnn_ext.op.base import call_attributes, definition_of
from qnn_ext.op.loop import Loop
from tests.cases.samples import ZEROS, round_of_a_loop

from .helpers import var


def call(trips=3, shape=(4,), dtype="int32", condition=("bool", ()), sequence=None, state=None, **flags):
    going = var("going", condition[1], condition[0])
    state = var("state", shape, dtype) if state is None else state
    sequence = var("sequence", (trips, 4), "int32") if sequence is None else sequence
    return op.loop(round_of_a_loop(), [relax.const(ZEROS)], [state], [sequence], trips, condition=going, **flags)


def run(going, state, sequence, *, back_in=False, back_out=False):
    made = call(len(sequence), backwards_in=[back_in], backwards_out=[back_out])
    return definition_of(made).reference(np.bool_(going), ZEROS, state, sequence, **call_attributes(made))


def by_hand(going, state, sequence, back_in, back_out):
    outputs = np.zeros_like(sequence)
    for t in range(len(sequence)):
        if not going:
            break
        outputs[-1 - t if back_out else t] = state
        state = state + sequence[-1 - t if back_in else t] * ZEROS
        going = state.max() < 10
    return state, outputs


@pytest.mark.parametrize("back_in", [False, True])
@pytest.mark.parametrize("back_out", [False, True])
@pytest.mark.parametrize("going,most", [(True, 2), (True, 9), (False, 2)])
def test_equals_a_loop_of_numpy(going, most, back_in, back_out, rng):
    state, sequence = rng.integers(-3, 3, 4, np.int32), rng.integers(-most, most, (7, 4), np.int32)
    expected = by_hand(going, state, sequence, back_in, back_out)
    found = run(going, state, sequence, back_in=back_in, back_out=back_out)
    assert len(found) == 2
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == np.int32
        np.testing.assert_array_equal(one, other)


def test_no_round():
    state, stacked = run(True, ZEROS, np.zeros((0, 4), np.int32))
    np.testing.assert_array_equal(state, ZEROS)
    assert stacked.shape == (0, 4)


def test_taken_apart_and_put_together():
    made = call(backwards_in=[True])
    loop = Loop.of(made)
    assert (loop.trips, loop.backwards_in, loop.backwards_out) == (3, (True,), (False,))
    assert [len(part) for part in loop.parameters] == [1, 1, 1]
    condition, states, outputs = loop.results
    assert (str(condition.ty.dtype), len(states), len(outputs)) == ("bool", 1, 1)
    assert loop.call().args == made.args
    assert Loop.of(op.quantize(var("x", (2,), "float32"), 0.5, 0)) is None


@pytest.mark.parametrize(
    "arguments,message",
    [
        ({"shape": (5,)}, r"state of the body takes int32 of shape \(4,\), found int32 of shape \(5,\)"),
        ({"dtype": "int8"}, r"state of the body takes int32 of shape \(4,\), found int8"),
        ({"sequence": var("x", (4, 4), "int32")}, r"slice of the body takes int32 of shape \(3, 4\), found .*\(4, 4\)"),
        ({"condition": ("int32", ())}, r"the condition must be a bool scalar, found int32 of shape \(\)"),
        ({"condition": ("bool", (1,))}, r"the condition must be a bool scalar, found bool of shape \(1,\)"),
        ({"trips": -1, "sequence": var("x", (3, 4), "int32")}, "trips must be from 0 to 9223372036854775807, found -1"),
    ],
)
def test_type_rule(arguments, message):
    with pytest.raises(ShapeError, match=message):
        call(**arguments)


def test_a_state_keeps_its_type():
    params = [var("state", (4,), "int32")]
    builder = relax.BlockBuilder()
    with builder.function("body", params, private=True):
        with builder.dataflow():
            result = builder.emit_output(relax.Tuple([builder.emit(relax.op.astype(params[0], "int8"))]))
        builder.emit_func_output(result)
    with pytest.raises(ShapeError, match=r"a state changes its type from int32 of shape \(4,\) to int8 of shape"):
        op.loop(builder.get()["body"], [], [var("x", (4,), "int32")], [], 3)
    with pytest.raises(ShapeError, match="the body takes 1 arguments and returns 1 results; the loop has 2 arguments"):
        op.loop(builder.get()["body"], [], [var("x", (4,), "int32")] * 2, [], 3)
