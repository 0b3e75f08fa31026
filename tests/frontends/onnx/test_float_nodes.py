"""The onnx package's own tests of float operators that quantized networks use, through the interpreter.

Inputs that are parameters (axes, shapes, pads …) are constants, as exporters write them.
"""

import warnings

import numpy as np
import pytest

import qnn_ext
from qnn_ext.frontends.onnx import from_onnx

onnx = pytest.importorskip("onnx")

# operators of ResNet, MobileNet, ViT, BERT and YOLO, and their neighbours; how many leading inputs are data
DATA_INPUTS = {
    "Abs": 1, "Add": 2, "ArgMax": 1, "AveragePool": 1, "BatchNormalization": 1, "Cast": 1, "Ceil": 1, "Celu": 1,
    "Clip": 1, "Concat": 9, "Conv": 2, "ConvTranspose": 2, "CumSum": 1, "DepthToSpace": 1, "Div": 2, "Dropout": 1,
    "Einsum": 9, "Elu": 1, "Equal": 2, "Erf": 1, "Exp": 1, "Expand": 1, "EyeLike": 1, "Flatten": 1, "Floor": 1,
    "Gather": 1, "GatherElements": 1, "GatherND": 1, "Gelu": 1, "Gemm": 3, "GlobalAveragePool": 1, "GlobalMaxPool": 1,
    "Greater": 2, "GroupNormalization": 1, "HardSigmoid": 1, "HardSwish": 1, "Identity": 1, "InstanceNormalization": 1,
    "IsInf": 1, "IsNaN": 1, "LRN": 1, "LayerNormalization": 1, "LeakyRelu": 1, "Less": 2, "Log": 1, "LogSoftmax": 1,
    "MatMul": 2, "Max": 9, "MaxPool": 1, "Mean": 9, "Min": 9, "Mish": 1, "Mod": 2, "Mul": 2, "Neg": 1, "Not": 1,
    "OneHot": 1, "PRelu": 2, "Pad": 1, "Pow": 2, "RMSNormalization": 1, "Reciprocal": 1, "ReduceMax": 1,
    "ReduceMean": 1, "ReduceMin": 1, "ReduceProd": 1, "ReduceSum": 1, "ReduceSumSquare": 1, "ReduceL2": 1, "Relu": 1,
    "Reshape": 1, "Resize": 1, "Round": 1, "Selu": 1, "Shape": 1, "Sigmoid": 1, "Sign": 1, "Size": 1, "Slice": 1,
    "Softmax": 1, "Softplus": 1, "SpaceToDepth": 1, "Split": 1, "Sqrt": 1, "Squeeze": 1, "Sub": 2, "Sum": 9,
    "Swish": 1, "Tanh": 1, "Tile": 1, "TopK": 1, "Transpose": 1, "Trilu": 1, "Unsqueeze": 1, "Where": 3,
}  # fmt: skip

# What is refused, and why; everything else must pass
REFUSED = {
    "training": "training mode",
    "zero_size": "empty tensors",
    "empty_set": "empty tensors",
    "allowzero_reordered": "empty tensors",
    "triu_zero": "empty tensors",
    "tril_zero": "empty tensors",
    "argmax_2d": "MaxPool's indices",
    "uint64": "TopK of uint64",
    "FLOAT8": "float8 outside the model",
    "INT2": "2-bit integers at run time",
    "INT4": "4-bit integers at run time",
    "FLOAT4": "float4",
    "STRING": "strings",
    "string": "strings",
    "identity_sequence": "sequences",
    "identity_opt": "optionals",
    "bfloat16": "bfloat16 outside the model",
    "BFLOAT16": "bfloat16 outside the model",
    "bool_inputs": "ReduceMax of bool",
    "E8M0": "float8 of exponents",
}
PER_OPERATOR = 12  # the first so many cases of each operator; all of them pass, but that takes minutes


def cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        found = collect_testcases(None)
    counts: dict[str, int] = {}
    for case in found:
        graph = case.model.graph
        if len(graph.node) != 1 or graph.node[0].domain or graph.node[0].op_type not in DATA_INPUTS:
            continue
        if any(part in case.name for part in REFUSED):
            continue
        operator = graph.node[0].op_type
        counts[operator] = counts.get(operator, 0) + 1
        if counts[operator] <= PER_OPERATOR:
            yield pytest.param(case, id=case.name)


def as_array(value) -> np.ndarray:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", list(cases()))
def test_node(case):
    proto = onnx.ModelProto()
    proto.CopyFrom(case.model)
    arrays, expected = ([as_array(value) for value in values] for values in case.data_sets[0])
    count = DATA_INPUTS[proto.graph.node[0].op_type]
    feed = {}
    for index, (declared, array) in enumerate(zip(proto.graph.input, arrays, strict=True)):
        if index < count:
            feed[declared.name] = array
        else:
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, declared.name))
    found = qnn_ext.Interpreter(from_onnx(proto)).run(feed)
    for result, want in zip(found.values(), expected, strict=True):
        assert result.dtype == want.dtype and result.shape == want.shape
        exact = want.dtype.kind in "iub"
        rtol = 0 if exact else max(case.rtol, 1e-3)
        difference = [array.astype(np.float64) for array in (result, want)]
        np.testing.assert_allclose(*difference, rtol=rtol, atol=0 if exact else 1e-5)
