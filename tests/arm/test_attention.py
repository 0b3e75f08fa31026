"""Attention over caches of every dtype on emulated ARM: within the stated bound, and caches hold the same rows."""

from __future__ import annotations

import numpy as np
import pytest

import qnn_ext
from qnn_ext.op.attention import ATTENTION
from qnn_ext.passes.cache_dtype import with_cache_dtype
from tests.arm.engines import emulated
from tests.cpus import cpu_target
from tests.op.test_attention import SHAPES, integers, module, operands, tolerance
from tests.passes.test_cache_dtype import check_steps, model

CPUS = ("dotprod", "asimd", "armv7")


@pytest.mark.one_in(3)
@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels(shape, dtype, cpu, rng):
    *sizes, queries, samples = shape
    if dtype == "int8":
        query, cache, scales = integers(rng, *sizes)
        real = [rows * scale for rows, scale in zip(cache, scales, strict=True)]
    else:
        query, *cache = operands(rng, *sizes)
        cache, scales = [rows.astype(dtype) for rows in cache], []
        real = [rows.astype(np.float32) for rows in cache]
    positions = rng.integers(0, cache[0].shape[2], (samples, queries))
    arrays = [query, *cache, positions, *scales]
    engine = emulated(qnn_ext.build(module(arrays, 0.25), cpu_target(cpu, 1)))
    expected = ATTENTION.reference(*arrays, scale=0.25)
    np.testing.assert_allclose(engine(*arrays), expected, rtol=0, atol=tolerance(query, *real, 0.25))


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize("cpu", CPUS[:2])
def test_a_narrow_cache(cpu, dtype, rng):
    narrow = with_cache_dtype(model(2), dtype)
    check_steps(narrow, emulated(qnn_ext.build(narrow, cpu_target(cpu, 1))), rng)
