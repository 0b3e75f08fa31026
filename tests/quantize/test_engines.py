"""Programs shared by modules that differ only in constants."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.errors import InputError
from qnn_ext.interpreter import Interpreter
from qnn_ext.op.base import constant_value
from qnn_ext.passes.rewrite import bindings_of, straight_line
from qnn_ext.quantize.engines import engine_of, shared_engine_of, shared_engines

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


def test_a_program_with_other_constants():
    one, two = network(1), network(2)
    operands = [arg for binding in bindings_of(one.ir["main"]) for arg in getattr(binding.value, "args", ())]
    (weight,) = [operand for operand in operands if constant_value(operand) is not None]
    other = np.random.default_rng(2).normal(size=(4, 3)).astype(np.float32)
    with shared_engines():
        runner = shared_engine_of(one)
        changed = runner.with_constants({weight: other})
        np.testing.assert_array_equal(changed(X), engine_of(two)(X))
        np.testing.assert_allclose(runner(X), Interpreter(one)(X), rtol=1e-5, atol=1e-6)


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


def test_modules_with_states_that_are_stepped():
    """s ← s + x · W, one program for all W; each starts with its own states after a reset."""

    def adding(seed):
        w = np.random.default_rng(seed).normal(size=(4, 4)).astype(np.float32)
        x, s = (relax.Var(name, relax.TensorType((1, 4), "float32")) for name in "xs")
        builder = relax.BlockBuilder()
        with straight_line(builder, "main", [x, s]) as returns:
            new = builder.emit(relax.op.add(s, builder.emit(relax.op.matmul(x, relax.const(w)))))
            returns(relax.Tuple([builder.emit(relax.op.negative(new)), new]))
        specs = [qnn_ext.TensorSpec(name, (1, 4), "float32") for name in "xy"]
        states = (qnn_ext.module.State("s", np.ones((1, 4), np.float32)),)
        return qnn_ext.QnnModule(builder.get(), (specs[0],), (specs[1],), states), w

    with shared_engines():
        (one, w), (two, v) = adding(1), adding(2)
        runners = [engine_of(module, stepped=True) for module in (one, two)]
        assert runners[0]._engine is runners[1]._engine
        assert engine_of(one) is not runners[0]._engine, "one that is not only stepped has an engine of its own"
        for runner, weight in zip(runners, (w, v), strict=True):
            runner.reset_state()
            for step in (1, 2):
                np.testing.assert_allclose(runner(X), -1 - step * (X @ weight), rtol=1e-5, atol=1e-6)


def test_programs_are_kept_on_disk(monkeypatch, tmp_path):
    """A second quantization of the same network compiles nothing."""
    monkeypatch.setenv("QNN_EXT_CACHE", str(tmp_path))
    monkeypatch.delitem(sys.modules, "qnn_ext.plugins", raising=False)  # with plugins, nothing is kept
    monkeypatch.setattr(sys.modules["qnn_ext.compiling.cache"], "WORTHWHILE", 0)
    with shared_engines():
        first = engine_of(network(1))
        expected = first(X)
    monkeypatch.setattr(sys.modules["qnn_ext.compiling.build"], "_lowered", None)
    with shared_engines():
        np.testing.assert_array_equal(engine_of(network(1))(X), expected)
        np.testing.assert_allclose(engine_of(network(2))(X), Interpreter(network(2))(X), rtol=1e-5, atol=1e-6)
        with pytest.raises(TypeError):
            engine_of(network(1, relax.op.tanh))
