"""Weights of convolutions, batches of matrices and experts in groups: equal to the float operator with the values that
the integers stand for."""

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.interpreter import Interpreter
from qnn_ext.module import QnnModule, TensorSpec
from qnn_ext.op.base import constant
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.quantize import QConfig, quantize
from qnn_ext.quantize.grouped.fitting import fitted
from qnn_ext.quantize.grouped.grid import GroupFormat
from tests.quantize.grouped.test_converting import by_row, error, operators
from tests.quantize.networks import float_module

FOUR_BITS = {"nbit_weight": 4, "group_size": 8}


def floats(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def rounded(matrix):
    """The values (N, K) that integers of 4 bits in groups of 8 stand for."""
    return fitted(matrix, GroupFormat(4, 8)).values.astype(np.float32)


def rounded_kernel(kernel, layout):
    """A convolution's weights, whose rows are taps · channels."""
    order = [layout.index("O"), *(i for i, letter in enumerate(layout) if letter not in "OI"), layout.index("I")]
    ordered = kernel.transpose(order)
    return rounded(ordered.reshape(len(ordered), -1)).reshape(ordered.shape).transpose(np.argsort(order))


def module_of(shape, operator, weight, **attributes):
    return float_module(shape, lambda emit, x: emit(operator(x, constant(weight), **attributes)))


conv1d, conv2d, conv3d = relax.op.nn.conv1d, relax.op.nn.conv2d, relax.op.nn.conv3d
CONVOLUTIONS = {
    "1x1": ((1, 12, 5, 4), conv2d, (6, 12, 1, 1), {}),
    "1x1_stride": ((2, 12, 5, 4), conv2d, (6, 12, 1, 1), {"strides": (2, 3)}),
    "3x3": ((1, 5, 6, 7), conv2d, (4, 5, 3, 3), {"padding": (1, 0, 2, 1)}),
    "dilation": ((1, 5, 9, 9), conv2d, (4, 5, 3, 2), {"dilation": (2, 3), "strides": (2, 1)}),
    "nhwc": ((2, 6, 5, 3), conv2d, (4, 3, 3, 3), {"data_layout": "NHWC", "kernel_layout": "OHWI", "padding": 1}),
    "hwio": ((1, 6, 5, 3), conv2d, (3, 2, 3, 4), {"data_layout": "NHWC", "kernel_layout": "HWIO"}),
    "1d": ((1, 6, 11), conv1d, (4, 6, 5), {"padding": 2, "strides": 2}),
    "3d": ((1, 3, 4, 5, 4), conv3d, (4, 3, 2, 3, 1), {"padding": (1, 0, 0)}),
}


def kernel_layout(attributes, weight):
    return attributes.get("kernel_layout", "OI" + "DHW"[-(weight.ndim - 2) :])


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name, rng):
    shape, operator, sizes, attributes = CONVOLUTIONS[name]
    weight = floats(rng, *sizes)
    found = quantize(module_of(shape, operator, weight, **attributes), config=QConfig(weight_only=True, **FOUR_BITS))
    assert operators(found).count("qnn.blockwise_dense") == 1 and not any("conv" in name for name in operators(found))
    assert not found.notes
    x = floats(rng, *shape)
    expected = Interpreter(
        module_of(shape, operator, rounded_kernel(weight, kernel_layout(attributes, weight)), **attributes)
    )(x)
    np.testing.assert_allclose(Interpreter(found)(x), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(qnn_ext.build(found, num_threads=1)(x), expected, rtol=1e-4, atol=1e-4)


def test_activations_of_convolutions_by_row(rng):
    """Each position has a scale of its own, and kernels equal the interpreter's bits."""
    weight, x = floats(rng, 6, 12, 1, 1), floats(rng, 1, 12, 3, 4)
    x[0, :, 1, 2] *= 1000
    found = quantize(module_of(x.shape, conv2d, weight), config=QConfig(dynamic=True, **FOUR_BITS))
    rows = by_row(x.transpose(0, 2, 3, 1).astype(np.float64)) @ rounded(weight[:, :, 0, 0]).T
    results = Interpreter(found)(x)
    np.testing.assert_allclose(results, rows.transpose(0, 3, 1, 2), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(qnn_ext.build(found, num_threads=1)(x), results)


def test_the_sum_behind_a_convolution_and_its_name_stay(rng):
    """A bias, an activation and the next convolution; overrides by the convolution's name and number."""
    weights = [floats(rng, 8, 4, 3, 3), floats(rng, 4, 8, 1, 1)]

    def body(emit, x):
        y = emit(conv2d(x, constant(weights[0]), padding=1))
        y = emit(relax.op.nn.relu(emit(relax.op.add(y, constant(floats(rng, 1, 8, 1, 1))))))
        return emit(conv2d(y, constant(weights[1])))

    module = float_module((1, 4, 6, 6), body)
    x = floats(rng, 1, 4, 6, 6)
    found = quantize(module, config=QConfig(weight_only=True, nbit_weight=8))
    exact = Interpreter(module)(x)
    np.testing.assert_allclose(qnn_ext.build(found, num_threads=2)(x), exact, atol=0.03 * np.abs(exact).max())
    first = next(str(b.var.name) for b in bindings_of(module.ir["main"]) if op_name(b.value) == "nn.conv2d")
    for settings in ({"skip_conv_layers": (0,)}, {"overrides": {first: {"precision": "float32"}}}):
        kept = quantize(module, config=QConfig(weight_only=True, **settings))
        assert operators(kept).count("nn.conv2d") == 1 and operators(kept).count("qnn.blockwise_dense") == 1
        assert [(note.node, note.reason) for note in kept.notes] == [(first, "the qconfig keeps this layer in float")]


@pytest.mark.parametrize("mode", [{"weight_only": True}, {"dynamic": True}])
def test_gptq_of_convolutions_is_better_than_the_nearest(mode, rng):
    """Pictures of one colour: the taps of a channel all see the same value."""
    weight = floats(rng, 6, 4, 3, 3) / 6
    data = [np.tile(floats(rng, 1, 4, 1, 1), (1, 1, 6, 6)) for _ in range(40)]
    module = module_of((1, 4, 6, 6), conv2d, weight)
    nearest, found = (
        error(module, QConfig(weight_rounding=rounding, **mode, **FOUR_BITS), data[:30], data[30:])
        for rounding in ("nearest", "gptq")
    )
    assert found < 0.5 * nearest


@pytest.mark.parametrize("shape", [(3, 5, 16), (1, 5, 16), (5, 16)])
@pytest.mark.parametrize("mode", [{"weight_only": True}, {"dynamic": True}])
def test_batches_of_matrices(shape, mode, rng):
    weight, x = floats(rng, 3, 16, 7), floats(rng, *shape)
    module = module_of(shape, relax.op.matmul, weight)
    found = quantize(module, config=QConfig(**mode, **FOUR_BITS))
    assert sum("dense" in name for name in operators(found)) == 3 and not found.notes
    packed = np.stack([rounded(matrix.T).T for matrix in weight])
    rows = by_row(x.astype(np.float64)) if "dynamic" in mode else x
    results = Interpreter(found)(x)
    np.testing.assert_allclose(results, rows @ packed, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(qnn_ext.build(found, num_threads=1)(x), results, rtol=1e-4, atol=1e-4)


def experts(weight, rows):
    """Each row times the matrix of the expert that is chosen for it."""
    x = relax.Var("x", relax.TensorType((rows, 1, weight.shape[1]), "float32"))
    chosen = relax.Var("chosen", relax.TensorType((rows,), "int32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, chosen]):
        with builder.dataflow():
            own = builder.emit(relax.op.take(constant(weight), chosen, 0, mode="clip"))
            result = builder.emit_output(relax.Tuple([builder.emit(relax.op.matmul(x, own))]))
        builder.emit_func_output(result)
    inputs = TensorSpec("x", (rows, 1, weight.shape[1]), "float32"), TensorSpec("chosen", (rows,), "int32")
    return QnnModule(builder.get(), inputs, (TensorSpec("y", (rows, 1, weight.shape[2]), "float32"),))


@pytest.mark.parametrize("mode", [{"weight_only": True}, {"dynamic": True}])
def test_experts_chosen_at_run_time(mode, rng):
    weight, chosen = floats(rng, 4, 16, 6), np.array([3, 0, 3, 9, -2], np.int32)
    found = quantize(experts(weight, 5), config=QConfig(**mode, **FOUR_BITS))
    assert "qnn.blockwise_dequantize" in operators(found) and operators(found).count("matmul") == 1
    reasons = [note.reason for note in found.notes]
    assert reasons == (["its weights, chosen at run time, are packed, what they multiply is not"] * ("dynamic" in mode))
    x = floats(rng, 5, 1, 16)
    expected = x @ np.stack([rounded(weight[expert].T).T for expert in chosen.clip(0, 3)])
    np.testing.assert_allclose(Interpreter(found)(x, chosen), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(qnn_ext.build(found, num_threads=1)(x, chosen), expected, rtol=1e-4, atol=1e-4)


REFUSED = {
    "in groups": ((1, 4, 5, 5), conv2d, (6, 2, 3, 3), {"groups": 2}),
    "transposed": ((1, 4, 5, 5), relax.op.nn.conv2d_transpose, (4, 6, 3, 3), {}),
    "batches": ((2, 3, 5, 8), relax.op.matmul, (2, 3, 8, 4), {}),
    "left factor": ((8, 4), lambda x, weight: relax.op.matmul(weight, x), (5, 8), {}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_others_stay_float_and_say_why(reason, rng):
    shape, operator, sizes, attributes = REFUSED[reason]

    def body(emit, x):
        y = emit(operator(x, constant(floats(rng, *sizes)), **attributes))
        last = int(y.ty.shape[-1])
        return emit(relax.op.matmul(y, constant(floats(rng, last, 3))))

    module = float_module(shape, body)
    found = quantize(module, config=QConfig(weight_only=True))
    (note,) = found.notes
    assert reason in note.reason
    assert operators(found).count("qnn.blockwise_dense") == 1
