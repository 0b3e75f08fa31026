"""inlined: functions that `main` calls become part of it."""

import numpy as np
from tvm import relax

from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from qnn_ext.passes.inline import inlined
from qnn_ext.passes.rewrite import bindings_of, op_name

from .modules import module


def called():
    """main(x) = relu(pair(x)[1]) + pair(x)[0] with pair(v) = (2·v, v − 1)."""
    ty = relax.TensorType((2, 3), "float32")
    builder = relax.BlockBuilder()
    v = relax.Var("v", ty)
    with builder.function("pair", [v]):
        with builder.dataflow():
            doubled = builder.emit(relax.op.multiply(v, constant(np.float32(2))), name_hint="doubled")
            lower = builder.emit(relax.op.subtract(v, constant(np.float32(1))), name_hint="lower")
            result = builder.emit_output(relax.Tuple([doubled, lower]))
        builder.emit_func_output(result)
    pair = next(var for var in builder.get().get_global_vars() if var.name_hint == "pair")
    x = relax.Var("x", ty)
    with builder.function("main", [x]):
        with builder.dataflow():
            both = builder.emit(relax.Call(pair, [x]))
            second = builder.emit(relax.op.nn.relu(builder.emit(relax.TupleGetItem(both, 1))))
            total = builder.emit(relax.op.add(second, builder.emit(relax.TupleGetItem(both, 0))))
            result = builder.emit_output(relax.Tuple([total]))
        builder.emit_func_output(result)
    return builder.get()


def test_the_same_results_in_one_function():
    mod = called()
    flat = inlined(mod)
    names = [op_name(binding.value) for binding in bindings_of(flat["main"]) if op_name(binding.value)]
    assert names == ["multiply", "subtract", "nn.relu", "add"]
    assert "doubled" in {str(binding.var.name) for binding in bindings_of(flat["main"])}
    x = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(interpret(flat, [x])[0], interpret(mod, [x])[0])


def test_modules_that_call_nothing_come_back_as_they_are():
    mod = module([((2, 3), "float32")], lambda emit, x: emit(relax.op.nn.relu(x)))
    assert inlined(mod) is mod
