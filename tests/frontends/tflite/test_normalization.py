"""L2_NORMALIZATION and LOCAL_RESPONSE_NORMALIZATION: against LiteRT, and the integer root over its range."""

import numpy as np
import pytest
from tvm import relax

from qnn_ext.frontends.tflite.converters.normalization import inverse_sqrt
from qnn_ext.frontends.tflite.integers import Wide
from qnn_ext.numerics import gemmlowp
from qnn_ext.op.base import constant_value
from qnn_ext.op.evaluate import interpret

from .oracle_cases import assert_equals_reference, cases_of


@pytest.mark.parametrize("case", cases_of("L2_NORMALIZATION LOCAL_RESPONSE_NORMALIZATION"))
def test_equals_litert(case):
    assert_equals_reference(case)


class Emitter:
    """As much of a node as expressions need."""

    def __init__(self):
        self.builder = relax.BlockBuilder()

    def emit(self, expr):
        return expr if constant_value(expr) is not None else self.builder.emit(expr)


def test_inverse_square_root(rng):
    edges = [0, 1, 2, 3, 4, 5, (1 << 27) - 1, 1 << 27, (1 << 29) - 1, 1 << 29, (1 << 31) - 1]
    values = np.concatenate([edges, (2 ** rng.uniform(0, 31, 300)).astype(np.int64)])
    node = Emitter()
    x = relax.Var("x", relax.TensorType(values.shape, "int64"))
    with node.builder.function("main", [x]):
        root, right = inverse_sqrt(Wide(node, x))
        node.builder.emit_func_output(node.builder.emit(relax.Tuple([root.expr, right.expr])))
    root, right = interpret(node.builder.get(), [values])
    expected = np.array([gemmlowp.inverse_sqrt(int(value)) for value in values])
    np.testing.assert_array_equal(root, expected[:, 0])
    np.testing.assert_array_equal(right, -expected[:, 1])
