"""Sorting of all integers, those that TVM's kernels refuse among them."""

import numpy as np
import pytest
from tvm import relax

from qnn_ext.compiling.build import lower_module
from qnn_ext.op.evaluate import interpret
from qnn_ext.passes.sortable import WIDER
from tests.cpus import cpu_target

from .modules import run_lowered

OPERATORS = {
    "sort": lambda x: relax.op.sort(x, 0, descending=True),
    "argsort": lambda x: relax.op.argsort(x, -1, dtype="int32"),
    "values": lambda x: relax.op.topk(x, 3, -1, "values", largest=False, dtype="int64"),
    "indices": lambda x: relax.op.topk(x, 2, 0, "indices", largest=True, dtype="int32"),
    "both": lambda x: relax.op.topk(x, 4, -1, "both", largest=True, dtype="int64"),
}


@pytest.mark.parametrize("dtype", [*WIDER, "int32", "int64"])
@pytest.mark.parametrize("name", OPERATORS)
def test_equals_the_interpreter(rng, name, dtype):
    info = np.iinfo(dtype)
    x = np.stack(
        [
            rng.permutation(
                np.array(
                    [*range(int(info.min), int(info.min) + 4), *range(int(info.max) - 4, int(info.max) + 1)], dtype
                )
            )
            for _ in range(5)
        ]
    )
    x[0, :3] = info.max, info.max, info.max // 2 + 1  # equal ones, and the highest bit alone
    builder = relax.BlockBuilder()
    data = relax.Var("x", relax.TensorType(x.shape, dtype))
    with builder.function("main", [data]):
        with builder.dataflow():
            found = builder.emit(OPERATORS[name](data))
            parts = [found[0], found[1]] if name == "both" else [found]
            result = builder.emit_output(relax.Tuple([builder.emit(relax.op.flip(part, 0)) for part in parts]))
        builder.emit_func_output(result)
    target = cpu_target("x86-64", 1)
    actual = run_lowered(lower_module(builder.get(), target), [x], target)
    for one, expected in zip(actual, interpret(builder.get(), [x]), strict=True):
        np.testing.assert_array_equal(one, expected, strict=True)
