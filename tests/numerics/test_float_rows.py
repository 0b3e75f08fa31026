"""Float softmax and layer normalization: the compiled rows equal NumPy's bit for bit and are close to float64."""

import numpy as np
import pytest
import tvm
from tvm import te

from qnn_ext.numerics import float_rows as reference
from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8.generic import float_rows
from qnn_ext.topi_int8.generic.schedule import schedule_generic

SHAPES = [(12, 50, 50), (3, 197), (4, 43), (5, 12), (2, 3, 768), (130, 3072), (5, 15), (4, 16), (7, 1)]


def run(outputs, arrays, shape, threads):
    target = make_target("native", threads)
    function = schedule_generic(te.create_prim_func(outputs), target).with_attr("global_symbol", "main")
    built = tvm.compile(tvm.IRModule({"main": function}), target=target)
    out = tvm.runtime.tensor(np.zeros(shape, np.float32))
    built["main"](*map(tvm.runtime.tensor, arrays), out)
    return out.numpy()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_softmax(rng, shape, threads):
    x = (rng.standard_normal(shape) * 4).astype(np.float32)
    source = te.placeholder(shape, "float32", "x")
    actual = run([source, float_rows.softmax(source)], [x], shape, threads)
    np.testing.assert_array_equal(actual, reference.softmax(x))
    exps = np.exp((x - x.max(axis=-1, keepdims=True)).astype(np.float64))
    np.testing.assert_allclose(actual, exps / exps.sum(axis=-1, keepdims=True), rtol=2e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_log_softmax(rng, shape):
    x = (rng.standard_normal(shape) * 4).astype(np.float32)
    x.reshape(-1, shape[-1])[0] = np.arange(shape[-1]) * -200  # the sum is 1
    source = te.placeholder(shape, "float32", "x")
    actual = run([source, float_rows.log_softmax(source)], [x], shape, 2)
    np.testing.assert_array_equal(actual, reference.log_softmax(x))
    below = (x - x.max(axis=-1, keepdims=True)).astype(np.float64)
    np.testing.assert_allclose(actual, below - np.log(np.exp(below).sum(axis=-1, keepdims=True)), rtol=1e-6, atol=1e-6)
    assert actual.reshape(-1, shape[-1])[0, 0] == 0


def test_masked_softmax(rng):
    x = rng.standard_normal((3, 40)).astype(np.float32)
    x[:, 5:20] = -np.inf
    source = te.placeholder(x.shape, "float32", "x")
    actual = run([source, float_rows.softmax(source)], [x], x.shape, 1)
    np.testing.assert_array_equal(actual, reference.softmax(x))
    assert not actual[:, 5:20].any()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layer_norm(rng, shape, threads):
    x = (rng.standard_normal(shape) * 4 + 2).astype(np.float32)
    gamma, beta = (rng.standard_normal(shape[-1]).astype(np.float32) for _ in range(2))
    tensors = [
        te.placeholder(array.shape, "float32", name) for name, array in zip("xgb", (x, gamma, beta), strict=True)
    ]
    actual = run([*tensors, float_rows.layer_norm(*tensors, 1e-5)], [x, gamma, beta], shape, threads)
    np.testing.assert_array_equal(actual, reference.layer_norm(x, gamma, beta, 1e-5))
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    expected = centred / np.sqrt(wide.var(axis=-1, keepdims=True) + 1e-5) * gamma + beta
    np.testing.assert_allclose(actual, expected, atol=2e-5)
