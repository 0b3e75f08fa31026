"""Open batches, operator by operator: samples that are kept apart are found, others are refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import relax

from qnn_ext import op
from qnn_ext.frontends.batch import _RULES, OpenBatchError, with_open_batch
from qnn_ext.module import QnnModule
from qnn_ext.op.base import OPS
from qnn_ext.op.traits import Kind
from tests.compiling.program.small import small_module

Operator = Callable[[relax.Expr], relax.Expr]

_FLOAT, _INT8, _INT16 = "float32", "int8", "int16"
_SCALES = (0.1, 0, 0.05, 0)
GAMMA = relax.const(np.ones(6, np.float32))


def opened(call: Operator, shape: tuple[int, ...], dtype: str, axis: int = 0) -> QnnModule:
    """The operator on tensors of this shape, of which an axis is the batch."""

    def import_for(batch: int) -> QnnModule:
        sizes = [batch if i == axis else size for i, size in enumerate(shape)]
        return small_module(lambda builder, params: [builder.emit(call(*params))], [(tuple(sizes), dtype)])

    return with_open_batch(import_for, "batch=")


APART: dict[str, tuple[Operator, tuple[int, ...], str]] = {
    "sigmoid": (lambda x: op.sigmoid(x, *_SCALES), (1, 4, 6), _INT8),
    "hardswish": (lambda x: op.hardswish(x, *_SCALES), (1, 4, 6), _INT8),
    "leaky_relu": (lambda x: op.leaky_relu(x, *_SCALES, alpha=0.1), (1, 4, 6), _INT8),
    "log_softmax": (lambda x: op.log_softmax(x, 0.1, 0, 0.05, 0, axis=-1), (1, 4, 6), _INT8),
    "normalize": (lambda x: op.normalize(x, 0.1, 0), (1, 4, 6), _INT8),
    "welford_norm": (lambda x: op.welford_norm(x, GAMMA, GAMMA), (1, 4, 6), _FLOAT),
    "rms_norm": (lambda x: op.rms_norm(x, GAMMA), (1, 4, 6), _FLOAT),
    "response_norm": (lambda x: op.response_norm(x, 3), (1, 4, 6), _FLOAT),
    "bfloat16": (op.bfloat16, (1, 4, 6), _FLOAT),
    "left_shift": (lambda x: relax.op.left_shift(x, relax.const(np.int16(2))), (1, 4, 6), _INT16),
    "flatten": (relax.op.nn.batch_flatten, (1, 4, 6), _FLOAT),
}


@pytest.mark.parametrize("name", APART)
def test_samples_are_kept_apart(name):
    module = opened(*APART[name])
    assert [spec.dynamic_batch for spec in module.outputs] == [True]


@pytest.mark.parametrize(("name", "shape", "axis"), [
    ("log_softmax", (1, 4, 1), 2), ("normalize", (1, 4, 1), 2), ("value_range", (1, 4, 6), 0),
])  # fmt: skip
def test_what_mixes_samples_is_refused(name, shape, axis):
    call, _, dtype = APART.get(name, (lambda x: op.value_range(relax.op.reshape(x, (-1,))), (), _FLOAT))
    with pytest.raises(OpenBatchError, match="samples"):
        opened(call, shape, dtype, axis)


# Reason -> operators that models have no rule for
WITHOUT = {
    "passes make them, behind the frontends": {
        *("attention", "batch_matmul_accumulate", "blockwise_dense_lanes", "blockwise_dequantize", "conv2d_accumulate"),
        *("contrib_dense_pack", "dense_accumulate", "lane_norm", "lane_softmax", "lane_sum", "observe", "row_sum"),
        *("wide_sum", "window_sum", "winograd_data", "winograd_results"),
    },
    "samples share what it finds": {
        *("first_violation", "non_max_suppression", "partial_sort", "range_scale", "range_zero_point"),
        *("true_positions", "value_range", "write_rows", "trim"),
    },
    "its body is compared": {"loop"},
}


def test_no_operator_is_forgotten():
    known = {name.removeprefix("relax.qnn.") for name in _RULES}
    left = {name for name, one in OPS.items() if name not in known and one.traits.kind is not Kind.POINTWISE}
    assert left == set().union(*WITHOUT.values())
