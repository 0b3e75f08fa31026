"""Single operators behind a convolution that is quantized at run time, as ONNX files.

    python -m benchmarks --operators [NAME ...]

An operator that is slow or that takes long to build hides in a whole network. Here each is a network of its own, at the
size of a feature map of ImageNet's classifiers. The convolution in front makes it a quantized model, with our layout.
Nothing is downloaded; weights and inputs are drawn. Beside NAME.onnx lies NAME.npz with an input and ONNX Runtime's
outputs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .architectures import OPSET, quietly, write_answers

CHANNELS, SIZE = 64, 56
_RNG = np.random.default_rng(3)

Node = tuple[str, str] | tuple[str, str, Mapping[str, Any]]
"""Operator, names of its inputs with commas between them, attributes. "x" is the convolution's result, "_" that of the
node before, "" an input that is left out."""


@dataclass(frozen=True)
class Case:
    """A chain of nodes and the constants that they read."""

    nodes: Sequence[Node]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)


def _case(*nodes: Node, **constants: Any) -> Case:
    return Case(nodes, {name: np.asarray(value) for name, value in constants.items()})


def _floats(*shape: int) -> np.ndarray:
    return (_RNG.standard_normal(shape) * 0.1).astype(np.float32)


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _resized(factor: float, **attributes: Any) -> Case:
    return _case(("Resize", "x,,s", attributes), s=np.array([1, 1, factor, factor], np.float32))


def _reduced(kind: str, *axes: int) -> Case:
    return _case((kind, "x,a", {"keepdims": 1}), a=_ints(*axes))


def _windows(kind: str, size: int, stride: int) -> Case:
    pads = [(size - stride) // 2 + (size - stride) % 2] * 4
    return _case((kind, "x", {"kernel_shape": [size] * 2, "strides": [stride] * 2, "pads": pads}))


def _convolved(*shape: int, group: int = 1) -> Case:
    return _case(("Conv", "x,w", {"pads": [shape[-1] // 2] * 4, "group": group}), w=_floats(*shape))


_ACTIVATIONS = ("Relu", "LeakyRelu", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "Elu", "Softplus", "Erf", "Gelu",
                "Mish", "Exp", "Abs", "Round", "Floor", "Sin", "Neg")  # fmt: skip

OPERATORS: dict[str, Case] = {
    **{kind.lower(): _case((kind, "x")) for kind in _ACTIVATIONS},
    "prelu": _case(("PRelu", "x,s"), s=_floats(CHANNELS, 1, 1)),
    "clip": _case(("Clip", "x,a,b"), a=np.float32(0), b=np.float32(6)),
    "log": _case(("Abs", "x"), ("Log", "_")),
    "square": _case(("Pow", "x,p"), p=np.float32(2)),
    "power": _case(("Abs", "x"), ("Pow", "_,p"), p=np.float32(1.5)),
    "mod": _case(("Mod", "x,o", {"fmod": 1}), o=np.float32(0.5)),
    "sum": _case(("Sigmoid", "x"), ("Add", "x,_")),
    "gate": _case(("Sigmoid", "x"), ("Mul", "x,_")),
    "where": _case(("Greater", "x,z"), ("Where", "_,x,z"), z=np.float32(0)),
    "instance_norm": _case(("InstanceNormalization", "x,g,b"), g=_floats(CHANNELS), b=_floats(CHANNELS)),
    "layer_norm_rows": _case(("LayerNormalization", "x,g,b", {"axis": -1}), g=_floats(SIZE), b=_floats(SIZE)),
    "layer_norm_channels": _case(
        ("Transpose", "x", {"perm": [0, 2, 3, 1]}),
        ("LayerNormalization", "_,g,b", {"axis": -1}),
        ("Transpose", "_", {"perm": [0, 3, 1, 2]}),
        g=_floats(CHANNELS), b=_floats(CHANNELS),
    ),
    "l2_norm": _case(("LpNormalization", "x", {"axis": 1, "p": 2})),
    "lrn": _case(("LRN", "x", {"size": 5})),
    "global_average": _case(("GlobalAveragePool", "x")),
    "global_max": _case(("GlobalMaxPool", "x")),
    "mean_of_pixels": _reduced("ReduceMean", 2, 3),
    "mean_of_channels": _reduced("ReduceMean", 1),
    "max_of_channels": _reduced("ReduceMax", 1),
    "norm_of_channels": _reduced("ReduceL2", 1),
    "squeeze_excite": _case(("GlobalAveragePool", "x"), ("Sigmoid", "_"), ("Mul", "x,_")),
    "max_pool": _windows("MaxPool", 3, 2),
    "max_pool_5": _windows("MaxPool", 5, 1),
    "average_pool": _windows("AveragePool", 3, 1),
    "average_pool_7": _windows("AveragePool", 7, 7),
    "softmax_channels": _case(("Softmax", "x", {"axis": 1})),
    "softmax_rows": _case(("Softmax", "x", {"axis": -1})),
    "log_softmax_channels": _case(("LogSoftmax", "x", {"axis": 1})),
    "argmax_channels": _case(("ArgMax", "x", {"axis": 1})),
    "argmax_rows": _case(("ArgMax", "x", {"axis": 3})),
    "top_k": _case(("Reshape", "x,a"), ("TopK", "_,k", {"axis": -1}), a=_ints(CHANNELS, SIZE**2), k=_ints(100)),
    "cumulative_sum": _case(("CumSum", "x,c"), c=np.int64(3)),
    "concat": _case(("Relu", "x"), ("Concat", "x,_", {"axis": 1})),
    "concat_columns": _case(("Relu", "x"), ("Concat", "x,_", {"axis": 3})),
    "slice_channels": _case(("Slice", "x,a,b,c"), a=_ints(0), b=_ints(CHANNELS // 2), c=_ints(1)),
    "slice_every_second": _case(
        ("Slice", "x,a,b,c,d"), a=_ints(0, 0), b=_ints(SIZE, SIZE), c=_ints(2, 3), d=_ints(2, 2)
    ),
    **{
        f"pad_{mode}": _case(("Pad", "x,p", {"mode": mode}), p=_ints(0, 0, 2, 2, 0, 0, 2, 2))
        for mode in ("constant", "reflect", "edge")
    },
    "tile": _case(("Tile", "x,t"), t=_ints(1, 1, 2, 2)),
    "gather_channels": _case(("Gather", "x,i", {"axis": 1}), i=_RNG.permutation(CHANNELS)),
    "expand": _case(("GlobalAveragePool", "x"), ("Expand", "_,e"), e=_ints(1, CHANNELS, SIZE, SIZE)),
    "depth_to_space": _case(("DepthToSpace", "x", {"blocksize": 2, "mode": "CRD"})),
    "space_to_depth": _case(("SpaceToDepth", "x", {"blocksize": 2})),
    "shuffle": _case(
        ("Reshape", "x,a"), ("Transpose", "_", {"perm": [0, 2, 1, 3, 4]}), ("Reshape", "_,b"),
        a=_ints(1, 4, CHANNELS // 4, SIZE, SIZE), b=_ints(1, CHANNELS, SIZE, SIZE),
    ),
    "transpose_channels_last": _case(("Transpose", "x", {"perm": [0, 2, 3, 1]})),
    "transpose_pixels": _case(("Transpose", "x", {"perm": [0, 1, 3, 2]})),
    "nearest": _resized(2, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    "linear": _resized(2, mode="linear"),
    "linear_corners": _resized(2, mode="linear", coordinate_transformation_mode="align_corners"),
    "cubic": _resized(2, mode="cubic"),
    "linear_half": _resized(0.5, mode="linear"),
    "linear_argmax": _case(
        ("Resize", "x,,s", {"mode": "linear"}), ("ArgMax", "_", {"axis": 1}), s=np.array([1, 1, 2, 2], np.float32)
    ),
    "conv_transpose": _case(("ConvTranspose", "x,w", {"strides": [2, 2]}), w=_floats(CHANNELS, CHANNELS, 2, 2)),
    "float_conv_1": _convolved(CHANNELS, CHANNELS, 1, 1),
    "float_conv_3": _convolved(CHANNELS, CHANNELS, 3, 3),
    "float_depthwise": _convolved(CHANNELS, 1, 3, 3, group=CHANNELS),
}  # fmt: skip


def write_operators(names: Sequence[str], folder: Path) -> None:
    """Write the operators' models without ONNX Runtime's advice about preparing models."""
    with quietly():
        for name in names:
            write_operator(name, folder)


def write_operator(name: str, folder: Path) -> Path:
    """Write NAME.onnx, whose first convolution is quantized at run time, and NAME.npz; returns the model's path."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    target = folder / f"{name}.onnx"
    with tempfile.TemporaryDirectory() as scratch:
        exported = Path(scratch, "float.onnx")
        onnx.save(model_of(OPERATORS[name]), exported)
        quantize_dynamic(exported, target, weight_type=QuantType.QInt8, nodes_to_quantize=["first"])
    write_answers(target, np.random.default_rng(5).standard_normal((1, CHANNELS, SIZE, SIZE), np.float32))
    return target


def model_of(case: Case) -> Any:
    """The float model: a convolution, then the case's nodes."""
    from onnx import TensorProto, helper, numpy_helper, shape_inference

    first = np.random.default_rng(4).standard_normal((CHANNELS, CHANNELS, 1, 1)) * 0.1
    constants = {**case.constants, "first_weight": first.astype(np.float32)}
    nodes = [helper.make_node("Conv", ["input", "first_weight"], ["x"], name="first")]
    last = "x"
    for number, (kind, inputs, *attributes) in enumerate(case.nodes):
        names = [last if name == "_" else name for name in inputs.split(",")]
        results = [f"{kind.lower()}_{number}"] + ([f"places_{number}"] if kind == "TopK" else [])
        nodes.append(helper.make_node(kind, names, results, name=results[0], **dict(*attributes)))
        last = results[0]
    inputs = [helper.make_tensor_value_info("input", TensorProto.FLOAT, (1, CHANNELS, SIZE, SIZE))]
    held = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "operator", inputs, [helper.make_empty_tensor_value_info(last)], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    return shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
