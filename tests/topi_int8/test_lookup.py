"""Tables of 256 bytes: alone and behind a product, in registers where the CPU has AVX512-VBMI, exact everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from qnn_ext import op as qnn
from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from tests.cases.tables import DTYPES, every_byte, table
from tests.cpus import TARGETS

from ..passes.modules import compile_and_run, inputs_of, module


@pytest.mark.sampled("target", whole="native")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(4, 64), (3, 32), (2, 8, 48), (3, 21), (1, 1000)])
@pytest.mark.parametrize(("source", "result"), DTYPES)
def test_alone(target, shape, source, result):
    mod = module([(shape, source)], lambda emit, x: emit(qnn.table(x, table(result))))
    inputs = [every_byte(shape, source)]
    assert np.array_equal(compile_and_run(mod, target, inputs)[0], interpret(mod, inputs)[0])


@pytest.mark.parametrize("channels", [184, 64, 32, 48, 24, 12, 7])
@pytest.mark.parametrize(("source", "result"), DTYPES)
def test_behind_a_product(channels, source, result):
    weight = np.random.default_rng(1).integers(-128, 128, (channels, 24)).astype(np.int8)

    def body(emit, x):
        acc = emit(qnn.dense(x, constant(weight), 3, 0, 0.05, 0.01))
        return emit(qnn.table(emit(qnn.requantize(acc, 0.0005, 0, 0.02, 5, out_dtype=source)), table(result)))

    mod = module([((9, 24), "uint8")], body)
    inputs = inputs_of(np.random.default_rng(2), mod)
    assert np.array_equal(compile_and_run(mod, "native", inputs)[0], interpret(mod, inputs)[0])
