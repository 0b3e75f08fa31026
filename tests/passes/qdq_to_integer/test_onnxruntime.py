"""QDQ patterns against ONNX Runtime's optimised session, whose integer kernels they must equal in every bit."""

from __future__ import annotations

import numpy as np
import pytest

from qnn_ext import Interpreter, build
from qnn_ext.frontends.onnx import from_onnx
from tests.frontends.onnx.graphs import require_exact_ort

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

DTYPES = {"uint8": (TensorProto.UINT8, 117), "int8": (TensorProto.INT8, -9)}


class Model:
    """Builds one QDQ graph over the inputs "a", "b", … and compares it with ONNX Runtime."""

    def __init__(self, dtype: str) -> None:
        self.dtype, self.rng = dtype, np.random.default_rng(11)
        self.in_float = False  # ONNX Runtime computes in float32 and adds up in an order of its own
        self.code, self.zero_point = DTYPES[dtype]
        self.nodes: list = []
        self.constants: list = []
        self.inputs: list = []
        self.arrays: dict[str, np.ndarray] = {}

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, op: str, *inputs: str, **attributes) -> str:
        name = f"{op}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def parameters(self, scale: float | np.ndarray, zero_point: int | None = None) -> tuple[str, str]:
        zero = self.zero_point if zero_point is None else zero_point
        return self.constant(np.float32(scale)), self.constant(np.full(np.shape(scale), zero, self.dtype))

    def input(self, shape: tuple[int, ...], scale: float | np.ndarray) -> str:
        name = "abc"[len(self.inputs)]
        self.inputs.append(helper.make_tensor_value_info(name, self.code, shape))
        info = np.iinfo(self.dtype)
        self.arrays[name] = self.rng.integers(info.min, info.max + 1, shape).astype(self.dtype)
        return self.node("DequantizeLinear", name, *self.parameters(scale), axis=1)

    def weight(self, shape: tuple[int, ...], axis: int | None) -> tuple[str, np.ndarray]:
        scale = self.rng.uniform(0.005, 0.02, () if axis is None else shape[axis]).astype(np.float32)
        data = self.rng.integers(-127, 128, shape).astype(np.int8)
        zero = np.zeros(scale.shape, np.int8)
        names = (self.constant(data), self.constant(scale), self.constant(zero))
        return self.node("DequantizeLinear", *names, **({} if axis is None else {"axis": axis})), scale

    def bias(self, kind: str, size: int, scale: np.ndarray) -> list[str]:
        if kind == "none":
            return []
        if kind == "float":
            self.in_float = True
            return [self.constant(self.rng.normal(size=size).astype(np.float32))]
        scale = np.asarray(scale, np.float32)
        names = self.constant(self.rng.integers(-5000, 5000, size).astype(np.int32)), self.constant(scale)
        zero = self.constant(np.zeros(scale.shape, np.int32))
        return [self.node("DequantizeLinear", *names, zero, **({"axis": 0} if scale.ndim else {}))]

    def check(self, value: str, scale: float | np.ndarray, zero_point: int | None = None) -> None:
        """Every value of quantize(value) is that of ONNX Runtime."""
        result = self.node("QuantizeLinear", value, *self.parameters(scale, zero_point), axis=1)
        output = helper.make_tensor_value_info(result, self.code, None)
        graph = helper.make_graph(self.nodes, "qdq", self.inputs, [output], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        model = onnx.shape_inference.infer_shapes(model)
        require_exact_ort(model, optimized=True)
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        (expected,) = ort.InferenceSession(model.SerializeToString(), options).run(None, self.arrays)
        module = from_onnx(model)
        transposed = any(node.op_type == "ConvTranspose" for node in self.nodes)  # there in float, and so are ours
        assert bool(module.notes) == transposed
        (got,) = (build(module, num_threads=1) if transposed else Interpreter(module)).run(self.arrays).values()
        if self.in_float and not transposed:
            differences = np.abs(got.astype(np.int32) - expected)
            assert differences.max() <= 1 and np.count_nonzero(differences) <= got.size / 2000
        else:
            np.testing.assert_array_equal(got, expected)


@pytest.fixture(params=DTYPES)
def model(request) -> Model:
    return Model(request.param)


@pytest.mark.parametrize("bias", ["none", "float", "integer"])
@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("groups", [1, 8])
def test_conv(model, bias, axis, groups):
    x = model.input((2, 8, 20, 20), 0.031)
    w, scale = model.weight((16, 8 // groups, 3, 3), axis)
    y = model.node("Conv", x, w, *model.bias(bias, 16, np.float32(0.031) * scale), pads=[1, 1, 1, 1], group=groups)
    model.check(y, 0.13)


def test_conv_with_relu(model):
    """ONNX Runtime computes it in integers where 0 is the lowest value."""
    w, _ = model.weight((16, 8, 3, 3), 0)
    y = model.node("Relu", model.node("Conv", model.input((2, 8, 20, 20), 0.031), w))
    model.check(y, 0.07, np.iinfo(model.dtype).min)


@pytest.mark.parametrize("behind", ["nothing", "Relu", "Clip"])
@pytest.mark.parametrize("scales", ["of results", "of data", "of transposed weights"])
def test_float_bias_with_scales_of_channels(model, scales, behind):
    """As NNCF quantizes what depthwise convolutions read: ONNX Runtime rounds a bias if the data have one scale; a step
    of these biases is about one of the results. They have another dtype than data: integer kernels take one scale."""
    operator, shape = ("ConvTranspose", (8, 8, 3, 3)) if scales == "of transposed weights" else ("Conv", (8, 1, 3, 3))
    x = model.input((2, 8, 12, 12), 0.5 if scales != "of data" else model.rng.uniform(0.2, 0.7, 8))
    scale = model.constant(model.rng.uniform(0.2, 0.7, 8 if "weights" in scales else ()).astype(np.float32))
    weight = model.constant(model.rng.integers(-3, 4, shape).astype(np.int8))
    w = model.node("DequantizeLinear", weight, scale, axis=1)
    bias = model.bias("float", 8, np.float32(1))
    y = model.node(operator, x, w, *bias, **({} if operator == "ConvTranspose" else {"group": 8}))
    if behind == "Relu":
        y = model.node("Relu", y)
    elif behind == "Clip":
        y = model.node("Clip", y, model.constant(np.float32(-50)), model.constant(np.float32(60)))
    model.dtype = "int8" if model.dtype == "uint8" else "uint8"
    model.code, model.zero_point = DTYPES[model.dtype]
    model.check(y, model.rng.uniform(0.3, 0.5, 8) if scales == "of results" else 0.4)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("behind", ["nothing", "Relu", "Clip"])
@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("shift", [0.0, 0.4, -3.0])
def test_float_weights(model, operator, behind, bias, shift):
    """Quantizers leave those of ConvTranspose in float; ONNX Runtime rounds them, with a zero point."""
    shape = (16, 8, 3, 3) if operator == "Conv" else (8, 16, 3, 3)
    weight = model.constant((model.rng.normal(size=shape) + shift).astype(np.float32))
    more = [model.constant(model.rng.normal(size=16).astype(np.float32))] if bias else []
    x = model.input((2, 8, 12, 13), 0.031)
    y = model.node(operator, model.node("Transpose", x, perm=[0, 1, 3, 2]), weight, *more, strides=[2, 2])
    if behind == "Relu":
        y = model.node("Relu", y)
    elif behind == "Clip":
        y = model.node("Clip", y, model.constant(np.float32(-1)), model.constant(np.float32(20)))
    model.check(y, 0.43)


@pytest.mark.parametrize("case", ["result in float", "two readers", "another function", "scales per channel"])
def test_float_weights_stay(model, case):
    x = model.input((2, 8, 12, 13), 0.031)
    if case == "scales per channel":
        scale = model.constant(model.rng.uniform(0.02, 0.04, 8).astype(np.float32))
        zero = model.constant(np.full(8, model.zero_point, model.dtype))
        model.nodes[-1] = helper.make_node("DequantizeLinear", ["a", scale, zero], [x], axis=1)
    y = model.node("Conv", x, model.constant(model.rng.normal(size=(16, 8, 3, 3)).astype(np.float32)))
    outputs = [y] if case in ("result in float", "two readers") else []
    if case == "another function":
        y = model.node("Tanh", y)
    quantized = model.node("QuantizeLinear", y, *model.parameters(0.43))
    outputs += [] if case == "result in float" else [quantized]
    found = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT if name == y else model.code, None) for name in outputs
    ]
    graph = helper.make_graph(model.nodes, "qdq", model.inputs, found, model.constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert "nn.conv2d" in from_onnx(onnx.shape_inference.infer_shapes(proto)).script()


@pytest.mark.parametrize("bias", ["float", "integer"])
@pytest.mark.parametrize("axis", [None, 0])
def test_gemm(model, bias, axis):
    x = model.input((64, 48), 0.031)
    w, scale = model.weight((24, 48), axis)
    y = model.node("Gemm", x, w, *model.bias(bias, 24, np.float32(0.031) * scale), transB=1)
    model.check(y, 0.17)


@pytest.mark.parametrize("axis", [None, 1])
def test_matmul_with_a_weight(model, axis):
    x = model.input((4, 16, 48), 0.031)
    model.check(model.node("MatMul", x, model.weight((48, 24), axis)[0]), 0.17)


def test_matmul_of_activations(model):
    product = model.node("MatMul", model.input((3, 16, 48), 0.031), model.input((3, 48, 24), 0.023))
    model.check(product, 0.37)


@pytest.mark.parametrize("operator", ["Add", "Mul"])
@pytest.mark.parametrize("shapes", [((4, 9, 64), (4, 9, 64)), ((4, 9, 64), (9, 1)), ((9, 1), (4, 9, 64))])
def test_sum_and_product(model, operator, shapes):
    a, b = model.input(shapes[0], 0.031), model.input(shapes[1], 0.023)
    model.check(model.node(operator, a, b), 0.043 if operator == "Add" else 0.057)


@pytest.mark.parametrize("scale", [0.031, 0.0247])
def test_average_pool(model, scale):
    x = model.input((2, 8, 19, 20), 0.031)
    y = model.node("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    model.check(y, scale)


@pytest.mark.parametrize("scale", [0.031, 0.0247])
def test_average_pool_over_the_whole_image(model, scale):
    """ONNX Runtime adds integers, as in GlobalAveragePool: a mean of a half is one."""
    x = model.input((2, 480, 14, 14), 0.031)
    model.check(model.node("AveragePool", x, kernel_shape=[14, 14], strides=[14, 14]), scale)


@pytest.mark.parametrize("scale", [0.031, 0.0247])
def test_global_average_pool(model, scale):
    model.check(model.node("GlobalAveragePool", model.input((4, 64, 7, 7), 0.031)), scale)


def test_concat(model):
    parts = [model.input((2, 8, 9, 9), scale) for scale in (0.031, 0.017, 0.043)]
    model.check(model.node("Concat", *parts, axis=1), 0.043)


@pytest.mark.parametrize("operator", ["Relu", "Sigmoid", "LeakyRelu", "MaxPool", "Softmax"])
def test_function(model, operator):
    attributes = {"MaxPool": {"kernel_shape": [2, 2]}, "LeakyRelu": {"alpha": 0.1}}.get(operator, {})
    y = model.node(operator, model.input((2, 8, 9, 9), 0.031), **attributes)
    model.check(y, 1 / 256 if operator in ("Sigmoid", "Softmax") else 0.031)
