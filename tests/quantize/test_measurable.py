"""Models whose outputs have sizes that depend on data are quantized by what those are chosen from."""

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext import op
from qnn_ext.errors import InputError, QuantizationError
from qnn_ext.module import QnnModule, TensorSpec
from qnn_ext.op.base import constant
from qnn_ext.passes.rewrite import straight_line
from qnn_ext.quantize.compare import compare
from qnn_ext.quantize.measurable import measurable


def selecting(rng):
    """Rows of a product whose first element is above 0."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 16), "float32"))
    weight = constant(rng.standard_normal((16, 4)).astype(np.float32))
    with straight_line(builder, "main", [x]) as returns:
        rows = builder.emit(relax.op.matmul(x, weight), "rows")
        first = builder.emit(relax.op.reshape(relax.op.strided_slice(rows, [1], [0], [1]), (8,)), "first")
        mask = builder.emit(relax.op.greater(first, constant(np.float32(0))))
        count = builder.emit(relax.op.sum(builder.emit(relax.op.astype(mask, "int64"))))
        chosen = builder.emit(relax.op.take(rows, builder.emit(op.true_positions(mask)), 0))
        returns(relax.Tuple([builder.emit(op.trim(chosen, count, 0))]))
    outputs = (TensorSpec("chosen", (8, 4), "float32", bounded=(0,)),)
    return QnnModule(builder.get(), (TensorSpec("x", (8, 16), "float32"),), outputs)


def test_quantization(rng):
    module = selecting(rng)
    assert [spec.name for spec in measurable(module).outputs] == ["first", "rows"]
    data = [[rng.standard_normal((8, 16)).astype(np.float32)] for _ in range(3)]
    quantized = qnn_ext.quantize.quantize(module, dataset=data)
    assert quantized.outputs == module.outputs
    found, wanted = (qnn_ext.Interpreter(one)(data[0][0]) for one in (quantized, module))
    if found.shape == wanted.shape:
        np.testing.assert_allclose(found, wanted, atol=0.5)
    with pytest.raises(InputError, match="the size of output 'chosen' is known only at run time"):
        compare(module, quantized, data)
    with pytest.raises(QuantizationError, match="the size of output 'chosen' is known only at run time"):
        qnn_ext.quantize.quantize(module, dataset=data, min_sqnr=20)


def test_other_models_are_measured_by_their_outputs():
    x = relax.Var("x", relax.TensorType((2,), "float32"))
    builder = relax.BlockBuilder()
    with straight_line(builder, "main", [x]) as returns:
        returns(relax.Tuple([builder.emit(relax.op.exp(x))]))
    module = QnnModule(builder.get(), (TensorSpec("x", (2,), "float32"),), (TensorSpec("y", (2,), "float32"),))
    assert measurable(module) is module
