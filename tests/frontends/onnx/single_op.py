"""Models of one node, run by ONNX Runtime, by the interpreter and by the compiled engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import qnn_ext
from qnn_ext.module import QnnModule

from .graphs import require_exact_ort

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

MICROSOFT = "com.microsoft"
F32 = np.float32


@dataclass(frozen=True)
class Constant:
    """An input that is an initializer of the model."""

    array: np.ndarray


def const(value: Any, dtype: Any = np.float32) -> Constant:
    """A constant input."""
    return Constant(np.asarray(value, dtype))


def full_range(rng: np.random.Generator, dtype: Any, *shape: int) -> np.ndarray:
    """Uniform over the whole integer dtype."""
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)


def ends(dtype: Any) -> tuple[int, int, int]:
    """Zero points worth testing: both ends of the dtype and one in between."""
    info = np.iinfo(dtype)
    return int(info.min), (info.min + info.max + 1) // 2 + 7, int(info.max)


def single_op(
    op: str,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    domain: str = "",
    opset: int = 21,
    node_opset: int | None = None,
    **attributes: Any,
) -> tuple[Any, dict[str, np.ndarray]]:
    """The model of one node and its input values. inputs: arrays, `Constant`s or None; outputs: their dtypes.

    node_opset: QLinearSoftmax's attribute named "opset"
    """
    if node_opset is not None:
        attributes["opset"] = node_opset
    names, values, constants, feed = [], [], [], {}
    for index, item in enumerate(inputs):
        name = "" if item is None else f"in{index}"
        names.append(name)
        if isinstance(item, Constant):
            constants.append(onnx.numpy_helper.from_array(item.array, name))
        elif item is not None:
            array = np.asarray(item)
            values.append(onnx.helper.make_tensor_value_info(name, _element(array.dtype), array.shape))
            feed[name] = array
    results = [onnx.helper.make_tensor_value_info(f"out{i}", _element(d), None) for i, d in enumerate(outputs)]
    node = onnx.helper.make_node(op, names, [result.name for result in results], op, domain=domain, **attributes)
    graph = onnx.helper.make_graph([node], "single", values, results, constants)
    opsets = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid(MICROSOFT, 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), feed


def _element(dtype: Any) -> int:
    return onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def run_ort(model: Any, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    """ONNX Runtime's results on the CPU, one thread."""
    require_exact_ort(model)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feed)


def compare(op: str, inputs: Sequence[Any], outputs: Sequence[Any], tolerance: float = 0.0, **rest: Any) -> QnnModule:
    """Interpreter and engine against ONNX Runtime: equal, or within `tolerance` of the largest float."""
    model, feed = single_op(op, inputs, outputs, **rest)
    expected = run_ort(model, feed)
    module = qnn_ext.from_onnx(model)
    interpreted = list(qnn_ext.Interpreter(module).run(feed).values())
    compiled = list(qnn_ext.build(module, num_threads=1).run(feed).values())
    for want, *found in zip(expected, interpreted, compiled, strict=True):
        for result in found:
            assert result.dtype == want.dtype
            if tolerance and want.dtype.kind == "f":
                np.testing.assert_allclose(result, want, rtol=0, atol=tolerance * max(float(np.abs(want).max()), 1e-30))
            else:
                np.testing.assert_array_equal(result, want)
    return module
