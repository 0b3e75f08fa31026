"""Operators of constants alone, whose kernels must not be folded by compiling them for another CPU."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import IRModule, relax

from qnn_ext import op as qnn
from qnn_ext.op import folding
from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from qnn_ext.passes.fold_known import fold_known
from tests.cpus import TARGETS

from .modules import compile_and_run, module, random_input


@pytest.fixture(name="mod")
def constant_product(rng) -> IRModule:
    """x + dequantize(quantize(constants) · weights), and an unquantized sum of constants."""
    data = constant(rng.normal(0, 1, (15, 6)).astype(np.float32))
    weight = constant(random_input(rng, (4, 6), "uint8"))

    def body(emit, x):
        scale = emit(relax.op.maximum(constant(np.float32(0.01)), constant(np.float32(0.02))))
        quantized = emit(qnn.quantize(data, scale, 128, out_dtype="uint8"))
        product = emit(qnn.dense(quantized, weight, 128, 100, 1.0, 1.0))
        lengths = emit(relax.op.add(data, data))
        return [emit(relax.op.add(x, emit(qnn.dequantize(product, 0.001, 0)))), lengths]

    return module([((15, 4), "float32")], body)


def names(mod: IRModule) -> list[str]:
    """The operators of `main`."""
    values = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    return [value.op.name for value in values if isinstance(value, relax.Call)]


def test_what_no_input_reaches_is_a_constant(mod, rng):
    folded, x = fold_known(mod), rng.normal(0, 1, (15, 4)).astype(np.float32)
    assert names(folded) == ["relax.add"]  # of x
    for found, wanted in zip(interpret(folded, [x]), interpret(mod, [x]), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("cheap", [True, False])
def test_compiled(mod, rng, target, cheap, monkeypatch):
    """Folded, and computed at each call where folding would take too long."""
    if not cheap:
        monkeypatch.setattr(folding, "_is_cheap", lambda *_: False)
    x = rng.normal(0, 1, (15, 4)).astype(np.float32)
    for found, wanted in zip(compile_and_run(mod, target, [x]), interpret(mod, [x]), strict=True):
        np.testing.assert_array_equal(found, wanted)
