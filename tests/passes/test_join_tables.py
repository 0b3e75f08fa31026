"""Functions of one 8-bit tensor in several steps become one lookup, with the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import IRModule, relax

from qnn_ext import op as qnn
from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from qnn_ext.passes.join_tables import join_tables

from .modules import compile_and_run, module, random_input

SHAPE = (2, 3, 5, 40)


def _table(rng, dtype: str, entries: int = 256):
    return constant(random_input(rng, (entries,), dtype))


def _product(one, two, dtype: str, zero_point: int = 3):
    return qnn.qlinear_mul(one, two, zero_point, 1, 0.013, float(zero_point), 0, out_dtype=dtype)


def names(mod: IRModule) -> list[str]:
    """The operators of `main`."""
    values = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    return [value.op.name for value in values if isinstance(value, relax.Call)]


def _equal(mod: IRModule, joined: IRModule, *inputs: np.ndarray) -> None:
    for one, two in zip(interpret(mod, inputs), interpret(joined, inputs), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_a_value_times_its_table(rng, dtype):
    """SiLU and hard-swish of ONNX QDQ."""
    mod = module([(SHAPE, dtype)], lambda emit, x: [emit(_product(x, emit(qnn.table(x, _table(rng, "uint8"))), dtype))])
    joined, x = join_tables(mod), random_input(rng, SHAPE, dtype)
    assert names(joined) == ["relax.qnn.table"]
    _equal(mod, joined, x)
    np.testing.assert_array_equal(*compile_and_run(mod, "native", [x]), *interpret(mod, [x]))


def test_a_chain_of_tables_and_sums(rng):
    def body(emit, x):
        one = emit(qnn.table(x, _table(rng, "int8")))
        two = emit(qnn.table(one, _table(rng, "int32")))
        three = emit(qnn.requantize(two, 0.001, 5, 0.02, -3, out_dtype="uint8"))
        return [emit(qnn.qlinear_add(x, three, 0, 0, 0.5, 0.25, -2.0, 0, out_dtype="int8"))]

    mod = module([(SHAPE, "uint8")], body)
    joined = join_tables(mod)
    assert names(joined) == ["relax.qnn.table"]
    _equal(mod, joined, random_input(rng, SHAPE, "uint8"))


def test_a_step_that_others_read_stays(rng):
    def body(emit, x):
        gate = emit(qnn.table(x, _table(rng, "uint8")))
        return [emit(_product(x, gate, "uint8")), gate]

    mod = module([(SHAPE, "uint8")], body)
    joined = join_tables(mod)
    assert names(joined) == ["relax.qnn.table", "relax.qnn.table"]
    _equal(mod, joined, random_input(rng, SHAPE, "uint8"))


@pytest.mark.parametrize("case", ["sum", "product", "scales"])
def test_vectors_as_long_as_a_table_are_none(rng, case):
    """Positions added to the embeddings of a transformer of width 256."""
    vector = constant(random_input(rng, (256,), "uint8"))

    def body(emit, x):
        one = emit(qnn.table(x, _table(rng, "uint8")))
        if case == "sum":
            return [emit(qnn.qlinear_add(one, vector, 0, 0, 0.5, 0.25, -2.0, 0, out_dtype="uint8"))]
        if case == "product":
            return [emit(_product(one, vector, "uint8"))]
        scale = constant(rng.random(256).astype(np.float32) + np.float32(0.5))
        return [emit(qnn.requantize(one, scale, 0, 1.0, 0, axis=2, out_dtype="uint8"))]

    mod, x = module([((2, 3, 256), "uint8")], body), random_input(rng, (2, 3, 256), "uint8")
    joined = join_tables(mod)
    assert names(joined) == names(mod)
    _equal(mod, joined, x)
    np.testing.assert_array_equal(*compile_and_run(mod, "native", [x]), *interpret(mod, [x]))


@pytest.mark.parametrize("case", ["another tensor", "broadcast", "16 bits", "no lookup", "per channel"])
def test_what_is_no_function_of_one_byte_stays(rng, case):
    wide = case == "16 bits"
    shapes = [(SHAPE, "uint16" if wide else "uint8"), ((1, 1, 1, 40) if case == "broadcast" else SHAPE, "uint8")]
    table = _table(rng, "uint8", 1 << 16 if wide else 256)

    def body(emit, x, y):
        if case == "no lookup":
            return [emit(_product(emit(_product(x, x, "uint8")), x, "uint8")), y]
        if case == "per channel":
            scale = constant(rng.random(40).astype(np.float32) + np.float32(0.5))
            looked_up = emit(qnn.table(x, table))
            return [emit(qnn.requantize(looked_up, scale, 0, 1.0, 0, axis=3, out_dtype="uint8")), y]
        gate = emit(qnn.table(x if wide or case == "another tensor" else y, table))
        return [emit(_product(x if wide or case == "broadcast" else y, gate, "uint8"))]

    mod = module(shapes, body)
    joined = join_tables(mod)
    assert names(joined) == names(mod)
    _equal(mod, joined, *(random_input(rng, shape, dtype) for shape, dtype in shapes))
