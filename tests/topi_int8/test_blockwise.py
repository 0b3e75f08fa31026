"""Kernels of products with block-wise quantized weights against the interpreter: equal where integers are summed,
within the stated bound where floats are."""

from __future__ import annotations

import numpy as np
import pytest

from qnn_ext.compiling.build import lower_module
from qnn_ext.interpreter import interpret
from qnn_ext.numerics.packed import WIDTHS
from qnn_ext.passes.fuse import fuse
from qnn_ext.passes.lower import lower
from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8 import BlockwiseWorkload, candidates
from tests.cases.blockwise import SHAPES, ZEROS, bound_of, float_product, int8_product, weight_of
from tests.cpus import cpu_target
from tests.passes.modules import run_lowered

from .kernels import CPUS


def run(mod, inputs, target):
    return run_lowered(lower_module(mod, target), inputs, target)[0]


@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("zeros", ZEROS[:2])
@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_int8(shape, by_row, zeros, dtype, cpu):
    rng, (rows, depth, units, group) = np.random.default_rng(1), shape
    mod, inputs = int8_product(rng, rows, weight_of(rng, units, depth, group, dtype, zeros), by_row)
    np.testing.assert_array_equal(run(mod, inputs, cpu_target(cpu, 1)), interpret(mod, inputs)[0])


@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("shape", SHAPES)
def test_floats(shape, zeros, dtype, cpu):
    rng, (rows, depth, units, group) = np.random.default_rng(2), shape
    weight = weight_of(rng, units, depth, group, dtype, zeros)
    mod, inputs = float_product(rng, rows, weight)
    distance = np.abs(run(mod, inputs, cpu_target(cpu, 1)).astype(np.float64) - interpret(mod, inputs)[0])
    assert (distance <= bound_of(inputs[0], weight)).all()


@pytest.mark.parametrize("fill", [-128, 127])
@pytest.mark.parametrize("dtype", WIDTHS)
def test_ends(dtype, fill):
    """No sum saturates."""
    rng = np.random.default_rng(3)
    weight = weight_of(rng, 16, 128, 128, dtype, "integers")
    for ends in (0, 255):
        weight.packed[:] = ends
        mod, inputs = int8_product(rng, 2, weight, False, fill)
        np.testing.assert_array_equal(run(mod, inputs, cpu_target("native", 1)), interpret(mod, inputs)[0])


@pytest.mark.parametrize("scales", ["float16", "bfloat16"])
@pytest.mark.parametrize("dtype, group", [("int4", 32), ("uint8", 18)])
def test_scales_of_16_bits(dtype, group, scales):
    """Also groups that no instruction takes."""
    rng = np.random.default_rng(4)
    mod, inputs = int8_product(rng, 3, weight_of(rng, 9, 54, group, dtype, "integers", scales), False)
    np.testing.assert_array_equal(run(mod, inputs, cpu_target("native", 2)), interpret(mod, inputs)[0])


EXPECTED = {
    "sapphirerapids": ("vpdpbusd_512", "vpdpbusd_512", "fma_512"),
    "alderlake": ("vpdpbusd_256", "vpdpbusd_256", "fma_256"),
    "skylake-avx512": ("vpmaddubsw_512", "vpmaddwd_512", "fma_512"),
    "haswell": ("vpmaddubsw_256", "vpmaddwd_256", "fma_256"),
    "x86-64": ("pmaddwd_128", "pmaddwd_128", "blockwise.generic"),
    "rpi4": ("mla_int4", "mla_int8", "fmla"),
    "rpi5": ("sdot_int4", "sdot_int8", "fmla"),
    "armv7": ("mla_int4", "mla_int8", "blockwise.generic"),
}


@pytest.mark.parametrize("cpu", EXPECTED)
def test_the_instruction(cpu):
    """int4 and int8 weights with int8 activations, int4 weights with floats."""
    rng, target = np.random.default_rng(5), make_target(cpu, 1)
    int4, int8 = (weight_of(rng, 32, 64, 32, dtype) for dtype in ("int4", "int8"))
    modules = [int8_product(rng, 1, int4, True)[0], int8_product(rng, 1, int8, True)[0], float_product(rng, 1, int4)[0]]
    for mod, expected in zip(modules, EXPECTED[cpu], strict=True):
        lowered = lower(fuse(mod), target)
        (name,) = (
            str(function.attrs["qnn_implementation"])
            for function in lowered.functions.values()
            if function.attrs and "qnn_implementation" in function.attrs
        )
        assert expected in name


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("data", ["int8", "float32"])
def test_packed_weights_do_not_depend_on_the_rows(data, cpu):
    """A language model's products of one token and of many share them."""
    rng, target = np.random.default_rng(1), cpu_target(cpu, 1)
    for units in (1024, 1096, 2200):
        weight = weight_of(rng, units, 64, 32, "uint4", "integers")
        arrays = weight.packed, weight.scale, weight.zero_point
        found = []
        for rows in (1, 2, 7, 128):
            workload = BlockwiseWorkload(rows, 64, units, 32, data, "uint4", zero_point=None)
            chosen = candidates(workload, target)[0]
            found.append([] if chosen.pack_weight is None else chosen.pack_weight(workload, *arrays))
        for others in found[1:]:
            assert len(others) == len(found[0])
            for array, other in zip(found[0], others, strict=True):
                np.testing.assert_array_equal(array, other)
