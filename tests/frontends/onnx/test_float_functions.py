"""Float functions have the bits of ONNX Runtime with all optimizations, on x86 with fused multiply-add.

ONNX Runtime sums rows of a softmax in the order of AVX-512 only where the CPU has it, and takes its approximation of
GELU for groups of 16 elements.
"""

import math

import numpy as np
import pytest

import qnn_ext
from qnn_ext.targets.host import host_features

from .graphs import interpret, model, node, run_ort, value

pytestmark = pytest.mark.skipif("fma" not in host_features(), reason="ONNX Runtime rounds otherwise without FMA")
F32 = np.float32
QUANTIZED = "q"
HALVES = {"half": F32(0.5), "one": F32(1)}
GELU = ["Mul", ["x", "half"], ["h"]], ["Erf", ["r"], ["e"]], ["Add", ["e", "one"], ["p"]], ["Mul", ["h", "p"], ["y"]]


def check(nodes, constants, x, opset=20, outputs=("y",), interpreted=True):
    """The compiled model gives ONNX Runtime's bits, and so does the interpreter unless there are float products. Signs
    of zeros are left open."""
    feed = x if isinstance(x, dict) else {"x": x}
    inputs = [value(name, array.shape, F32) for name, array in feed.items()]
    results = [value(name, None, np.uint8 if name == QUANTIZED else F32) for name in outputs]
    proto = model(nodes, inputs, results, constants, opset)
    expected = run_ort(proto, feed, optimized=True)
    compiled = qnn_ext.build(qnn_ext.from_onnx(proto), num_threads=1).run(feed)
    for found in [list(compiled.values()), *([interpret(proto, feed)] if interpreted else [])]:
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def numbers(rng, *shape):
    return rng.standard_normal(shape).astype(F32)


@pytest.mark.parametrize("scale", [1, 30])
@pytest.mark.parametrize("operator", ["Sigmoid", "Tanh", "Erf", "Softsign", "HardSigmoid", "HardSwish", "Gelu", "Sqrt"])
def test_functions_of_one_tensor(rng, operator, scale):
    x = np.concatenate([numbers(rng, 3996) * scale, np.float32([0, 1e30, -1e30, 1e-30])])
    check([node(operator, ["x"], ["y"])], {}, x)


@pytest.mark.parametrize(
    "shape, axis", [((500, 3), -1), ((200, 8), 1), ((100, 33), -1), ((20, 1000), -1), ((7, 90), 0)]
)
def test_log_softmax(rng, shape, axis):
    """C's logarithm of a sum, which ONNX Runtime takes, is not always the float nearest to the true one."""
    x = numbers(rng, *shape) * 3
    nodes, results = [node("LogSoftmax", ["x"], ["y"], axis=axis)], [value("y", None, F32)]
    proto = model(nodes, [value("x", shape, F32)], results, {}, 17)
    (expected,) = run_ort(proto, {"x": x}, optimized=True)
    (found,) = interpret(proto, {"x": x})
    np.testing.assert_array_equal(qnn_ext.build(qnn_ext.from_onnx(proto), num_threads=1)(x), found)
    assert (found == expected).all(axis=axis).mean() > 0.9
    np.testing.assert_allclose(found, expected, rtol=2.0**-22)


def test_exp(rng):
    check([node("Exp", ["x"], ["y"])], {}, np.linspace(-87, 88, 4000, dtype=F32))


@pytest.mark.parametrize("operator", ["Celu", "Elu", "Selu", "Softplus", "Mish"])
@pytest.mark.parametrize("alpha", [None, 0.7, -0.5])
def test_activations_with_exponentials(rng, operator, alpha):
    attributes = {} if alpha is None or operator in ("Softplus", "Mish") else {"alpha": alpha}
    x = np.concatenate([numbers(rng, 2000) * 3, numbers(rng, 1996) * 20, np.float32([0, 1e30, -80, -1e-30])])
    check([node(operator, ["x"], ["y"], **attributes)], {}, x)


def test_logarithm(rng):
    x = np.concatenate([np.abs(numbers(rng, 3000)), np.exp(numbers(rng, 1000) * 20), np.float32([1e-40, 1, 3e38])])
    check_quantized([node("Log", ["x"], ["y"])], {}, x)


@pytest.mark.parametrize("operator", ["Sin", "Cos"])
def test_periodic_functions(rng, operator):
    x = np.concatenate([numbers(rng, 2000) * 4, numbers(rng, 2000) * 3000])
    check_quantized([node(operator, ["x"], ["y"])], {}, x)


@pytest.mark.parametrize("operator", ["Sin", "Cos"])
def test_periodic_functions_of_large_numbers(operator):
    x = np.float32([3e4, -1e6, 3e38, np.inf, -np.inf, np.nan, -0.0, 0.0])
    nodes = [node(operator, ["x"], ["y"]), node("DynamicQuantizeLinear", ["x"], [QUANTIZED, "s", "z"])]
    results = [value("y", None, F32), value(QUANTIZED, None, np.uint8)]
    proto = model(nodes, [value("x", (8,), F32)], results, {}, 20)
    expected = run_ort(proto, {"x": x}, optimized=True)[0]
    for found in (interpret(proto, {"x": x})[0], qnn_ext.build(qnn_ext.from_onnx(proto)).run({"x": x})["y"]):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_hard_sigmoid_with_a_slope(rng):
    check([node("HardSigmoid", ["x"], ["y"], alpha=1 / 6, beta=0.25)], {}, numbers(rng, 4000) * 4)


def test_gelu_by_tanh(rng):
    check([node("Gelu", ["x"], ["y"], approximate="tanh")], {}, numbers(rng, 4000) * 4)
    check([node("FastGelu", ["x"], ["y"], domain="com.microsoft")], {}, numbers(rng, 4000) * 4)


@pytest.mark.parametrize("alpha", [1.0, 1.702])
def test_sigmoid_times_its_argument(rng, alpha):
    nodes = [node("Mul", ["x", "a"], ["s"]), node("Sigmoid", ["s"], ["g"]), node("Mul", ["x", "g"], ["y"])]
    check(
        nodes if alpha != 1 else [node("Sigmoid", ["x"], ["g"]), nodes[-1]], {"a": F32(alpha)}, numbers(rng, 4000) * 4
    )


@pytest.mark.parametrize("operator, root", [("Div", 2**0.5), ("Mul", 0.5**0.5)])
def test_gelu_written_out(rng, operator, root):
    nodes = [node(operator, ["x", "root"], ["r"]), *(node(*one) for one in GELU)]
    check(nodes, HALVES | {"root": F32(root)}, numbers(rng, 4000) * 4)


def test_gelu_whose_inner_value_has_another_reader(rng):
    """ONNX Runtime divides there."""
    nodes = [node("Div", ["x", "root"], ["r"]), *(node(*one) for one in GELU), node("Abs", ["r"], ["z"])]
    check(nodes, HALVES | {"root": F32(2**0.5)}, numbers(rng, 4000) * 4, outputs=("y", "z"))


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("change", ["", "square", "factor", "another reader"])
def test_gelu_by_tanh_written_out(rng, ends, change):
    """ONNX Runtime makes one operator of it, unless the graph returns it or reads something within."""
    constants = HALVES | {"k": F32(0.04 if change == "factor" else 0.044715), "s": F32(0.79788457), "three": F32(3)}
    if change == "square":
        inner = ["Mul", ["k", "x"], ["a"]], ["Mul", ["x", "a"], ["b"]], ["Add", ["one", "b"], ["c"]]
        inner = *inner, ["Mul", ["x", "s"], ["d"]], ["Mul", ["c", "d"], ["i"]]
    else:
        inner = ["Pow", ["x", "three"], ["a"]], ["Mul", ["a", "k"], ["b"]], ["Add", ["x", "b"], ["c"]]
        inner = *inner, ["Mul", ["s", "c"], ["i"]]
    outer = ["Tanh", ["i"], ["t"]], ["Add", ["t", "one"], ["p"]], ["Mul", ["half", "x"], ["h"]]
    nodes = [node(*one) for one in (*inner, *outer, ["Mul", ["p", "h"], ["g"]], ["Abs", ["g"], ["y"]])]
    nodes += [node("Neg", ["b"], ["z"])] if change == "another reader" else []
    outputs = ("y", *(["z"] if change == "another reader" else []), *(["g"] if ends else []))
    check(nodes, constants, numbers(rng, 4000) * 4, outputs=outputs)


@pytest.mark.skipif("avx512f" not in host_features(), reason="the order of sums is that of AVX-512")
@pytest.mark.parametrize("length", [7, 16, 64, 197, 768])
def test_softmax(rng, length):
    check([node("Softmax", ["x"], ["y"], axis=-1)], {}, numbers(rng, 40, length) * 3)


@pytest.mark.parametrize("length", [8, 12, 15, 64, 197, 203, 768])
def test_layer_normalization(rng, length):
    constants = {"g": numbers(rng, length), "b": numbers(rng, length)}
    nodes = [node("LayerNormalization", ["x", "g", "b"], ["y"], axis=-1, epsilon=1e-5)]
    check(nodes, constants, numbers(rng, 40, length) * 2 + F32(0.5))


@pytest.mark.parametrize("subtractions", [1, 2])
@pytest.mark.parametrize("length", [96, 197])
def test_layer_normalization_written_out(rng, length, subtractions):
    nodes, constants = written_out(rng, length)
    if subtractions == 2:
        nodes[2:3] = [node("Sub", ["x", "m"], ["d2"]), node("Pow", ["d2", "two"], ["s"])]
    check(nodes, constants, numbers(rng, 40, length) * 2 + F32(0.5), opset=13)


@pytest.mark.parametrize("change", ["mean over rows", "cube", "deviations are an output", "γ of one row each"])
def test_what_is_no_layer_normalization(rng, change):
    nodes, constants = written_out(rng, 96)
    if change == "mean over rows":
        nodes[0] = node("ReduceMean", ["x"], ["m"], axes=[0])
    elif change == "cube":
        constants["two"] = F32(4)
    elif change == "γ of one row each":
        constants["g"] = numbers(rng, 40, 1)
    outputs = ("y", "d") if change == "deviations are an output" else ("y",)
    proto = model(nodes, [value("x", (40, 96), F32)], [value(name, None, F32) for name in outputs], constants, 13)
    module = qnn_ext.from_onnx(proto)
    assert "layer_norm" not in module.ir.script()
    feed = {"x": numbers(rng, 40, 96)}
    for ours, theirs in zip(interpret(proto, feed), run_ort(proto, feed), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def written_out(rng, length):
    """The nodes and constants of a layer normalization as before operator set 17."""
    nodes = [
        node("ReduceMean", ["x"], ["m"], axes=[-1]),
        node("Sub", ["x", "m"], ["d"]),
        node("Pow", ["d", "two"], ["s"]),
        node("ReduceMean", ["s"], ["v"], axes=[-1]),
        node("Add", ["v", "eps"], ["w"]),
        node("Sqrt", ["w"], ["q"]),
        node("Div", ["d", "q"], ["n"]),
        node("Mul", ["n", "g"], ["t"]),
        node("Add", ["t", "b"], ["y"]),
    ]
    return nodes, {"g": numbers(rng, length), "b": numbers(rng, length), "two": F32(2), "eps": F32(1e-5)}


ROOT = F32(1 / math.sqrt(5))
SCALED = {
    "both operands": [("Mul", "a s p"), ("Mul", "s b q"), ("MatMul", "p q y")],
    "divided": [("Div", "a s p"), ("MatMul", "p b y")],
    "the result divided": [("MatMul", "a b p"), ("Div", "p s y")],
    "an operand and the result": [("Mul", "a s p"), ("MatMul", "p b q"), ("Mul", "q s y")],
    "by what is computed later": [("MatMul", "a b p"), ("Sqrt", "s r"), ("Div", "p r y")],
    "twice": [("Mul", "a s o"), ("Div", "o s2 p"), ("MatMul", "p b y")],
    "behind a transposition": [("Transpose", "c t"), ("Mul", "t s q"), ("MatMul", "a q y")],
    "before a transposition": [("Mul", "c s q"), ("Transpose", "q t"), ("MatMul", "a t y")],
    "with another reader": [("Mul", "a s p"), ("MatMul", "p b y"), ("Relu", "p z")],
    "a result with another reader": [("MatMul", "a b p"), ("Div", "p s y"), ("Relu", "p z")],
    "by a vector": [("Mul", "a v p"), ("MatMul", "p b y")],
}


@pytest.mark.parametrize("case", SCALED)
def test_products_are_scaled_once(rng, case):
    nodes = []
    for operator, names in SCALED[case]:
        *read, written = names.split()
        nodes.append(node(operator, read, [written], **({"perm": [0, 2, 1]} if operator == "Transpose" else {})))
    shapes = {"a": (3, 20, 32), "b": (3, 32, 24), "c": (3, 24, 32)}
    read = {name for one in nodes for name in one.input}
    feed = {name: numbers(rng, *shape) for name, shape in shapes.items() if name in read}
    constants = {"s": ROOT, "s2": np.array([1.7], F32), "v": numbers(rng, 32)}
    outputs = [name for one in nodes for name in one.output if name in ("y", "z")]
    check(
        nodes,
        {name: array for name, array in constants.items() if name in read},
        feed,
        outputs=outputs,
        interpreted=False,
    )


def test_layer_normalization_of_quantized_tensors(rng):
    """It is computed in float, as by ONNX Runtime, so that the quantization behind it rounds the same bits."""
    scale, zero_point = F32(0.031), np.uint8(120)
    constants = {"g": numbers(rng, 96), "b": numbers(rng, 96), "s": scale, "z": zero_point}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("LayerNormalization", ["d", "g", "b"], ["n"], axis=-1),
        node("QuantizeLinear", ["n", "s", "z"], ["r"]),
        node("DequantizeLinear", ["r", "s", "z"], ["y"]),
    ]
    check(nodes, constants, numbers(rng, 400, 96))
    check(nodes[:3], constants, numbers(rng, 40, 96), outputs=("n",))


def test_functions_of_quantized_tensors_are_tables(rng):
    constants = {"s": F32(0.031), "z": np.uint8(120)}
    to, back = "QuantizeLinear", "DequantizeLinear"
    steps = [(to, "x", "q"), (back, "q", "d"), (to, "t", "r"), (back, "r", "y")]
    nodes = [node(operator, [read, "s", "z"], [written]) for operator, read, written in steps]
    nodes.insert(2, node("Tanh", ["d"], ["t"]))
    check(nodes, constants, numbers(rng, 400))
    inputs = [value("x", (400,), F32)]
    module = qnn_ext.from_onnx(model(nodes, inputs, [value("y", None, F32)], constants, 20))
    assert "qnn.table" in module.ir.script() and "float_function" not in module.ir.script()


def check_quantized(nodes, constants, x, outputs=("y",), **options):
    """The same with the first output quantized: only such models have ONNX Runtime's sums."""
    quantized = node("DynamicQuantizeLinear", [outputs[0]], [QUANTIZED, "s", "z"])
    check([*nodes, quantized], constants, x, outputs=(*outputs, QUANTIZED), **options)


@pytest.mark.parametrize("columns", [5, 16, 17, 33, 64, 65, 130])
@pytest.mark.parametrize("terms", [127, 300, 1100])
def test_products_of_two_tensors(rng, columns, terms):
    """ONNX Runtime adds them in blocks, whose length depends on the number of columns."""
    x = {"a": numbers(rng, 2, 5, terms), "b": numbers(rng, 2, terms, columns)}
    check_quantized([node("MatMul", ["a", "b"], ["y"])], {}, x, interpreted=False)


@pytest.mark.parametrize(
    "terms, columns, scale",
    [(1, 5, 0), (3, 8, 0), (7, 16, 0), (37, 64, 0), (130, 20, 0), (300, 33, 0), (37, 64, 0.3), (64, 64, 0.3)],
)
def test_a_row_times_a_computed_matrix(rng, terms, columns, scale):
    """Four products at a time, neither fused nor in blocks; with a scale, as several rows."""
    x = {"a": numbers(rng, 2, 3, 1, terms), "b": numbers(rng, 2, 3, terms, columns)}
    nodes = [node("MatMul", ["a", "b"], ["t" if scale else "y"])]
    nodes += [node("Mul", ["t", "factor"], ["y"])] if scale else []
    check_quantized(nodes, {"factor": F32(scale)} if scale else {}, x, interpreted=False)


@pytest.mark.parametrize("order", [(0, 1, 3, 2), (0, 2, 3, 1)])
@pytest.mark.parametrize("terms, columns, scale", [(64, 24, 0), (37, 22, 0), (5, 7, 0), (130, 33, 0), (64, 24, 0.3)])
def test_a_row_times_a_transposed_matrix(rng, terms, columns, order, scale):
    """Eight partial sums of each column, which ONNX Runtime reads in place, unless other axes move too."""
    shape = [0] * 4
    for axis, extent in zip(order, (2, 3, terms, columns), strict=True):
        shape[axis] = extent
    x = {"a": numbers(rng, 2, 3, 1, terms), "b": numbers(rng, *shape)}
    nodes = [node("Transpose", ["b"], ["c"], perm=order), node("MatMul", ["a", "c"], ["t" if scale else "y"])]
    nodes += [node("Mul", ["t", "factor"], ["y"])] if scale else []
    check_quantized(nodes, {"factor": F32(scale)} if scale else {}, x, interpreted=False)


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("terms", [256, 257, 700])
def test_products_by_constants(rng, rows, terms):
    """The bias comes first."""
    nodes = [node("MatMul", ["x", "w"], ["t"]), node("Add", ["c", "t"], ["y"])]
    weights = {"w": numbers(rng, terms, 70), "c": numbers(rng, 70)}
    check_quantized(nodes, weights, numbers(rng, 2, rows, terms), interpreted=False)
    gemm = node("Gemm", ["x", "v", "c"], ["y"], transB=1)
    weights = {"v": numbers(rng, 70, terms), "c": weights["c"]}
    check_quantized([gemm], weights, numbers(rng, rows, terms), interpreted=False)


@pytest.mark.parametrize("rows, constant", [(1, True), (1, False), (5, True), (5, False)])
@pytest.mark.parametrize("terms, beta", [(32, 0.3), (600, 1.0), (600, 0.0)])
def test_products_times_alpha(rng, rows, terms, beta, constant):
    """alpha · Σ + beta · C in fused multiply-adds, block after block; a row, too, is added up in blocks then."""
    gemm = node("Gemm", ["x", "w"] + ["c"] * (beta > 0), ["y"], alpha=0.7, beta=beta)
    x, weight = {"x": numbers(rng, rows, terms)}, {"w": numbers(rng, terms, 24)}
    constants = {"c": numbers(rng, 24)} if beta else {}
    constants |= weight if constant else {}
    check_quantized([gemm], constants, x if constant else {**x, **weight}, interpreted=False)


def test_a_bias_behind_a_product_that_has_another_reader(rng):
    nodes = [node("MatMul", ["x", "w"], ["t"]), node("Add", ["t", "c"], ["y"])]
    weights = {"w": numbers(rng, 600, 70), "c": numbers(rng, 70)}
    check_quantized(nodes, weights, numbers(rng, 5, 600), outputs=("y", "t"), interpreted=False)


def test_products_of_float_models_are_not_divided(rng):
    proto = model([node("MatMul", ["x", "w"], ["y"])], [value("x", (5, 600), F32)], [value("y", None, F32)],
                  {"w": numbers(rng, 600, 70)})  # fmt: skip
    assert not qnn_ext.from_onnx(proto).ir["main"].attrs.get("blocked_sums")


@pytest.mark.parametrize("length", [2, 3, 5, 7, 8, 9, 14, 49, 64, 197])
@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceMean"])
def test_sums_of_rows(rng, operator, length):
    """Those of a length that is no multiple of four begin at a row's first aligned element."""
    for keepdims in (0, 1):
        nodes = [node(operator, ["x", "axes"], ["y"], keepdims=keepdims)]
        check_quantized(nodes, {"axes": np.array([-1])}, numbers(rng, 3, 7, length))


@pytest.mark.parametrize("shape, axes", [
    ((2, 5, 7, 9), [2, 3]), ((2, 5, 7, 9), [1, 2, 3]), ((1, 6, 14, 14), [-1, -2]), ((4, 1, 9), [2]),
    ((1, 5, 64), [0, 2]), ((40,), [0]), ((1, 1, 30), [2]), ((1, 9, 12), [1]), ((3, 5, 2), [1]),
])  # fmt: skip
def test_sums_over_axes(rng, shape, axes):
    for operator in ("ReduceSum", "ReduceMean"):
        check_quantized([node(operator, ["x", "axes"], ["y"])], {"axes": np.array(axes)}, numbers(rng, *shape))


@pytest.mark.parametrize("operator, constants", [("Pow", {"two": F32(2)}), ("Abs", {}), ("Exp", {})])
def test_functions_that_are_added_up(rng, operator, constants):
    """Unlike those of one operator, ONNX Runtime adds these in lanes."""
    nodes = [node(operator, ["x", *constants], ["t"]), node("ReduceSum", ["t", "axes"], ["y"])]
    check_quantized(nodes, {"axes": np.array([-1]), **constants}, numbers(rng, 3, 7, 50))


@pytest.mark.parametrize("operator", ["ReduceL1", "ReduceL2", "ReduceSumSquare"])
def test_sums_of_functions(rng, operator):
    """ONNX Runtime adds these one by one."""
    check_quantized([node(operator, ["x", "axes"], ["y"])], {"axes": np.array([-1])}, numbers(rng, 3, 7, 50))


@pytest.mark.parametrize("opset", [20, 21])
@pytest.mark.parametrize("shape, groups", [((1, 16, 9, 11), 4), ((2, 8, 6, 6), 2), ((1, 6, 30), 6), ((1, 12, 7), 1)])
def test_norms_of_groups(rng, shape, groups, opset):
    """ONNX Runtime computes them by their definition."""
    count = groups if opset < 21 else shape[1]
    constants = {"gamma": numbers(rng, count), "beta": numbers(rng, count)}
    norm = node("GroupNormalization", ["x", "gamma", "beta"], ["y"], num_groups=groups, epsilon=1e-3)
    check_quantized([norm], constants, numbers(rng, *shape), opset=opset)


@pytest.mark.parametrize("shape", [(2, 6, 33), (1, 8, 7, 7), (2, 3, 8, 8), (1, 1, 5000), (3, 5, 1), (1, 4, 2, 3, 3)])
def test_instance_normalization(rng, shape):
    parts = {"gamma": numbers(rng, shape[1]), "beta": numbers(rng, shape[1])}
    norm = node("InstanceNormalization", ["x", "gamma", "beta"], ["y"], epsilon=1e-3)
    check_quantized([norm], parts, numbers(rng, *shape) * 2 + 1)


@pytest.mark.parametrize("shape", [(9, 96), (2, 33, 6, 5)])
def test_batch_normalization(rng, shape):
    """1 / deviation is rounded before it is multiplied."""
    parts = {name: numbers(rng, shape[1]) for name in ("scale", "beta", "mean")}
    parts["variance"] = np.abs(numbers(rng, shape[1])) + F32(0.1)
    check_quantized([node("BatchNormalization", ["x", *parts], ["y"])], parts, numbers(rng, *shape))


@pytest.mark.parametrize("channels", [7, 32])
@pytest.mark.parametrize("size", [(2, 3), (7, 7), (8, 8)])
def test_global_average(rng, channels, size):
    """Channels of a float convolution are averaged one by one, others in four lanes."""
    pool, x = node("GlobalAveragePool", ["t"], ["y"]), numbers(rng, 2, channels, *size)
    check_quantized([node("Relu", ["x"], ["t"]), pool], {}, x)
    check_quantized([node("GlobalAveragePool", ["x"], ["y"])], {}, x)


NORM = node("LayerNormalization", ["v", "gamma", "beta"], ["y"], axis=-1)


def parameters(rng, length):
    return {"gamma": numbers(rng, length), "beta": numbers(rng, length)}


@pytest.mark.parametrize("length", [2, 7, 8, 33, 96])
def test_layer_normalization_of_a_sum(rng, length):
    """ONNX Runtime makes one operator of it, with a running mean and variance."""
    x = {"a": numbers(rng, 2, 9, length), "b": numbers(rng, 2, 9, length)}
    check_quantized([node("Add", ["a", "b"], ["v"]), NORM], parameters(rng, length), x)
    skip = node("SkipLayerNormalization", ["a", "b", "gamma", "beta"], ["y"], domain="com.microsoft", epsilon=1e-5)
    check_quantized([skip], parameters(rng, length), x)


def test_skip_layer_normalization_with_a_bias_and_the_sum(rng):
    x = {"a": numbers(rng, 2, 9, 33), "b": numbers(rng, 2, 9, 33)}
    names = ["a", "b", "gamma", "beta", "c"], ["y", "", "", "v"]
    skip = node("SkipLayerNormalization", *names, domain="com.microsoft", epsilon=1e-5)
    check_quantized([skip], parameters(rng, 33) | {"c": numbers(rng, 33)}, x, outputs=("y", "v"))


@pytest.mark.parametrize("swapped", [False, True])
def test_layer_normalization_of_a_sum_with_a_bias(rng, swapped):
    """ONNX Runtime adds the bias last."""
    x = {"a": numbers(rng, 2, 9, 33), "b": numbers(rng, 2, 9, 33)}
    sums = [node("Add", ["a", "c"], ["biased"]), node("Add", ["b", "biased"][:: -1 if swapped else 1], ["v"])]
    check_quantized([*sums, NORM], parameters(rng, 33) | {"c": numbers(rng, 33)}, x)


@pytest.mark.parametrize("known", [False, True])
def test_layer_normalization_of_a_sum_of_open_shapes(rng, known):
    """ONNX Runtime takes sizes that are open for equal only if they have one name."""
    a, b = numbers(rng, 2, 9, 33), numbers(rng, 2, 9, 33)
    nodes = [node("Add", ["a", "b"], ["v"]), NORM, node("DynamicQuantizeLinear", ["y"], [QUANTIZED, "s", "z"])]
    inputs = [value("a", ("n", "rows", 33), F32), value("b", ("n", "rows" if known else "others", 33), F32)]
    proto = model(nodes, inputs, [value("y", None, F32), value(QUANTIZED, None, np.uint8)], parameters(rng, 33))
    engine = qnn_ext.build(qnn_ext.from_onnx(proto, {"a": a.shape, "b": b.shape}), num_threads=1)
    expected, _ = run_ort(proto, {"a": a, "b": b}, optimized=True)
    np.testing.assert_array_equal(engine.run({"a": a, "b": b})["y"], expected)


@pytest.mark.parametrize("shapes", [((2, 5, 12), (1, 5, 12)), ((5, 12), (5, 12)), ((2, 5, 12), (12,))])
def test_layer_normalization_of_other_sums(rng, shapes):
    x = {name: numbers(rng, *shape) for name, shape in zip("ab", shapes, strict=True)}
    check_quantized([node("Add", ["a", "b"], ["v"]), NORM], parameters(rng, 12), x)


def test_layer_normalization_of_a_sum_with_another_reader(rng):
    x = {"a": numbers(rng, 2, 5, 12), "b": numbers(rng, 2, 5, 12)}
    check_quantized([node("Add", ["a", "b"], ["v"]), NORM], parameters(rng, 12), x, outputs=("y", "v"))


@pytest.mark.parametrize("length", [2, 3, 7])
def test_layer_normalization_of_short_rows(rng, length):
    check_quantized([node("Abs", ["x"], ["v"]), NORM], parameters(rng, length), numbers(rng, 2, 9, length))


@pytest.mark.parametrize("name, opset", [("RMSNormalization", 23), ("SimplifiedLayerNormalization", 21)])
@pytest.mark.parametrize("length", [2, 8, 15, 16, 33, 96])
def test_rms_normalization(rng, length, name, opset):
    norm = node(name, ["x", "gamma"], ["y"], epsilon=1e-5)
    check_quantized([norm], {"gamma": numbers(rng, length)}, numbers(rng, 2, 9, length), opset=opset)


@pytest.mark.parametrize("length", [2, 33, 96])
def test_rms_normalization_of_a_sum(rng, length):
    x = {"a": numbers(rng, 2, 9, length), "b": numbers(rng, 2, 9, length)}
    parts = {"gamma": numbers(rng, length), "c": numbers(rng, length)}
    names = ["a", "b", "gamma", "c"], ["y", "", "", "v"]
    skip = node("SkipSimplifiedLayerNormalization", *names, domain="com.microsoft", epsilon=1e-5)
    check_quantized([skip], parts, x, outputs=("y", "v"))


@pytest.mark.parametrize("source", ["Abs", "DequantizeLinear"])
@pytest.mark.parametrize("order", [1, -1])
def test_rms_normalization_written_out(rng, order, source):
    """As T5 has it. ONNX Runtime gives each reader of a DequantizeLinear a copy, and finds no norm of it."""
    pair = [node("QuantizeLinear", ["x", "fine", "middle"], ["b"]), node(source, ["b", "fine", "middle"], ["v"])]
    nodes = [
        *([node("Abs", ["x"], ["v"])] if source == "Abs" else pair),
        node("Pow", ["v", "two"], ["p"]),
        node("ReduceMean", ["p"], ["m"], axes=[-1]),
        node("Add", ["m", "small"], ["a"]),
        node("Sqrt", ["a"], ["d"]),
        node("Div", ["v", "d"], ["u"]),
        node("Mul", ["u", "gamma"][::order], ["y"]),
    ]
    parts = {"two": F32(2), "small": F32(1e-6), "gamma": numbers(rng, 96), "fine": F32(0.05), "middle": np.uint8(128)}
    check_quantized(nodes, parts, numbers(rng, 2, 9, 96), opset=13)


@pytest.mark.parametrize("equation, a, b", [
    ("bqc,bchw->bqhw", (1, 6, 32), (1, 32, 16, 16)), ("bhid,bhjd->bhij", (1, 4, 9, 16), (1, 4, 9, 16)),
])  # fmt: skip
def test_einsum_of_quantized_tensors(rng, equation, a, b):
    """ONNX Runtime computes it in float, whatever it reads."""
    constants = {"s": F32(0.031), "z": np.uint8(120)}
    nodes = []
    for name in ("a", "b"):
        nodes.append(node("QuantizeLinear", [name, "s", "z"], [f"{name}q"]))
        nodes.append(node("DequantizeLinear", [f"{name}q", "s", "z"], [f"{name}d"]))
    nodes.append(node("Einsum", ["ad", "bd"], ["y"], equation=equation))
    check(nodes, constants, {"a": numbers(rng, *a), "b": numbers(rng, *b)}, interpreted=False)


@pytest.mark.parametrize("operator, steps, batch, direction, attributes", [
    ("LSTM", 1, 1, "forward", {}), ("LSTM", 5, 2, "bidirectional", {}), ("LSTM", 4, 1, "reverse", {"clip": 0.4}),
    ("GRU", 5, 2, "bidirectional", {"linear_before_reset": 1}), ("GRU", 5, 1, "forward", {}),
])  # fmt: skip
def test_recurrent_layers(rng, operator, steps, batch, direction, attributes):
    """Biases are added last, and a GRU has functions of its own."""
    directions, size, depth = 1 + (direction == "bidirectional"), 24, 300
    rows = {"LSTM": 4, "GRU": 3}[operator] * size
    weights = {"w": numbers(rng, directions, rows, depth) / 10, "r": numbers(rng, directions, rows, size) / 3}
    weights["b"] = numbers(rng, directions, 2 * rows) / 2
    states = ["h", "c"][: 1 + (operator == "LSTM")]
    feed = {"x": numbers(rng, steps, batch, depth), **{name: numbers(rng, directions, batch, size) for name in states}}
    results = ["y", *(f"y_{name}" for name in states)]
    attributes = {"hidden_size": size, "direction": direction, **attributes}
    layer = node(operator, ["x", "w", "r", "b", "", *states], results, **attributes)
    check_quantized([layer], weights, feed, outputs=results, interpreted=False)
