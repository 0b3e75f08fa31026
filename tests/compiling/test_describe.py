"""What a compiled model records of its kernels: where their operands come from, and what is in memory meanwhile."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext import op as qnn
from qnn_ext.op.base import constant
from qnn_ext.passes.rewrite import bindings_of, is_anonymous
from tests.cases.bundled import module_of
from tests.cases.loops import as_model
from tests.passes.modules import module, products_so_far


def _branches():
    """Two branches from one input, one of them three kernels long, and their sum."""
    rng = np.random.default_rng(0)

    def convolution(emit, x):
        weight = constant(rng.integers(-100, 100, (16, 3, 3, 16)).astype(np.int8))
        product = emit(qnn.conv2d(x, weight, 3, 0, 0.1, 0.1, padding=(1, 1, 1, 1)))
        return emit(qnn.requantize(product, 0.01, 0, 0.5, 0, out_dtype="uint8"))

    def body(emit, x):
        long = convolution(emit, convolution(emit, convolution(emit, x)))
        pooled = emit(relax.op.nn.max_pool2d(x, (3, 3), (1, 1), (1, 1, 1, 1), layout="NHWC"))
        return emit(qnn.add(long, pooled, 0.5, 0, 0.5, 0, 0.9, 0, out_dtype="uint8"))

    return as_model(module([((1, 8, 8, 16), "uint8")], body))


@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_name_the_kernels_they_read(threads):
    kernels = qnn_ext.build(_branches(), num_threads=threads).kernels
    products = [index for index, kernel in enumerate(kernels) if "conv2d" in kernel.operators]
    pool = next(index for index, kernel in enumerate(kernels) if "pool" in kernel.operators)
    first, second, third = products
    assert kernels[first].reads == [-1] and kernels[second].reads == [first] and kernels[pool].reads == [-1]
    assert sorted(kernels[third].reads) == sorted([second, pool]), "the sum is part of the last convolution's kernel"
    assert all(kernel.results == [{"shape": [1, 8, 8, 16], "dtype": "uint8"}] for kernel in kernels)


def test_memory_in_use_is_that_of_tensors_that_are_still_read():
    """1,024 bytes for each tensor: input, pooled branch, and the two that a convolution reads and writes."""
    engine = qnn_ext.build(_branches(), num_threads=1)
    live = [kernel.live_bytes for kernel in engine.kernels]
    assert 4 * 1024 <= max(live) <= engine.memory.feature_maps
    assert live[0] >= 2 * 1024


def test_a_kernel_names_every_tensor_that_it_computes():
    """A convolution and the addition behind it are one kernel, which is found by either's name."""
    found = module_of("digits_cnn_int8.tflite")
    kernels = qnn_ext.build(found).kernels
    named = {str(binding.var.name) for binding in bindings_of(found.ir["main"])}
    computed = {name for kernel in kernels for name in kernel.sources}
    assert {name for name in named if not is_anonymous(name)} <= computed
    assert any(len(kernel.sources) > 1 for kernel in kernels)


def test_kernels_in_a_loop_read_what_goes_into_it():
    engine = qnn_ext.build(module_of("digits_lstm_int8.tflite"))
    for index, kernel in enumerate(engine.kernels):
        assert kernel.reads and all(-3 <= read < index for read in kernel.reads)


def test_a_virtual_machine_counts_what_is_alive():
    """Sizes are counted from the tensors between the kernels."""

    def body(emit, x):
        once = emit(relax.op.nn.relu(x))
        return emit(products_so_far(once))

    engine = qnn_ext.build(as_model(module([((4, 64), "float32")], body)))
    assert engine.fallback
    assert all(kernel.live_bytes >= 4 * 64 * 4 for kernel in engine.kernels)
