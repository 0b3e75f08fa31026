"""qnn.write_rows: against index_copy of PyTorch and a loop, rows without a place, errors."""

import numpy as np
import pytest
from tvm import relax

from qnn_ext import build, op
from qnn_ext.errors import ShapeError
from qnn_ext.frontends.assembly import Assembly
from qnn_ext.module import QnnModule, TensorSpec
from qnn_ext.op.write_rows import WRITE_ROWS


def reference(data, rows, positions, axis):
    return WRITE_ROWS.reference(data, rows, positions, axis=axis, copies=False)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_index_copy(axis, rng):
    torch = pytest.importorskip("torch")
    data = rng.standard_normal((4, 5, 6)).astype(np.float32)
    positions = rng.permutation(data.shape[axis])[:3]
    rows = np.take(rng.standard_normal((4, 5, 6)).astype(np.float32), range(3), axis)
    expected = torch.from_numpy(data).index_copy(axis, torch.from_numpy(positions), torch.from_numpy(rows))
    np.testing.assert_array_equal(reference(data, rows, positions, axis), expected.numpy())


def test_each_sample_its_own_positions(rng):
    """The last of several rows at one position stays; a row outside is left out."""
    data, rows = rng.integers(-128, 128, (3, 4, 2)), rng.integers(-128, 128, (3, 2, 2))
    positions = np.array([[1, 1], [-1, 3], [4, 2**40]])
    expected = data.copy()
    expected[0, 1], expected[1, 3] = rows[0, 1], rows[1, 1]
    np.testing.assert_array_equal(reference(data, rows, positions, 1), expected)


@pytest.mark.parametrize("axis", [0, 1])
def test_kernels_of_elements(axis, rng):
    """Nothing follows the axis: each row is one element."""
    shape = (7,) if axis == 0 else (3, 7)
    data, rows = (rng.standard_normal(one).astype(np.float32) for one in (shape, (*shape[:-1], 3)))
    positions = np.array([6, 2, 9])
    assembly = Assembly()
    inputs = [assembly.input(name, x.shape, "float32") for name, x in (("data", data), ("rows", rows))]
    written = assembly.module(lambda: [assembly.emit(op.write_rows(*inputs, relax.const(positions), axis))])
    specs = [TensorSpec(name, x.shape, "float32") for name, x in (("data", data), ("rows", rows), ("y", data))]
    module = QnnModule(written, tuple(specs[:2]), tuple(specs[2:]))
    engine = build(module, num_threads=1)
    np.testing.assert_array_equal(engine(data, rows), reference(data, rows, positions, axis))


@pytest.mark.parametrize(
    "rows, positions, axis, message",
    [
        ((2, 3), (2,), 2, "axis must be from 0 to 1, found 2"),
        ((2, 4), (2,), 0, r"rows \(2, 4\) must have the shape of data \(5, 3\), but for axis 0"),
        ((3,), (3,), 0, r"rows \(3,\) must have the shape"),
        ((2, 3), (3,), 0, "positions must have shape"),
        ((2, 3), (5, 2), 0, "positions must have shape"),
    ],
)
def test_shapes(rows, positions, axis, message):
    given = [((5, 3), "float32"), (rows, "float32"), (positions, "int32")]
    with pytest.raises(ShapeError, match=message):
        op.write_rows(*(relax.Var("v", relax.TensorType(shape, dtype)) for shape, dtype in given), axis)
