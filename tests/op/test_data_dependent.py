"""qnn.true_positions and qnn.trim: sizes that depend on data."""

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext import op
from qnn_ext.errors import ShapeError
from qnn_ext.interpreter import Interpreter
from qnn_ext.module import QnnModule, TensorSpec
from qnn_ext.op.base import constant
from qnn_ext.op.trim import TRIM
from qnn_ext.op.true_positions import TRUE_POSITIONS
from qnn_ext.passes.rewrite import straight_line
from qnn_ext.qparams import QParams


def test_true_positions():
    found = TRUE_POSITIONS.reference(np.array([0, 1, 0, 1, 1, 0], bool))
    np.testing.assert_array_equal(found, np.array([1, 3, 4, 0, 0, 0], np.int32))
    assert not TRUE_POSITIONS.reference(np.zeros(3, bool)).any()
    for shape, dtype in (((2, 3), "bool"), ((6,), "int8")):
        with pytest.raises(ShapeError):
            op.true_positions(relax.Var("x", relax.TensorType(shape, dtype)))


def test_trim():
    data = np.arange(12).reshape(3, 4)
    np.testing.assert_array_equal(TRIM.reference(data, np.int64(2), axis=1), data[:, :2])
    assert TRIM.reference(data, np.int64(0), axis=0).shape == (0, 4)
    x, size = relax.Var("x", relax.TensorType((3, 4), "int8")), relax.Var("n", relax.TensorType((), "int64"))
    with pytest.raises(ShapeError, match="axis 2 is out of range for 2 dimensions"):
        op.trim(x, size, 2)


def selecting(length):
    """A module that returns the elements of a vector that are above 0, how many there are, and the whole vector."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((length,), "float32"))
    with straight_line(builder, "main", [x]) as returns:
        mask = builder.emit(relax.op.greater(x, constant(np.float32(0))))
        count = builder.emit(relax.op.sum(builder.emit(relax.op.astype(mask, "int64"))))
        positions = builder.emit(op.true_positions(mask))
        values = builder.emit(op.trim(builder.emit(relax.op.take(x, positions, 0)), count, 0))
        returns(relax.Tuple([values, count, x]))
    outputs = (
        TensorSpec("values", (length,), "float32", bounded=(0,)),
        TensorSpec("count", (), "int64"),
        TensorSpec("x", (length,), "float32"),
    )
    return QnnModule(builder.get(), (TensorSpec("x", (length,), "float32"),), outputs)


def test_engine_trims(tmp_path, rng):
    module = selecting(50)
    engine = qnn_ext.build(module, num_threads=1)
    assert str(engine.outputs[0]) == "values: ≤50 float32" and not engine.fallback
    engine.save(tmp_path / "m.qnn")
    runners = [Interpreter(module), engine, qnn_ext.load(tmp_path / "m.qnn"), engine.clone()]
    for x in (rng.standard_normal(50), np.ones(50), np.zeros(50)):
        x = x.astype(np.float32)
        for runner in runners:
            values, count, whole = runner(x)
            np.testing.assert_array_equal(values, x[x > 0])
            assert count == (x > 0).sum() and whole.shape == (50,)
    assert engine.submit([x]).result()["values"].shape == (0,)


def test_c_library_has_the_sizes_as_its_last_output(tmp_path):
    engine = qnn_ext.build(selecting(50), num_threads=1)
    engine.export_c(tmp_path / "library", name="chosen")
    header = (tmp_path / "library" / "chosen.h").read_text()
    assert "values, float32 [<=50]" in header and '#define CHOSEN_OUTPUT3_NAME "sizes"' in header


def test_real_values_of_quantized_results(rng):
    """What dequantizes an output comes after what trims it."""
    scale = QParams(np.float32(0.5), 3, "int8")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((20,), "int8"))
    with straight_line(builder, "main", [x]) as returns:
        mask = builder.emit(relax.op.greater(x, constant(np.int8(0))))
        count = builder.emit(relax.op.sum(builder.emit(relax.op.astype(mask, "int64"))))
        chosen = builder.emit(relax.op.take(x, builder.emit(op.true_positions(mask)), 0))
        returns(relax.Tuple([builder.emit(op.trim(chosen, count, 0))]))
    ports = TensorSpec("x", (20,), "int8", scale), TensorSpec("y", (20,), "int8", scale, bounded=(0,))
    module = QnnModule(builder.get(), ports[:1], ports[1:])
    engine = qnn_ext.build(module, num_threads=1, io="float32")
    values = rng.integers(-9, 9, 20).astype(np.int8)
    np.testing.assert_array_equal(engine(scale.dequantize(values)), scale.dequantize(values[values > 0]))
