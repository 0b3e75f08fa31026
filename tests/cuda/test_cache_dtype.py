"""Caches in 16 and 8 bits on the emulated GPU: the rows they hold equal the interpreter's."""

from __future__ import annotations

import numpy as np
import pytest

from qnn_ext.compiling.build import lower_module
from qnn_ext.interpreter import interpret
from qnn_ext.passes.cache_dtype import with_cache_dtype
from qnn_ext.targets.names import make_target
from tests.passes.test_cache_dtype import model, qkv_of

from .models import run_lowered


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_narrow_caches(dtype, rng):
    narrow = with_cache_dtype(model(2), dtype)
    lowered = lower_module(narrow.ir, make_target("sm_80"))
    states = [state.initial for state in narrow.states]
    for before in (0, 2):
        inputs = [qkv_of(rng, 2), np.array([before + 1], np.int32), *states]
        found, *written = run_lowered(lowered, "sm_80", inputs)
        expected, *states = interpret(narrow.ir, inputs)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
        for one, state in zip(written, states, strict=True):
            np.testing.assert_array_equal(one, state)
