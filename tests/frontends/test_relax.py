"""from_relax: functions written by hand, among them those with an open batch."""

import numpy as np
import pytest
from tvm import relax, tirx

import qnn_ext
from qnn_ext import op
from qnn_ext.errors import ShapeError, UnsupportedOperatorError
from qnn_ext.interpreter import Interpreter

WEIGHT = np.random.default_rng(1).integers(-9, 9, (5, 6), dtype=np.int8)


def function(shape, body, *others):
    """`main` of x, int8, and others; body(builder, x, *others) is its result."""
    builder = relax.BlockBuilder()
    params = [relax.Var("x", relax.TensorType(shape, "int8")), *others]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(body(builder, *params))
        builder.emit_func_output(result)
    return builder.get()


def dense(builder, x, weight=WEIGHT):
    flat = builder.emit(relax.op.reshape(x, (x.ty.shape[0], 6)))
    acc = builder.emit(op.dense(flat, weight, 3, 0, 0.5, 0.5))
    return builder.emit(op.requantize(acc, 0.25, 0, 2.0, -1))


def expected(x):
    acc = (x.reshape(-1, 6).astype(np.int64) - 3) @ WEIGHT.T
    return np.clip(np.rint(acc * 0.125) - 1, -128, 127)


@pytest.mark.parametrize("single", [True, False])
def test_open_batch(rng, single):
    """The same symbolic dimension in front of all inputs: a batch of any size, also where a reshape names it."""
    n = tirx.Var("n", "int64")
    mod = function((n, 2, 3), dense)
    module = qnn_ext.from_relax(mod["main"] if single else mod)
    assert module.inputs == (qnn_ext.TensorSpec("x", (1, 2, 3), "int8", dynamic_batch=True),)
    assert module.outputs == (qnn_ext.TensorSpec("output_0", (1, 5), "int8", dynamic_batch=True),)
    for runner in (Interpreter(module), qnn_ext.build(module, num_threads=1)):
        for size in (1, 3):
            x = rng.integers(-128, 128, (size, 2, 3), dtype=np.int8)
            (found,) = runner.run([x]).values()
            np.testing.assert_array_equal(found, expected(x))


def test_constants(rng):
    """Parameters with a value are weights, also beside an open batch; a tuple has one output for each field."""
    n, weight = tirx.Var("n", "int64"), relax.Var("weight", relax.TensorType((5, 6), "int8"))
    mod = function((n, 6), lambda builder, x, w: relax.Tuple([dense(builder, x, w), x]), weight)
    module = qnn_ext.from_relax(mod, constants={"weight": WEIGHT})
    assert [spec.name for spec in module.outputs] == ["output_0", "output_1"]
    x = rng.integers(-128, 128, (2, 6), dtype=np.int8)
    found = Interpreter(module).run([x])
    np.testing.assert_array_equal(found["output_0"], expected(x))
    np.testing.assert_array_equal(found["output_1"], x)
    with pytest.raises(ShapeError, match=r"weights go into constants; found x \(n, 6\), weight \(5, 6\)"):
        qnn_ext.from_relax(mod)


def test_refused():
    n = tirx.Var("n", "int64")
    mixing = function((n, 6), lambda builder, x: builder.emit(relax.op.sum(x, 0)))
    with pytest.raises(UnsupportedOperatorError, match=r"may mix the samples; .* a number in the place of n"):
        qnn_ext.from_relax(mixing)
    with pytest.raises(ShapeError, match="only the first dimension may be open"):
        qnn_ext.from_relax(function((2, n), lambda builder, x: builder.emit(relax.op.abs(x))))
