"""Running sums as kernels of a program: against NumPy."""

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from tests.cases.loops import as_model, assembled


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("shape", [(7,), (3, 4, 5), (2, 1, 6)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_running_sums(shape, dtype, exclusive, rng):
    def walk(a, x):
        return [a.emit(relax.op.cumsum(x, axis, exclusive=exclusive)) for axis in range(len(shape))]

    x = rng.normal(0, 9, shape).astype(dtype)
    module = as_model(assembled([("x", shape, dtype)], walk))
    engine = qnn_ext.build(module, num_threads=1)
    assert not engine.fallback
    interpreted = qnn_ext.Interpreter(module).run([x])
    for axis, (found, same) in enumerate(zip(engine.run([x]).values(), interpreted.values(), strict=True)):
        expected = np.cumsum(x, axis, dtype=dtype)
        if exclusive:
            first = np.zeros_like(np.take(x, [0], axis))
            expected = np.concatenate([first, np.take(expected, range(shape[axis] - 1), axis)], axis)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(same, expected)
