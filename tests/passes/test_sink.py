"""sink_reshapes: the same results, and products that keep their epilogue."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import IRModule, relax

from qnn_ext import op
from qnn_ext.op.evaluate import interpret
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.passes.sink import sink_reshapes

from ..op.helpers import random_integers, var

WEIGHT = random_integers(np.random.default_rng(3), (6, 8), "int8")
VECTOR = np.linspace(0.01, 0.02, 6).astype(np.float32)
Emit = Callable[[relax.Expr], relax.Expr]


def module(tail: Callable[[relax.Expr, relax.Expr, Emit], relax.Expr]) -> IRModule:
    """reshape(dense(reshape(x))) followed by `tail(acc, skip, emit)`."""
    params = [var("x", (2, 5, 8), "uint8"), var("skip", (2, 5, 6), "int8")]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            flat = builder.emit(relax.op.reshape(params[0], (10, 8)))
            acc = builder.emit(op.dense_accumulate(flat, WEIGHT, out_dtype="int32"))
            wide = builder.emit(relax.op.reshape(acc, (2, 5, 6)))
            result = builder.emit_output(builder.emit(tail(wide, params[1], builder.emit)))
        builder.emit_func_output(result)
    return builder.get()


def requantized(acc: relax.Expr, emit: Emit) -> relax.Expr:
    return emit(op.requantize(acc, VECTOR, 0, 0.5, 3, axis=2))


TAILS = {
    "requantize": lambda acc, skip, emit: requantized(acc, emit),
    "constant vector": lambda acc, skip, emit: relax.op.add(acc, relax.const(np.arange(6, dtype=np.int32))),
    "constant of full rank": lambda acc, skip, emit: relax.op.add(acc, relax.const(np.ones((1, 1, 6), np.int32))),
    "residual": lambda acc, skip, emit: op.qlinear_add(requantized(acc, emit), skip, 0, 0, 0.5, 0.25, 1.5, 0),
    "table": lambda acc, skip, emit: op.table(requantized(acc, emit), np.arange(256).astype(np.uint8)),
    "float tail": lambda acc, skip, emit: relax.op.nn.relu(
        emit(relax.op.add(emit(op.dequantize(acc, VECTOR, 0, axis=-1)), relax.const(VECTOR)))
    ),
    "slopes along an axis": lambda acc, skip, emit: relax.op.nn.prelu(
        emit(op.dequantize(acc, VECTOR, 0, axis=-1)), relax.const(VECTOR), axis=2
    ),
    "one slope": lambda acc, skip, emit: relax.op.nn.prelu(
        emit(op.dequantize(acc, VECTOR, 0, axis=-1)), relax.const(VECTOR[:1]), axis=1
    ),
    "two readers": lambda acc, skip, emit: op.add(
        requantized(acc, emit), emit(op.requantize(acc, 0.02, 0, 0.3, 1)), 0.5, 3, 0.3, 1, 0.6, 0
    ),
}


def order(mod: IRModule) -> list[str]:
    return [op_name(binding.value) for binding in bindings_of(mod["main"])]


@pytest.mark.parametrize("name", TAILS)
def test_nothing_stands_behind_the_product(name, rng):
    mod = module(TAILS[name])
    inputs = [random_integers(rng, (2, 5, 8), "uint8"), random_integers(rng, (2, 5, 6), "int8")]
    sunk = sink_reshapes(mod)
    np.testing.assert_array_equal(interpret(sunk, inputs)[0], interpret(mod, inputs)[0])
    names = [item for item in order(sunk) if item]
    assert names[-1] == "reshape"
    assert "reshape" not in [n for n in names[names.index("qnn.dense_accumulate") + 1 : -1] if name != "residual"]


STAYS = {
    "scales along the rows": lambda acc, skip, emit: op.requantize(acc, np.float32([1, 2, 3, 4, 5]), 0, 9.0, 0, axis=1),
    "one row for all": lambda acc, skip, emit: relax.op.add(acc, relax.const(np.ones((5, 1), np.int32))),
    "no elementwise reader": lambda acc, skip, emit: relax.op.permute_dims(acc, [0, 2, 1]),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_needs_the_shape_gets_it(name, rng):
    mod = module(STAYS[name])
    inputs = [random_integers(rng, (2, 5, 8), "uint8"), random_integers(rng, (2, 5, 6), "int8")]
    sunk = sink_reshapes(mod)
    np.testing.assert_array_equal(interpret(sunk, inputs)[0], interpret(mod, inputs)[0])
    names = order(sunk)
    assert names[names.index("qnn.dense_accumulate") + 1] == "reshape"


def test_a_chain_of_layers_stays_flat(rng):
    def tail(acc: relax.Expr, skip: relax.Expr, emit: Emit) -> relax.Expr:
        flat = emit(relax.op.reshape(requantized(acc, emit), (10, 6)))
        return op.dense_accumulate(flat, WEIGHT[:, :6], out_dtype="int32")

    mod = module(tail)
    inputs = [random_integers(rng, (2, 5, 8), "uint8"), random_integers(rng, (2, 5, 6), "int8")]
    sunk = sink_reshapes(mod)
    np.testing.assert_array_equal(interpret(sunk, inputs)[0], interpret(mod, inputs)[0])
    assert order(sunk).count("reshape") == 1


def test_a_residual_sum_stays_in_the_shape_of_its_product(rng):
    params = [var("x", (10, 8), "uint8"), var("y", (2, 5, 6), "float32")]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            acc = builder.emit(op.dense_accumulate(params[0], WEIGHT, out_dtype="int32"))
            real = builder.emit(op.dequantize(acc, VECTOR, 0, axis=-1))
            flat = builder.emit(relax.op.reshape(params[1], (10, 6)))
            result = builder.emit_output(builder.emit(relax.op.add(real, flat)))
        builder.emit_func_output(result)
    sunk = sink_reshapes(builder.get())
    assert [name for name in order(sunk) if name] == [
        "qnn.dense_accumulate",
        "qnn.dequantize",
        "reshape",
        "add",
    ]
    inputs = [random_integers(rng, (10, 8), "uint8"), rng.standard_normal((2, 5, 6)).astype(np.float32)]
    np.testing.assert_array_equal(interpret(sunk, inputs)[0], interpret(builder.get(), inputs)[0])


def test_slopes_are_not_applied_to_a_tensor_without_dimensions():
    params = [var("x", (), "float32")]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            wide = builder.emit(relax.op.reshape(params[0], (1,)))
            result = builder.emit_output(builder.emit(relax.op.nn.prelu(wide, relax.const(VECTOR[:1]), 0)))
        builder.emit_func_output(result)
    sunk = sink_reshapes(builder.get())
    assert [name for name in order(sunk) if name] == ["reshape", "nn.prelu"]
