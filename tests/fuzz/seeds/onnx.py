"""Quantized operators of ONNX and ONNX Runtime, the networks the frontend is tested with, the bundled ones, and the
onnx package's node tests for all operators that qnn_ext knows."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qnn_ext import QnnError
from qnn_ext.frontends.onnx import from_onnx

from . import bundled

_MICROSOFT = "com.microsoft"
_LARGEST = 6000  # bytes of a node test
_PER_OPERATOR = 3


def seeds() -> Iterator[tuple[str, bytes]]:
    """File names and contents."""
    for name, model in quantized():
        yield f"{name}.onnx", model.SerializeToString()
    yield "qdq.onnx", qdq().SerializeToString()
    yield from bundled("*.onnx")
    yield from node_tests()


def quantized() -> Iterator[tuple[str, Any]]:
    """One model of each integer operator: data are inputs, weights and quantization parameters constants."""
    rng = np.random.default_rng(0)
    scale, zero, zero8 = np.float32(0.05), np.uint8(120), np.int8(3)
    image, rows = rng.integers(0, 256, (1, 4, 6, 6)).astype(np.uint8), rng.integers(0, 256, (2, 8)).astype(np.uint8)
    kernel, matrix = (rng.integers(-127, 128, shape).astype(np.int8) for shape in ((4, 4, 3, 3), (8, 5)))
    bias = rng.integers(-1000, 1000, 4).astype(np.int32)
    q = (scale, zero)
    floats = rng.standard_normal((2, 8)).astype(np.float32)
    binary = [rows, *q, rng.integers(0, 256, (2, 8)).astype(np.uint8), *q, *q]
    table: dict[str, tuple[list[Any], dict[str, Any]]] = {
        "QuantizeLinear": ([floats, *q], {}),
        "DequantizeLinear": ([rows, *q], {}),
        "DynamicQuantizeLinear": ([floats], {}),
        "QLinearConv": ([image, *q, kernel, scale, np.int8(0), *q, bias], {"pads": [1, 1, 1, 1]}),
        "QLinearMatMul": ([rows, *q, matrix, scale, zero8, *q], {}),
        "ConvInteger": ([image, kernel, zero, np.int8(0)], {"strides": [2, 2]}),
        "MatMulInteger": ([rows, matrix, zero, zero8], {}),
        "MaxPool": ([image], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        f"{_MICROSOFT}.QLinearAdd": (binary, {}),
        f"{_MICROSOFT}.QLinearMul": (binary, {}),
        f"{_MICROSOFT}.QLinearSigmoid": ([rows, *q, *q], {}),
        f"{_MICROSOFT}.QLinearLeakyRelu": ([rows, *q, *q], {"alpha": 0.2}),
        f"{_MICROSOFT}.QLinearAveragePool": ([image, *q, *q], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        f"{_MICROSOFT}.QLinearGlobalAveragePool": ([image, *q, *q], {}),
        f"{_MICROSOFT}.QLinearConcat": ([*q, rows, *q, rows, *q], {"axis": 1}),
        f"{_MICROSOFT}.QLinearSoftmax": ([rows, *q, *q], {"axis": 1, "opset": 13}),
        f"{_MICROSOFT}.QLinearWhere": ([rows > 100, rows, *q, rows, *q, *q], {}),
        f"{_MICROSOFT}.QGemm": ([rows, *q, matrix, scale, np.int8(0), None, *q], {}),
        f"{_MICROSOFT}.DynamicQuantizeMatMul": ([floats, matrix, scale, np.int8(0)], {}),
        f"{_MICROSOFT}.MatMulIntegerToFloat": ([rows, matrix, scale, scale, zero, np.int8(0)], {}),
    }  # fmt: skip
    for key, (inputs, attributes) in table.items():
        domain, _, name = key.rpartition(".")
        yield name, _single(name, domain, inputs, attributes)


def _single(name: str, domain: str, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """A model of one node; unsigned or float arrays of more than one dimension become inputs."""
    names, values, constants = [], [], []
    for index, item in enumerate(inputs):
        names.append("" if item is None else f"in{index}")
        if item is None:
            continue
        array = np.asarray(item)
        if array.ndim > 1 and array.dtype != np.int8:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            values.append(helper.make_tensor_value_info(names[-1], kind, array.shape))
        else:
            constants.append(numpy_helper.from_array(array, names[-1]))
    result = ["y", "y_scale", "y_zero_point"] if name == "DynamicQuantizeLinear" else ["y"]
    kinds = [onnx.TensorProto.UINT8, onnx.TensorProto.FLOAT, onnx.TensorProto.UINT8]
    if name in ("DequantizeLinear", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"):
        kinds = [onnx.TensorProto.FLOAT]
    if name.endswith("Integer"):
        kinds = [onnx.TensorProto.INT32]
    outputs = [helper.make_tensor_value_info(output, kind, None) for output, kind in zip(result, kinds, strict=False)]
    node = helper.make_node(name, names, result, "node", domain=domain, **attributes)
    graph = helper.make_graph([node], "single", values, outputs, constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(_MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def qdq() -> Any:
    """Integers, control flow and shape arithmetic in one."""
    from tests.frontends.onnx.graphs import integer_model

    return integer_model()


def node_tests() -> Iterator[tuple[str, bytes]]:
    """Small node tests of known operators, unchanged, and with all inputs but the first as constants."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():  # the generators overflow and divide by 0
        warnings.simplefilter("ignore")
        cases: list[Any] = load_model_tests(kind="node")
    taken: Counter[str] = Counter()
    for case in sorted(cases, key=lambda case: str(case.name)):
        nodes = case.model.graph.node
        kind = nodes[0].op_type if len(nodes) == 1 else "function"
        if taken[kind] >= _PER_OPERATOR * (1 if kind != "function" else 10) or case.model.ByteSize() > _LARGEST:
            continue
        content, constant = case.model.SerializeToString(), _with_constants(case)
        accepted = [model for model in (content, constant) if model and _is_accepted(model)]
        taken[kind] += bool(accepted)
        for number, model in enumerate(accepted):
            yield f"{case.name}.{number}.onnx", model


def _is_accepted(model: bytes) -> bool:
    try:
        from_onnx(model)
    except QnnError:
        return False
    return True


def _with_constants(case: Any) -> bytes | None:
    """None where there is only one input, or where one is not a tensor."""
    values = case.data_sets[0][0] if case.data_sets else []
    graph = case.model.graph
    if len(graph.input) < 2 or not all(isinstance(value, (np.ndarray, onnx.TensorProto)) for value in values):
        return None
    model: Any = onnx.ModelProto()
    model.CopyFrom(case.model)
    for info, value in list(zip(graph.input, values, strict=False))[1:]:
        tensor = value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(np.asarray(value))
        model.graph.initializer.add().CopyFrom(tensor)
        model.graph.initializer[-1].name = info.name
    del model.graph.input[1:]
    return model.SerializeToString() if model.ByteSize() <= _LARGEST else None
