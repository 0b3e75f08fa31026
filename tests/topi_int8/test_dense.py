"""dense kernels against int64 NumPy."""

from __future__ import annotations

import pytest

from qnn_ext.topi_int8 import DenseWorkload, candidates
from tests.cases.workloads import DENSE

from .kernels import CPUS, check, cpu_target


@pytest.mark.sampled("cpu", whole="native")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("m, k, n", DENSE)
def test_shapes(m, k, n, cpu):
    check(DenseWorkload(m, k, n, "uint8", "int8"), cpu_target(cpu))


@pytest.mark.parametrize("m, k, n", DENSE)
def test_generic_fallback(m, k, n):
    target = cpu_target("native")
    workload = DenseWorkload(m, k, n, "int16", "int8", "int64")
    implementation = candidates(workload, target)[-1]
    assert implementation.name == "dense.generic"
    check(workload, target, implementation, epilogue="none", fill=("min", "min"))


@pytest.mark.sampled("cpu", whole="native")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("fill", [("max", "min"), ("max", "max"), ("min", "min")], ids="-".join)
@pytest.mark.parametrize("data_dtype", ["uint8", "int8"])
@pytest.mark.parametrize("weight_dtype", ["uint8", "int8"])
def test_extremes_do_not_saturate(cpu, fill, data_dtype, weight_dtype):
    check(DenseWorkload(5, 512, 40, data_dtype, weight_dtype), cpu_target(cpu), epilogue="none", fill=fill)


@pytest.mark.sampled("cpu", whole="native")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("epilogue", ["none", "residual", "fixed_point"])
@pytest.mark.parametrize("n", [7, 48])
def test_epilogues(cpu, epilogue, n):
    check(DenseWorkload(9, 40, n, "uint8", "int8"), cpu_target(cpu), epilogue=epilogue)
