"""partition_conversions: three functions that make up the whole, and build."""

from dataclasses import replace

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.compiling.coverage import coverage
from qnn_ext.errors import QuantizationError
from qnn_ext.interpreter import Interpreter
from qnn_ext.op.base import constant
from qnn_ext.passes.rewrite import bindings_of
from qnn_ext.quantize import QConfig, quantize
from qnn_ext.quantize.partition import PARTS, partitions
from qnn_ext.quantize.realize import realize

from ..compiling.program.small import small_module
from .networks import NETWORKS, prepared, recurrent_module, weight
from .test_loops import network


def partitioned(name: str, mode: str):
    config = QConfig(target="x86-64", partition_conversions=mode)
    _, annotated, table, x = prepared(name, config)
    return realize(annotated, table, config), x


@pytest.mark.parametrize("name", NETWORKS)
def test_parts_make_up_the_whole(name):
    module, x = partitioned(name, "enabled")
    expected = Interpreter(module)(x)
    np.testing.assert_array_equal(qnn_ext.build(module, num_threads=1)(x), expected)
    assert coverage(module).share == 1.0
    values = {spec.name: x for spec in module.inputs}
    for part in partitions(module).values():
        values |= Interpreter(part).run({spec.name: values[spec.name] for spec in part.inputs})
    np.testing.assert_array_equal(values[module.outputs[0].name], expected)


@pytest.mark.parametrize("name", ["bottleneck", "decoder"])
def test_fully_integral(name):
    """Sums, gates and pools on 8-bit tensors: not one float value between the two ends."""
    module, x = partitioned(name, "fully_integral")
    middle = partitions(module)["integer_middle"]
    dtypes = {str(b.var.ty.dtype) for b in bindings_of(middle.ir["main"]) if hasattr(b.var.ty, "dtype")}
    assert dtypes <= {"uint8", "int32"}
    engine = qnn_ext.build(middle, num_threads=1)
    (q,) = Interpreter(partitions(module)["quantize_prefix"]).run([x]).values()
    for one, two in zip(engine.run([q]).values(), Interpreter(middle).run([q]).values(), strict=True):
        np.testing.assert_array_equal(one, two)


def test_fully_integral_names_what_is_in_the_way():
    with pytest.raises(QuantizationError, match=r"compute in float: .*qnn\.normalize"):
        partitioned("encoder", "fully_integral")


def test_names_of_parts():
    module, _ = partitioned("bottleneck", "enabled")
    assert {var.name_hint for var in module.ir.get_global_vars()} == {"main", *PARTS}
    assert partitions(module)["quantize_prefix"].inputs == module.inputs
    assert partitions(module)["dequantize_suffix"].outputs == module.outputs


def as_parts(module, values):
    """What the parts make of inputs and states, one after the other."""
    for part in partitions(module).values():
        values |= qnn_ext.build(part, num_threads=1).run({spec.name: values[spec.name] for spec in part.inputs})
    return values


def test_states_are_inputs_and_outputs_of_parts(rng):
    model = recurrent_module(rng)
    data = rng.normal(size=(6, 6)).astype(np.float32)
    module = quantize(model, dataset=data, config=QConfig(partition_conversions="enabled"))
    engine, state = qnn_ext.build(module, num_threads=1), np.zeros((1, 6), np.float32)
    for row in data:
        found = as_parts(module, {"x": row[None], "s": state})
        np.testing.assert_array_equal(found["y"], engine(row[None]))
        state = found["next s"]


def outputs_of_several_kinds(emit, x):
    """A mask and positions beside a float output, which come from before the last float operator."""
    y = emit(relax.op.matmul(x, weight(8, 5)))
    return [
        *(emit(relax.op.greater(y, constant(np.float32(0)))), emit(relax.op.argmax(y, 1))),
        *(emit(relax.op.nn.softmax(y)), emit(relax.op.sum(y))),
    ]


def halves(emit, x):
    """A tuple of floats between two products."""
    both = emit(relax.op.split(emit(relax.op.tanh(emit(relax.op.matmul(x, weight(8, 8))))), 2, 1))
    one, two = (emit(relax.TupleGetItem(both, i)) for i in range(2))
    return [emit(relax.op.matmul(emit(relax.op.multiply(one, two)), weight(4, 3)))]


@pytest.mark.parametrize("body", [outputs_of_several_kinds, halves])
def test_outputs_and_tuples(body, rng):
    model = small_module(lambda builder, params: body(builder.emit, *params), [((2, 8), "float32")])
    data = [rng.normal(size=(2, 8)).astype(np.float32) for _ in range(4)]
    module = quantize(model, dataset=data, config=QConfig(partition_conversions="enabled"))
    expected = qnn_ext.build(module, num_threads=1).run([data[0]])
    found = as_parts(module, {module.inputs[0].name: data[0]})
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


def test_loops_pass_on_their_results(rng):
    model = network(rng)
    data = [rng.normal(size=(5, 8)).astype(np.float32) for _ in range(4)]
    module = quantize(model, dataset=data, config=QConfig(partition_conversions="enabled"))
    found = as_parts(module, {module.inputs[0].name: data[0]})
    np.testing.assert_array_equal(found[module.outputs[0].name], qnn_ext.build(module, num_threads=1)(data[0]))


def test_sizes_known_at_run_time(rng):
    model = small_module(
        lambda builder, params: [builder.emit(relax.op.matmul(*params, weight(8, 5)))], [((2, 8), "float32")]
    )
    bounded = replace(model, outputs=(replace(model.outputs[0], bounded=(0,)),))
    with pytest.raises(QuantizationError, match="parts pass on no sizes"):
        partitions(bounded)
