"""Operators without a converter of ours go through TVM's own ONNX importer, one node at a time."""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from ...errors import UnsupportedOperatorError
from ...limits import check_rank
from ...op.base import constant, normalize_axis, shape_of
from ...op.folding import known_value
from ..run_time import check_count
from .indices import checked_inputs
from .node import Node

# Operators of other domains that later became ONNX's own: (domain, name) → the first version there
_ADOPTED = {("com.microsoft", "GatherND"): 13, ("com.microsoft", "GridSample"): 16, ("com.microsoft", "Trilu"): 14}
# What ONNX Runtime writes for one kind of CPU
_LAID_OUT = "com.microsoft.nchwc"
# What to do instead of operators of these domains
_REMEDIES = {
    "ai.onnx.ml": "networks are imported, trees, kernels and linear models of scikit-learn are not: run those in ONNX "
    "Runtime",
    "com.amd.quark": "its block and 16-bit floats are not supported: quantize to integers, as with A8W8 or XINT8",
}
_REMEDY = "add it by a plugin (qnn_ext.plugins), or end the model before it and compute the rest outside"
# … or of these names
_RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)

# What TVM's importer converts, but to something other than what the model means
_UNSOUND = {
    "AllClassNMS": "the number of boxes depends on the data, which is not supported",
}
# Attributes for which TVM's importer accepts any text: (allowed values, the first being the default)
_CHOICES = {
    "GridSample": {
        "mode": ("linear", "bilinear", "cubic", "bicubic", "nearest"),
        "padding_mode": ("zeros", "border", "reflection"),
    },
}
_OF_UNKNOWN_SHAPE = (
    "the shape of the result depends on the data, which is not supported here: bind the inputs that it depends on to "
    "values (constants=), or end the model before this operator and compute the rest outside"
)
# Operators for which TVM's importer takes this version for an older one, with different inputs: (version, the next one)
_SUCCESSORS = {"TopK": (10, 11)}


def is_handled(op_type: str) -> bool:
    """Whether `convert_with_tvm` converts ONNX's operator of this name, or says what to do instead."""
    from tvm.relax.frontend.onnx import onnx_frontend

    return op_type in _RANDOM or op_type in onnx_frontend._get_convert_map()


def convert_with_tvm(node: Node) -> list[relax.Expr]:
    """All outputs of a node by TVM's converter. Raises UnsupportedOperatorError when TVM has none or it fails."""
    from tvm.relax.frontend.onnx import onnx_frontend

    table = onnx_frontend._get_convert_map()
    if node.domain == _LAID_OUT:
        raise UnsupportedOperatorError(
            f"operator {node.op_type} of domain {_LAID_OUT} computes in the layout of one kind of CPU: take the model "
            "that ONNX Runtime optimized, or optimize it with ORT_ENABLE_EXTENDED instead of ORT_ENABLE_ALL"
        )
    if node.op_type in _RANDOM and not node.domain:
        raise node.unsupported(
            f"random numbers: make '{node.outputs[0]}' an input of the model, and give it numbers drawn by your program"
        )
    opset = _ADOPTED.get((node.domain, node.op_type)) if node.domain else node.opset
    if opset is None or node.op_type not in table:
        raise UnsupportedOperatorError(
            f"operator {node.op_type} of domain {node.domain or 'ai.onnx'} version {node.opset} is not supported: "
            f"{_REMEDIES.get(node.domain, _REMEDY)}"
        )
    _use_known_integers(node)
    if node.op_type in _UNSOUND:
        raise UnsupportedOperatorError(_UNSOUND[node.op_type])
    if node.op_type == "Expand" and len(node.inputs) > 1 and node.is_constant(1):
        check_rank(node.constant(1).size)
    if node.op_type == "RoiAlign" and node.attribute("mode", "avg") != "avg":
        raise UnsupportedOperatorError("mode max is not supported")
    if node.op_type == "TopK":
        _check_top_k(node)
    if node.op_type in ("ReduceMax", "ReduceMin") and node.dtype(0) == "bool":
        raise UnsupportedOperatorError("bool data is not supported")
    for name, allowed in _CHOICES.get(node.op_type, {}).items():
        if (found := node.attribute(name, allowed[0])) not in allowed:
            raise node.malformed(f"{name} must be one of {', '.join(allowed)}, found {found!r}")
    if node.op_type.startswith("Reduce"):
        axes = node.integers(1) if node.has_input(1) else node.attribute("axes", ())
        for axis in axes:
            normalize_axis(axis, len(node.shape(0)))  # TVM itself only checks this when the model is compiled
    importer = onnx_frontend.ONNXGraphImporter({}, {})
    attributes = importer._parse_attr(node.operator.proto.attribute)
    attributes["tvm_custom"] = {"name": node.name, "num_outputs": len(node.outputs)}
    inputs = onnx_frontend.onnx_input()
    inputs.extend(checked_inputs(node))
    if node.op_type == "Trilu" and node.has_input(1) and node.is_constant(1):
        inputs[1] = _diagonal(node)
    builder = node.assembly.builder
    functions = len(builder.get().functions)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            version, successor = _SUCCESSORS.get(node.op_type, (0, 0))
            convert = table[node.op_type].get_converter(successor if opset == version else opset)
            result = builder.normalize(convert(builder, inputs, attributes, [{}, {}]))
    except UnsupportedOperatorError:  # of what is emitted
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UnsupportedOperatorError(f"TVM's importer cannot convert the operator: {lines[-1]}") from error
    if len(builder.get().functions) > functions:
        raise UnsupportedOperatorError(
            "TVM's importer converts it into a separate function, which qnn_ext does not support"
        )
    results = [_checked(item) for item in _items(result, builder)]
    if node.op_type == "ReduceMean" and 0 in node.shape(0):  # ONNX Runtime's mean of no elements
        return [constant(np.zeros(shape_of(results[0]), node.dtype(0)))]
    if "Pool" in node.op_type and 0 in shape_of(results[0]) and 0 not in node.shape(0):
        raise node.malformed(f"the window is larger than the padded input {node.shape(0)}")
    return results


def _check_top_k(node: Node) -> None:
    k = node.attribute("k", 1) if node.opset < 10 else int(node.constant(1).reshape(-1)[0])
    check_count(k, node.shape(0)[normalize_axis(node.attribute("axis", -1), len(node.shape(0)))], node.label)


def _diagonal(node: Node) -> relax.Expr:
    """The index of the diagonal, clipped to the matrix or just outside: TVM computes with it in 32 bits."""
    rows, columns = node.shape(0)[-2:]
    return constant(np.clip(np.asarray(node.constant(1), np.int64), -rows, columns))


def _items(result: Any, builder: relax.BlockBuilder) -> list[Any]:
    if isinstance(result, relax.Tuple):
        return list(result.fields)
    if isinstance(result.ty, relax.TupleType):
        bound = builder.emit(result)
        return [builder.emit(relax.TupleGetItem(bound, index)) for index in range(len(result.ty.fields))]
    return [result]


def _use_known_integers(node: Node) -> None:
    """Make constants of inputs that depend on constants alone, as shapes whose arithmetic a quantizer has quantized."""
    for index, value in enumerate(node.inputs):
        if value is not None and node.dtype(index) in ("int32", "int64"):
            known = known_value(node.assembly.builder, value)
            if known is not None:
                node.inputs[index] = constant(known)


def _checked(item: Any) -> relax.Expr:
    """A tensor of known shape; a shape becomes a constant vector."""
    if isinstance(item, relax.ShapeExpr):
        return constant(np.asarray([_known(dim) for dim in item.values], np.int64))
    if tvm.ir.is_prim_expr(item):
        return constant(np.asarray(_known(item), np.int64))
    if not isinstance(item.ty, relax.TensorType) or not isinstance(item.ty.shape, relax.ShapeExpr):
        raise UnsupportedOperatorError(_OF_UNKNOWN_SHAPE)
    for dim in item.ty.shape:
        _known(dim)
    return item


def _known(dim: Any) -> int:
    if not isinstance(dim, (int, tirx.IntImm)):
        raise UnsupportedOperatorError(_OF_UNKNOWN_SHAPE)
    return int(dim)
