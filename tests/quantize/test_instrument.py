"""Instrumented modules: the observed tensors as outputs, in any chunk, with states, without transposes."""

from dataclasses import replace

import numpy as np
from tvm import relax

import qnn_ext
from qnn_ext import Interpreter
from qnn_ext.module import QnnModule, State, TensorSpec
from qnn_ext.op.base import constant
from qnn_ext.op.observe import observe
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.quantize.instrument import instrument
from tests.quantize.networks import float_module


def seen(expr, site):
    return observe(expr, site, layer=site, operator="nn.conv2d", role="input")


def network(rng):
    """input → convolution → relu → reshape → dense, observed at the input (twice), relu and dense."""
    kernel = rng.standard_normal((4, 3, 3, 3)).astype(np.float32)
    dense = rng.standard_normal((64, 5)).astype(np.float32)

    def body(emit, x):
        marked = emit(seen(emit(seen(x, "x")), "again"))
        weight = emit(observe(constant(kernel), "conv.weight", layer="conv", operator="nn.conv2d", role="weight"))
        relu = emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(marked, weight, padding=1))))
        marked = emit(seen(relu, "relu"))
        product = emit(relax.op.matmul(emit(relax.op.reshape(marked, (1, 64))), constant(dense)))
        return emit(seen(product, "dense"))

    return float_module((1, 3, 4, 4), body)


def results(module, x):
    found = Interpreter(module)(x)
    return found if isinstance(found, list) else [found]


def test_outputs_are_the_observed_tensors(rng):
    module = network(rng)
    instrumented = instrument(module, ["x", "again", "relu", "dense"])
    assert instrumented.sites == (("x", "again"), ("relu",), ("dense",))
    x = rng.standard_normal((1, 3, 4, 4)).astype(np.float32)
    first, relu, dense = results(instrumented.module, x)
    assert np.array_equal(first, x)
    assert relu.shape == (1, 4, 4, 4) and relu.min() == 0 < relu.max()
    assert np.array_equal(dense, Interpreter(module)(x))
    engine = qnn_ext.build(instrumented.module)
    for found, expected in zip(engine(x), (first, relu, dense), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_chunk_computes_only_what_it_needs(rng):
    instrumented = instrument(network(rng), ["relu"])
    assert instrumented.sites == (("relu",),)
    names = [op_name(binding.value) for binding in bindings_of(instrumented.module.ir["main"])]
    assert "matmul" not in names and "nn.conv2d" in names and "qnn.observe" not in names


def test_tensors_of_convolutions_come_with_channels_last(rng):
    """As the kernels compute them, so that the compiled module has no transpose but that of the input."""
    kernel = rng.standard_normal((8, 3, 3, 3)).astype(np.float32)

    def body(emit, x):
        relu = emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(x, constant(kernel)))))
        return emit(seen(relu, "relu"))

    module = float_module((1, 3, 8, 8), body)
    x = rng.standard_normal((1, 3, 8, 8)).astype(np.float32)
    found = results(instrument(module, ["relu"]).module, x)[0]
    assert found.shape == (1, 6, 6, 8)
    assert np.array_equal(found.transpose(0, 3, 1, 2), Interpreter(module)(x))


def test_states_follow_the_outputs(rng):
    """y = x + s; s ← y: what is observed is a running sum."""
    x, state = (relax.Var(name, relax.TensorType((1, 2), "float32")) for name in ("x", "s"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, state]):
        with builder.dataflow():
            y = builder.emit(seen(builder.emit(relax.op.add(x, state)), "sum"))
            result = builder.emit_output(relax.Tuple([builder.emit(relax.op.negative(y)), y]))
        builder.emit_func_output(result)
    spec = TensorSpec("x", (1, 2), "float32")
    initial = State("s", np.zeros((1, 2), np.float32))
    module = QnnModule(builder.get(), (spec,), (TensorSpec("y", (1, 2), "float32"),), (initial,))
    engine = qnn_ext.build(instrument(module, ["sum"]).module)
    ones = np.ones((1, 2), np.float32)
    assert [engine(ones).tolist() for _ in range(3)] == [[[1, 1]], [[2, 2]], [[3, 3]]]


def test_an_output_with_a_sites_name(rng):
    module = network(rng)
    named = replace(module, outputs=(replace(module.outputs[0], name="dense"),))
    outputs = instrument(named, ["relu", "dense"], with_outputs=True).module.outputs
    assert len({spec.name for spec in outputs}) == len(outputs) == 3 and outputs[0].name == "dense"
