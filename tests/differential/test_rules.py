"""The bounds of the rules under which frameworks may differ."""

from __future__ import annotations

import numpy as np
import pytest

from .builder import Builder
from .judge import first_difference
from .recipe import Recipe
from .rules import (
    DERIVED,
    FLOAT_SUMS,
    FUSED,
    LARGEST,
    LOWEST_INT32,
    NAN_LOST,
    NARROWED,
    PYTORCH_TAIL,
    bounded,
    inherited,
)


def differs(rule, ours, theirs, dtype):
    return bool(first_difference([[np.array(ours, dtype)]], [[np.array(theirs, dtype)]], [rule]))


def test_integers_within_a_step():
    assert not differs(PYTORCH_TAIL, [4, 255], [5, 254], "uint8")
    assert differs(PYTORCH_TAIL, [4, 255], [6, 255], "uint8")
    assert differs(None, [4, 255], [5, 255], "uint8")


def test_only_what_was_clipped_may_be_anything():
    assert not differs(NARROWED, [0, 9, 255], [77, 9, 0], "uint8")
    assert differs(NARROWED, [0, 9, 255], [0, 8, 255], "uint8")


def test_floats_within_bounds():
    rule = bounded(FUSED, 0.01, 0.001)
    assert not differs(rule, [1.0, np.inf, np.nan], [1.01, np.inf, np.nan], "float32")
    for found in ([1.02, np.inf, np.nan], [1.0, 3e38, np.nan], [1.0, np.inf, 0.0]):
        assert differs(rule, [1.0, np.inf, np.nan], found, "float32")
    most = float(np.finfo(np.float32).max)
    assert not differs(LARGEST, [2.0, np.inf, -np.inf], [2.0, most, -most], "float32")
    assert differs(LARGEST, [2.0, np.inf, -np.inf], [2.0, most, most], "float32")


def test_nan_of_ours_may_be_anything():
    assert not differs(NAN_LOST, [1.0, np.nan, np.nan], [1.0, 7.0, -np.inf], "float32")
    assert differs(NAN_LOST, [1.0, np.nan, np.nan], [np.nan, 7.0, np.nan], "float32")


def test_wrong_signs_are_wrong_everywhere():
    assert not differs(LOWEST_INT32, [1.0, -2.0, 0.0], [-1.1, 7.0, 3.0], "float32")
    assert differs(LOWEST_INT32, [1.0, -2.0, 0.0], [-1.1, -1.9, 3.0], "float32")


def test_bounds_follow_quantization():
    rule = bounded(FLOAT_SUMS, 0.3)
    assert [rule.after_quantize(scale).steps for scale in (1.0, 0.2)] == [1, 2]
    assert PYTORCH_TAIL.after_dequantize(0.5).allows(np.float32([1.0]), np.float32([1.5])).all()
    assert not PYTORCH_TAIL.after_dequantize(0.5).allows(np.float32([1.0]), np.float32([1.6])).any()


def test_no_bound_is_inherited_but_that_of_rounding():
    assert inherited([None, None], PYTORCH_TAIL) is PYTORCH_TAIL
    assert inherited([FLOAT_SUMS, None], None) is FLOAT_SUMS
    assert inherited([PYTORCH_TAIL], None) is inherited([FLOAT_SUMS], PYTORCH_TAIL) is DERIVED


class Keys(Builder):
    """A format without operators."""

    def declare(self, shape, dtype, scale, zero):
        return len(self.values)


def test_most_graphs_do_not_go_on_with_what_a_rule_is_about():
    found = []
    for seed in range(20):
        builder = Keys(Recipe("none", seed, "int8", "ordinary", hostile=False, size=5, steps=()))
        x = builder.fresh("int8", (2,), quantized=True)
        made = builder.keep("ADD", "sum", (2,), "int8", [x], 1.0, accident=PYTORCH_TAIL)
        assert builder.results() == [made]
        found.append(made in builder.values)
    assert 0 < sum(found) < 10


def test_depthwise_pairs_that_saturate():
    """255 · 64 · 2 is less than 2¹⁵, 255 · (64 + 65) is more; taps 1 and 2 are not a pair; opposite signs do no
    harm."""
    pytest.importorskip("torch")
    from .pytorch.operators import saturates

    assert not saturates(np.int8([[64, 64, -64, -64]]))
    assert saturates(np.int8([[0, 0, 0, 0], [64, 65, 0, 0]])) and saturates(np.int8([[0, 0, -100, -100, 5]]))
    assert not saturates(np.int8([[0, 127, 127, 0, 127, -128, 0, 127, 127]]))
