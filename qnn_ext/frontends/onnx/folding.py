"""Nodes whose inputs are all known are computed at import, by the onnx package's reference implementation.

That makes the shape arithmetic of exported models disappear. Weights that pass through DequantizeLinear stay integers.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from ...errors import UnsupportedOperatorError
from ..limits import current
from .reader import Operator
from .tensors import NARROW

# Kept as nodes: weights stay integers; drawn at random; or they hold graphs
_NEVER = {
    "DequantizeLinear", "If", "Loop", "Scan", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
    "Bernoulli", "Multinomial", "Dropout",
}  # fmt: skip
# Too slow in the reference implementation; their converters take constants as well
_SLOW = {"Conv", "ConvTranspose", "Resize", "Upsample", "MaxPool", "AveragePool", "ConvInteger", "QLinearConv"}


def evaluate(
    operator: Operator, inputs: Sequence[np.ndarray | None], narrow: Sequence[str], opset: int
) -> list[np.ndarray] | None:
    """The node's outputs for these inputs, or None when it is not to be computed here.

    narrow: for each input "int4" and the like where it holds unpacked 4- or 2-bit integers, else ""
    """
    if operator.domain or operator.op_type in _NEVER or operator.op_type in _SLOW or len(operator.attributes) > 64:
        return None
    if operator.op_type == "Constant":
        return [_constant_node(operator)]
    if _result_size(operator.op_type, inputs) > current().folded + 2 * sum(x.size for x in inputs if x is not None):
        return None
    from onnx.reference import ReferenceEvaluator

    feeds = {
        name: _narrowed(value, dtype)
        for name, value, dtype in zip(operator.inputs, inputs, narrow, strict=True)
        if name and value is not None
    }
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = ReferenceEvaluator(operator.proto, opsets={"": opset}).run(None, feeds)
    except Exception:  # not implemented there, or inputs that do not fit: the converter will say which
        return None
    arrays = [np.asarray(result) for result in results if result is not None]
    usable = len(arrays) == len(results) and all(array.dtype.kind in "biufV" for array in arrays)
    return arrays if usable else None


def _constant_node(operator: Operator) -> np.ndarray:
    for name, dtype in (
        ("value", None),
        ("value_float", np.float32),
        ("value_floats", np.float32),
        ("value_int", np.int64),
        ("value_ints", np.int64),
    ):
        if name in operator.attributes:
            return np.asarray(operator.attributes[name], dtype)
    raise UnsupportedOperatorError("a constant must be a dense tensor of numbers")


def narrow_constant(operator: Operator) -> str:
    """ "int4" and the like for a Constant node of such a tensor, else ""."""
    for attribute in operator.proto.attribute:
        if attribute.name == "value":
            return NARROW.get(attribute.t.data_type, "")
    return ""


def _narrowed(value: np.ndarray, dtype: str) -> np.ndarray:
    return value.astype(getattr(ml_dtypes, dtype)) if dtype else value


def unpacked(value: np.ndarray) -> tuple[np.ndarray, str]:
    """4- and 2-bit integers as 8-bit ones, with the name of what they were, "" for all other dtypes."""
    name = value.dtype.name
    if name in NARROW.values():
        return value.astype(np.uint8 if name.startswith("u") else np.int8), name
    return value, ""


def _result_size(op_type: str, inputs: Sequence[np.ndarray | None]) -> int:
    """Elements of the result, for operators that can make much out of little; 0 for all others."""
    known = [value for value in inputs if value is not None]
    if op_type == "ConstantOfShape" and known:
        return math.prod(int(dim) for dim in known[0].reshape(-1))
    if op_type in ("Expand", "Tile", "Pad", "OneHot") and len(known) > 1 and known[1].dtype.kind in "iu":
        numbers = [max(1, abs(int(value))) for value in known[1].reshape(-1)]
        if op_type == "Pad":
            sides = len(numbers) // 2
            grown = (
                [dim + sum(numbers[axis::sides]) for axis, dim in enumerate(known[0].shape[:sides])] if sides else []
            )
            return math.prod(grown)
        return known[0].size * math.prod(numbers)
    if op_type == "Range" and len(known) == 3 and all(value.size == 1 for value in known):
        start, stop, step = (float(value.reshape(())) for value in known)
        return int(min(abs((stop - start) / step), 2**62)) if step and math.isfinite(start + stop + step) else 2**62
    if op_type in ("MatMul", "Gemm", "Einsum"):
        return math.prod(max(1, value.size) for value in known[:2]) // max(1, min(v.size for v in known))
    return 0
