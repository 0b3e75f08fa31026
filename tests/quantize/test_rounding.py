"""set_rounding: every requantize of accumulators rounds as asked. with_reciprocals: nothing divides by a scale."""

import numpy as np
import pytest
from tvm import relax

from qnn_ext import op as qnn
from qnn_ext.op.base import call_attributes, constant, constant_value
from qnn_ext.op.evaluate import interpret
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.quantize.rounding import set_rounding, with_reciprocals

from ..passes.modules import compile_and_run, module

ACCUMULATORS = np.arange(-40, 40, dtype=np.int32).reshape(1, 2, 40)


def requantize(scale, axis=1, zero_point=3):
    """acc · scale → int8 with scale 1."""
    scales = constant(np.asarray(scale, np.float32))
    return module(
        [(ACCUMULATORS.shape, "int32")],
        lambda emit, x: emit(qnn.requantize(x, scales, 0, 1.0, zero_point, axis=axis, out_dtype="int8")),
    )


def values(mod) -> np.ndarray:
    """What the interpreter gives, which the compiled module must give as well."""
    (expected,) = interpret(mod, [ACCUMULATORS])
    np.testing.assert_array_equal(compile_and_run(mod, "native", [ACCUMULATORS])[0], expected)
    return expected.astype(np.int64) - 3


def test_defaults_change_nothing():
    mod = requantize(0.25)
    assert set_rounding(mod, "TONEAREST_EVEN") is mod


@pytest.mark.parametrize(
    "rounding,midpoints",
    [("TONEAREST_EVEN", np.rint), ("UPWARD", lambda x: np.floor(x + 0.5)),
     ("TONEAREST", lambda x: np.trunc(x + np.copysign(0.5, x)))],
)  # fmt: skip
def test_midpoints(rounding, midpoints):
    exact = ACCUMULATORS * 0.25
    np.testing.assert_array_equal(values(set_rounding(requantize(0.25), rounding)), midpoints(exact))


def test_truncation_is_an_arithmetic_shift():
    """One shift per channel, including a shift by 0."""
    mod = set_rounding(requantize([0.125, 1.0]), "TONEAREST_EVEN", round_for_shift=False)
    np.testing.assert_array_equal(values(mod), ACCUMULATORS >> np.array([3, 0]).reshape(1, 2, 1))


def test_other_scales_round_although_shifts_truncate():
    mod = set_rounding(requantize(0.3), "TONEAREST_EVEN", round_for_shift=False)
    np.testing.assert_array_equal(values(mod), np.rint(ACCUMULATORS.astype(np.float32) * np.float32(0.3)))


def test_only_accumulators():
    """A requantize from 8 bits specifies its own rounding."""
    mod = module([((4,), "int8")], lambda emit, x: emit(qnn.requantize(x, 0.5, 0, 1.0, 0, out_dtype="int8")))
    (call,) = (b.value for b in bindings_of(set_rounding(mod, "UPWARD")["main"]) if isinstance(b.value, relax.Call))
    assert op_name(call) == "qnn.requantize" and call_attributes(call)["rounding"] == "TONEAREST_EVEN"


@pytest.mark.parametrize("read_elsewhere", [False, True])
def test_a_scale_goes_into_factors_in_front_of_it(read_elsewhere):
    """Unless these have other readers; then there is a multiplication in place of the division."""
    scale, factors = np.float32(0.03), np.linspace(0.5, 2, 4, dtype=np.float32).reshape(4, 1)
    data = np.random.default_rng(2).normal(size=(2, 4, 50)).astype(np.float32)

    def body(emit, x):
        y = emit(relax.op.multiply(x, constant(factors)))
        q = emit(qnn.quantize(y, constant(scale), constant(np.int32(128)), out_dtype="uint8"))
        return [q, y] if read_elsewhere else [q]

    before = module([(data.shape, "float32")], body)
    after = with_reciprocals(before)
    found, expected = (interpret(mod, [data])[0].astype(np.int64) for mod in (after, before))
    np.testing.assert_array_equal(compile_and_run(after, "native", [data])[0], found)
    assert np.abs(found - expected).max() <= 1 and (found != expected).mean() < 0.01
    quantize, *_ = [b.value for b in bindings_of(after["main"]) if op_name(b.value) == "qnn.quantize"]
    assert call_attributes(quantize)["reciprocal"]
    assert constant_value(quantize.args[1]) == (scale if read_elsewhere else 1)


def test_scales_without_a_reciprocal_divide():
    """Those of tensors that are next to zero everywhere, and what rounds otherwise."""

    def quantized(scale, **how):
        return module(
            [((1, 8), "float32")],
            lambda emit, x: emit(qnn.quantize(x, constant(np.float32(scale)), constant(np.int32(0)), **how)),
        )

    for mod in (quantized(1e-39), quantized(0.5, rounding="TONEAREST")):
        assert "reciprocal=True" not in with_reciprocals(mod).script()
    assert "reciprocal=True" in with_reciprocals(quantized(0.5)).script()
