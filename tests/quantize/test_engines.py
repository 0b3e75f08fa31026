"""Programs shared by modules that differ only in constants."""

from dataclasses import replace

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.errors import InputError
from qnn_ext.interpreter import Interpreter
from qnn_ext.quantize.engines import engine_of, shared_engines

from .networks import float_module

X = np.random.default_rng(2).normal(size=(1, 4)).astype(np.float32)


def network(seed, activation=relax.op.nn.relu):
    w = np.random.default_rng(seed).normal(size=(4, 3)).astype(np.float32)
    return float_module((1, 4), lambda emit, x: emit(activation(emit(relax.op.matmul(x, relax.const(w))))))


def test_the_same_operators_are_compiled_once():
    one, two, other = network(1), network(2), network(1, relax.op.tanh)
    with shared_engines():
        runners = [engine_of(module) for module in (one, two, other)]
        assert runners[0]._engine is runners[1]._engine and runners[0]._engine is not runners[2]._engine
        for module, runner in zip((one, two, other), runners, strict=True):
            np.testing.assert_allclose(runner(X), Interpreter(module)(X), rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(runner.run({"x": X})["y"], runner(X))
        with shared_engines():
            assert engine_of(two)._engine is runners[0]._engine, "inner contexts share with outer ones"
        with pytest.raises(InputError, match="this model takes 'x'"):
            runners[0].run({"z": X})
    assert isinstance(engine_of(one), qnn_ext.Engine)


def test_any_batch_size():
    module = network(1)
    dynamic = replace(
        module,
        inputs=tuple(replace(spec, dynamic_batch=True) for spec in module.inputs),
        outputs=tuple(replace(spec, dynamic_batch=True) for spec in module.outputs),
    )
    batch = np.random.default_rng(3).normal(size=(5, 4)).astype(np.float32)
    with shared_engines():
        found = engine_of(dynamic)(batch)
    np.testing.assert_allclose(found, [Interpreter(module)(row[None])[0] for row in batch], rtol=1e-5, atol=1e-6)
