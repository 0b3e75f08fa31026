"""ConvTranspose in quantized models: built engines have ONNX Runtime's bits, whose sums are of taps and blocks."""

from __future__ import annotations

import numpy as np
import pytest

import qnn_ext
from qnn_ext.compiling.build import qnn_pipeline
from qnn_ext.interpreter import interpret
from qnn_ext.op.relax_table import traits_of
from qnn_ext.op.traits import Kind
from qnn_ext.passes.float_weights import TRANSPOSED
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.targets.names import make_target

from .graphs import model, node, run_ort, value

F32 = np.float32
# shape of the data, of the weights, attributes
SHAPES = {
    "2 by 2": ((1, 40, 5, 6), (40, 3, 2, 2), {"strides": [2, 2]}),
    "long sums": ((2, 300, 4, 4), (300, 3, 2, 2), {"strides": [2, 2]}),
    "long sums, large image": ((1, 300, 12, 11), (300, 3, 2, 2), {"strides": [2, 2]}),
    "4 by 4": ((1, 20, 5, 7), (20, 4, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "3 by 3": ((1, 9, 6, 5), (9, 5, 3, 3), {"strides": [2, 2], "pads": [1, 0, 1, 0], "output_padding": [1, 0]}),
    "groups": ((2, 280, 4, 3), (280, 2, 2, 3), {"strides": [1, 2], "group": 2}),
    "depthwise": ((1, 16, 5, 5), (16, 1, 4, 4), {"strides": [2, 2], "group": 16, "pads": [1, 1, 1, 1]}),
    "dilated": ((1, 6, 7, 7), (6, 4, 3, 3), {"dilations": [2, 1], "pads": [2, 1, 0, 1]}),
    "cropped": ((1, 8, 1, 2), (8, 4, 4, 4), {"strides": [1, 2], "pads": [2, 0, 1, 3]}),
    "one dimension": ((2, 150, 9), (150, 4, 5), {"strides": [2], "pads": [1, 2]}),
}
WEIGHTS = ["stored", "per channel", "float"]


def graph(shape, weight_shape, weights, bias, quantized, rng, **attributes):
    """Quantized data, or a function of those for weights of floats, → ConvTranspose → Relu, quantized or not."""
    constants = {"s": F32(0.021), "z": np.uint8(117), "r": F32(0.05), "zr": np.uint8(90)}
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["d"])]
    if weights == "float":
        constants["w"] = rng.standard_normal(weight_shape).astype(F32)
        nodes.append(node("Tanh", ["d"], ["t"]))
    else:
        scales = () if weights == "stored" else weight_shape[1:2]
        constants["v"] = rng.integers(-127, 128, weight_shape).astype(np.int8)
        constants |= {"u": rng.uniform(0.01, 0.02, scales).astype(F32), "zw": np.zeros(scales, np.int8)}
        nodes.append(node("DequantizeLinear", ["v", "u", "zw"], ["w"], **({"axis": 1} if scales else {})))
    if bias:
        constants["b"] = rng.standard_normal(weight_shape[1] * attributes.get("group", 1)).astype(F32)
    data = "t" if weights == "float" else "d"
    nodes.append(node("ConvTranspose", [data, "w", *(["b"] if bias else [])], ["c"], **attributes))
    nodes.append(node("Relu", ["c"], ["y"]))
    if quantized:
        nodes[-1:] = [node("Relu", ["c"], ["p"]), node("QuantizeLinear", ["p", "r", "zr"], ["y"])]
    return model(nodes, [value("x", shape)], [value("y", None, np.uint8 if quantized else F32)], constants, 17)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("bias, quantized", [(True, False), (True, True), (False, False)])
def test_bits(name, weights, bias, quantized, rng):
    """ONNX Runtime rounds a bias where the result is quantized."""
    shape, weight_shape, attributes = SHAPES[name]
    proto = graph(shape, weight_shape, weights, bias, quantized, rng, **attributes)
    x = rng.standard_normal(shape).astype(F32)
    (expected,) = run_ort(proto, {"x": x}, optimized=True)
    found = qnn_ext.build(qnn_ext.from_onnx(proto), num_threads=1).run({"x": x})["y"]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("weights", WEIGHTS[:2])
@pytest.mark.parametrize("name", ["2 by 2", "long sums", "3 by 3", "groups", "one dimension"])
@pytest.mark.parametrize("bias", [False, True])
def test_microcontrollers_multiply_integers(name, weights, bias, rng):
    """They have no kernels for floats: sums are exact, and results at most a step from ONNX Runtime's rounded sums."""
    shape, weight_shape, attributes = SHAPES[name]
    proto = graph(shape, weight_shape, weights, bias, True, rng, **attributes)
    lowered = qnn_pipeline(qnn_ext.from_onnx(proto).ir, make_target("cortex-m4"))
    calls = [binding.value for body in lowered.functions.values() for binding in bindings_of(body)]
    products = [call for call in calls if traits_of(call).kind is Kind.ACCUMULATOR or op_name(call) in TRANSPOSED]
    assert products and all(str(product.ty.dtype) == "int32" for product in products)
    x = rng.standard_normal(shape).astype(F32)
    (expected,), (found,) = run_ort(proto, {"x": x}, optimized=True), interpret(lowered, [x])
    assert np.abs(expected.astype(int) - found).max() <= 1 and np.mean(expected != found) < 1e-2


def test_nothing_is_transposed_twice(rng):
    """What a convolution computes in NHWC is read as it is."""
    constants = {"s": F32(0.021), "z": np.uint8(117), "u": F32(0.01), "zw": np.int8(0)}
    constants |= {"v": rng.integers(-9, 9, (8, 8, 1, 1)).astype(np.int8)}
    constants |= {"vt": rng.integers(-9, 9, (8, 4, 2, 2)).astype(np.int8)}
    nodes = [node("DequantizeLinear", [name, "u", "zw"], [f"{name}_real"]) for name in ("v", "vt")]
    steps = [("Conv", "v_real", {}), ("ConvTranspose", "vt_real", {"strides": [2, 2]})]
    for index, (operator, weight, attributes) in enumerate(steps):
        nodes += [node("QuantizeLinear", [f"x{index}", "s", "z"], [f"q{index}"])]
        nodes += [node("DequantizeLinear", [f"q{index}", "s", "z"], [f"d{index}"])]
        nodes += [node(operator, [f"d{index}", weight], [f"x{index + 1}"], **attributes)]
    nodes += [node("QuantizeLinear", ["x2", "s", "z"], ["y"])]
    proto = model(nodes, [value("x0", (1, 8, 5, 6))], [value("y", None, np.uint8)], constants, 17)
    lowered = qnn_pipeline(qnn_ext.from_onnx(proto).ir, make_target("native"))
    moves = [binding.value for binding in bindings_of(lowered["main"]) if op_name(binding.value) == "permute_dims"]
    assert len(moves) == 1  # that of the input


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_batch_normalization(groups, bias, rng):
    """ONNX Runtime has one that alone reads a convolution in its weights."""
    constants = {"w": rng.standard_normal((6, 4 // groups, 2, 2)).astype(F32)}
    constants |= {name: rng.standard_normal(4).astype(F32) for name in ("scale", "shift", "mean", *["b"] * bias)}
    constants["variance"] = rng.uniform(0.3, 2, 4).astype(F32)
    inputs = ["x", "w", *["b"] * bias]
    nodes = [
        node("ConvTranspose", inputs, ["c"], strides=[2, 2], group=groups),
        node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["y"], epsilon=1e-3),
        node("DynamicQuantizeLinear", ["y"], ["q", "s", "z"]),
    ]
    outputs = [value("y", None), value("q", None, np.uint8)]
    proto = model(nodes, [value("x", (1, 6, 5, 4))], outputs, constants, 17)
    x = rng.standard_normal((1, 6, 5, 4)).astype(F32)
    expected = run_ort(proto, {"x": x}, optimized=True)
    found = qnn_ext.build(qnn_ext.from_onnx(proto), num_threads=1).run({"x": x})
    for ours, theirs in zip(found.values(), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_float_models_keep_one_sum(rng):
    """Nothing is quantized behind them: a convolution of all phases is as good, and needs no sums in between."""
    nodes = [node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2])]
    weights = {"w": rng.standard_normal((8, 4, 4, 4)).astype(F32)}
    proto = model(nodes, [value("x", (1, 8, 5, 5))], [value("y", None)], weights, 17)
    engine = qnn_ext.build(qnn_ext.from_onnx(proto), num_threads=1)
    assert len([kernel for kernel in engine.kernels if kernel.macs]) == 1
