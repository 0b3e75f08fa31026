"""Small ONNX models for the frontend's tests, and ONNX Runtime's answers to them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from tvm.target import Target

import qnn_ext
from qnn_ext.frontends.onnx import from_onnx
from qnn_ext.module import QnnModule
from qnn_ext.targets.features import has_feature, host_cpu

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

node = onnx.helper.make_node


def element(dtype: Any) -> int:
    """ONNX's code of a NumPy dtype."""
    return onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def value(name: str, shape: Sequence[Any] | None, dtype: Any = np.float32) -> Any:
    """A declared input or output."""
    return onnx.helper.make_tensor_value_info(name, element(dtype), shape)


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    constants: Mapping[str, np.ndarray] | None = None,
    opset: int = 21,
) -> Any:
    """A ModelProto of these nodes."""
    tensors = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    graph = onnx.helper.make_graph(nodes, "test", inputs, outputs, tensors)
    opsets = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


def one_node(operator: str, inputs: Mapping[str, Any], opset: int = 21, outputs: int = 1, **attributes: Any) -> Any:
    """A model of one node. inputs: name -> array for a constant, or (shape, dtype) for a graph input."""
    values = [value(name, *what) for name, what in inputs.items() if isinstance(what, tuple)]
    constants = {name: what for name, what in inputs.items() if not isinstance(what, tuple)}
    names = [f"y{index}" for index in range(outputs)]
    results = [onnx.helper.make_empty_tensor_value_info(name) for name in names]
    proto = model([node(operator, list(inputs), names, operator, **attributes)], values, results, constants, opset)
    inferred = onnx.shape_inference.infer_shapes(proto)
    assert all(result.type.tensor_type.elem_type for result in inferred.graph.output)
    return inferred


PRODUCTS = re.compile(r"MatMulInteger|ConvInteger|QLinear(Conv|MatMul)|QGemm|QAttention|DynamicQuantize(MatMul|LSTM)")


@cache
def ort_saturates() -> bool:
    """Whether ONNX Runtime loses bits of uint8 times int8 here: without VNNI it adds two products in 16 bits."""
    graph = model(
        [node("MatMulInteger", ["x", "w"], ["y"])],
        [value("x", (1, 64), np.uint8)],
        [value("y", (1, 8), np.int32)],
        {"w": np.full((64, 8), 127, np.int8)},
    )
    session = ort.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": np.full((1, 64), 255, np.uint8)})
    return bool((found != 64 * 255 * 127).any())


FLOAT_PRODUCTS = re.compile(r"Conv|ConvTranspose|Gemm|MatMul")


def require_exact_ort(proto: Any, optimized: bool = False) -> None:
    """Skip the test where ONNX Runtime's products differ from the operator's specification."""
    products = any(
        PRODUCTS.match(node.op_type) or (optimized and FLOAT_PRODUCTS.fullmatch(node.op_type))
        for node in proto.graph.node
    )
    if products:
        require_exact_products()


def require_exact_products() -> None:
    """Skip the test if ONNX Runtime's products of 8-bit integers are not exact on this CPU."""
    if ort_saturates():
        pytest.skip("ONNX Runtime saturates products of 8-bit integers on this CPU, which has no VNNI")


def run_ort(proto: Any, feed: Mapping[str, np.ndarray], optimized: bool = False) -> list[np.ndarray]:
    """ONNX Runtime's outputs, without graph optimizations or with all."""
    require_exact_ort(proto)
    options = ort.SessionOptions()
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feed)))


def interpret(proto: Any, feed: Mapping[str, np.ndarray], **arguments: Any) -> list[np.ndarray]:
    """The interpreter's outputs."""
    return list(qnn_ext.Interpreter(from_onnx(proto, **arguments)).run(feed).values())


def operators(module: QnnModule) -> list[str]:
    """Names of the operators in `main`, without "relax."."""
    bindings = [binding for block in module.ir["main"].body.blocks for binding in block.bindings]
    calls = [binding.value for binding in bindings if hasattr(binding.value, "op")]
    return [call.op.name.removeprefix("relax.") for call in calls]


def integer_model() -> Any:
    """QLinear operators, branches and shape arithmetic in one model."""
    rng = np.random.default_rng(1)
    branch = model([node("Identity", ["c"], ["t"])], [], [value("t", None)]).graph
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("QLinearConv", ["q", "s", "z", "w", "s", "zw", "s", "z"], ["c"], pads=[1, 1, 1, 1]),
        node("If", ["yes"], ["t"], then_branch=branch, else_branch=branch),
        node("Reshape", ["t", "target"], ["r"]),
        node("QLinearMatMul", ["r", "s", "z", "m", "s", "zw", "s", "z"], ["p"]),
        node("Pad", ["p", "pads"], ["e"]),
        node("DequantizeLinear", ["e", "s", "z"], ["d"]),
        node("Clip", ["d", "low", "high"], ["y"]),
    ]
    constants = {
        "s": np.float32(0.05),
        "z": np.uint8(120),
        "zw": np.int8(0),
        "w": rng.integers(-127, 127, (4, 3, 3, 3)).astype(np.int8),
        "m": rng.integers(-127, 127, (64, 5)).astype(np.int8),
        "yes": np.asarray(True),
        "target": np.asarray([1, -1, 64]),
        "pads": np.asarray([0, 0, 1, 0, 0, 2]),
        "low": np.float32(-1),
        "high": np.float32(1),
    }
    return model(nodes, [value("x", (1, 3, 8, 8))], [value("y", None)], constants)


def compiled_and_expected(proto: Any, feed: Mapping[str, np.ndarray]) -> tuple[list[Any], list[Any]]:
    """What the engine gives, and ONNX Runtime."""
    if not has_feature(Target({"kind": "llvm", "mcpu": host_cpu()}), "avx512vnni"):
        pytest.skip("ONNX Runtime adds up in another order on this CPU, which has no AVX-512 VNNI")
    engine = qnn_ext.build(from_onnx(proto), num_threads=1)
    return list(engine.run(feed).values()), run_ort(proto, feed, optimized=True)
