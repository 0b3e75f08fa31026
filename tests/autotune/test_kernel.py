"""The program of a task: its kernel with any configuration gives the interpreter's result, and a wrong one is found."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from qnn_ext.autotune import space_of
from qnn_ext.autotune.kernel import kernel_of, product
from qnn_ext.autotune.worker import WrongResult, check
from qnn_ext.compiling.codegen import generate_code
from qnn_ext.op.accumulate import conv2d_array, matmul_nt
from qnn_ext.op.base import constant_value
from qnn_ext.topi_int8 import BatchMatmulWorkload, Conv2dWorkload, DenseWorkload

from .conftest import SMALL, small_task

WORKLOADS = [
    SMALL,
    Conv2dWorkload(1, 9, 8, 3, 20, (3, 3), (2, 2), (0, 0, 1, 1), (1, 1), 1, "uint8", "int8"),
    DenseWorkload(5, 24, 40, "int8", "int8"),
    BatchMatmulWorkload(2, 7, 16, 20, "uint8", "int8"),
]


FLOAT = ("float32", "float32", "float32")
FLOATS = [
    Conv2dWorkload(1, 9, 8, 3, 20, (3, 3), (2, 2), (0, 0, 1, 1), (1, 1), 1, *FLOAT),
    DenseWorkload(5, 24, 40, *FLOAT),
    Conv2dWorkload(1, 6, 5, 8, 20, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1, "uint8", "float32", "float32"),
    BatchMatmulWorkload(2, 7, 16, 20, *FLOAT),
]


@pytest.mark.parametrize("workload", [*WORKLOADS, *FLOATS], ids=str)
def test_kernels_give_the_interpreters_result(workload):
    task = small_task(workload)
    data = product(workload)
    configurations = space_of(task).configurations
    for configuration in (None, configurations[-1]):
        kernel = kernel_of(task, configuration)
        library = generate_code(kernel.module, task.target).jit()
        output = tvm.runtime.tensor(np.full(data.expected.shape, 0x5A, data.expected.dtype))
        check(library["main"], [*map(tvm.runtime.tensor, (*data.inputs, *kernel.constants)), output], data)


@pytest.mark.parametrize("workload", WORKLOADS, ids=str)
def test_data_reach_the_ends(workload):
    data = product(workload)
    for value in data.inputs:
        info = np.iinfo(value.dtype)
        assert (value.min(), value.max()) == (info.min, info.max)
        rows = value.reshape(-1, value.shape[-1])
        assert (rows == info.max).all(axis=1).any() or len(rows) < 8
    assert 8 <= data.expected.min() < 64 and 192 < data.expected.max() <= 248  # all of the range, nothing clipped


def test_expected_is_the_product():
    """The interpreter's result is what NumPy says: requantized sums fall on the same side of the zero point."""
    workload = DenseWorkload(16, 8, 3, "uint8", "int8")
    data = product(workload)
    calls = [binding.value for binding in data.module["main"].body.blocks[0].bindings]
    weight, bias = (constant_value(calls[i].args[1]) for i in (0, 1))
    sums = matmul_nt(data.inputs[0], weight, out_dtype="int32") + bias
    assert ((data.expected > 129) == (sums > 0))[np.abs(data.expected.astype(int) - 128) > 2].all()


def test_wrong_results_are_found(task):
    data = product(task.workload)

    def off_by_one(*arguments):
        wrong = data.expected.copy()
        wrong[0, 1, 2, 3] += 1
        arguments[-1].copyfrom(wrong)

    output = tvm.runtime.tensor(np.zeros(data.expected.shape, "uint8"))
    with pytest.raises(WrongResult, match=r"1 of 1152 outputs differ .* at \(0, 1, 2, 3\)"):
        check(off_by_one, [output], data)


def test_padding_counts():
    """Padded borders hold a value that is not zero, so that a kernel that forgets it gives another result."""
    workload = WORKLOADS[1]
    (x,) = product(workload).inputs
    geometry = {"strides": (2, 2), "padding": (0, 0, 1, 1), "dilation": (1, 1), "groups": 1, "out_dtype": "int32"}
    ones = np.ones((1, 3, 3, 3), "int8")
    zero, padded = (conv2d_array(x, ones, pad_value=value, **geometry) for value in (0, 3))
    assert (zero != padded).any()
