"""partition_conversions: three functions that make up the whole, and build."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.compiling.coverage import coverage
from qnn_ext.errors import QuantizationError
from qnn_ext.interpreter import Interpreter
from qnn_ext.passes.rewrite import bindings_of
from qnn_ext.quantize import QConfig
from qnn_ext.quantize.partition import PARTS, partitions
from qnn_ext.quantize.realize import realize

from .networks import NETWORKS, prepared


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
