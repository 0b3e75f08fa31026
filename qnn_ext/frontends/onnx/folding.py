"""Nodes whose inputs are all known are computed at import, by the onnx package's reference implementation.

This removes the shape arithmetic of exported models. Weights that pass through DequantizeLinear stay integers.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from ...errors import UnsupportedOperatorError
from ...limits import checkpoint
from .folding_cost import is_affordable
from .reader import Operator
from .tensors import FLOAT8, HELD_AS, NARROW

# Kept as nodes: those whose weights stay integers, that draw random numbers, that hold graphs, or that the reference
# implementation computes only in part or, as DynamicQuantizeLinear of zeros, not as ONNX Runtime does
_NEVER = {
    "DequantizeLinear", "If", "Loop", "Scan", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
    "Bernoulli", "Multinomial", "Dropout", "DynamicQuantizeLinear", "LSTM", "GRU", "RNN",
}  # fmt: skip


def evaluate(
    operator: Operator, inputs: Sequence[np.ndarray | None], narrow: Sequence[str], opset: int
) -> list[np.ndarray] | None:
    """The node's outputs for these inputs, or None when it is not to be computed here.

    narrow: for each input "int4" and the like where another dtype holds its values, else ""
    """
    if operator.domain or operator.op_type in _NEVER or len(operator.attributes) > 64:
        return None
    if operator.op_type == "Constant":
        return [constant_node(operator)]
    if not is_affordable(operator, inputs):
        return None
    checkpoint()
    from onnx.reference import ReferenceEvaluator

    feeds = {
        name: _narrowed(value, dtype)
        for name, value, dtype in zip(operator.inputs, inputs, narrow, strict=True)
        if name and value is not None
    }
    if operator.op_type == "QuantizeLinear" and opset < 23:
        feeds = {name: _widened(value) for name, value in feeds.items()}
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = ReferenceEvaluator(operator.proto, opsets={"": opset}).run(None, feeds)
    except Exception:  # not implemented there, or invalid inputs: the converter will report which
        return None
    arrays = [np.asarray(result) for result in results if result is not None]
    usable = len(arrays) == len(results) and all(array.dtype.kind in "biufV" for array in arrays)
    return arrays if usable else None


def constant_node(operator: Operator) -> np.ndarray:
    """The value of a Constant node. Raises UnsupportedOperatorError"""
    for name, dtype in (
        ("value", None),
        ("sparse_value", None),
        ("value_float", np.float32),
        ("value_floats", np.float32),
        ("value_int", np.int64),
        ("value_ints", np.int64),
    ):
        if name in operator.attributes:
            return np.asarray(operator.attributes[name], dtype)
    raise UnsupportedOperatorError("a constant must be a tensor of numbers")


def narrow_constant(operator: Operator) -> str:
    """ "int4" and the like for a Constant node of such a tensor, else ""."""
    for attribute in operator.proto.attribute:
        if attribute.name == "value":
            return (NARROW | FLOAT8).get(attribute.t.data_type, "")
    return ""


def _narrowed(value: np.ndarray, dtype: str) -> np.ndarray:
    return value.astype(getattr(ml_dtypes, dtype)) if dtype else value


def _widened(value: np.ndarray) -> np.ndarray:
    """Halves as float32, in which ONNX Runtime divides by scales before operator set 23; other values as they are."""
    return value.astype(np.float32) if value.dtype.name in ("float16", "bfloat16") else value


def unpacked(value: np.ndarray) -> tuple[np.ndarray, str]:
    """Values of dtypes that NumPy does not have as those that hold them, with their own dtype's name; else ""."""
    name = value.dtype.name
    return (value.astype(HELD_AS[name]), name) if name in HELD_AS else (value, "")
