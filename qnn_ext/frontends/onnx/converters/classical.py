"""Operators of ai.onnx.ml around a network, as scikit-learn's converter writes them: Scaler, ArrayFeatureExtractor."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ....op import compound
from ....op.base import constant, shape_of
from ..indices import index_input
from ..node import Node
from ..registry import converter
from .arithmetic import cast, minus, times

MACHINE_LEARNING = "ai.onnx.ml"


@converter("ArrayFeatureExtractor", domain=MACHINE_LEARNING)
def array_feature_extractor(node: Node) -> relax.Expr:
    """The columns with these indices, in their order: X (…, N), Y any shape, flattened → (…, number of indices), of a
    vector (1, number of indices)."""
    data, shape = node.input(0), node.shape(0)
    if not shape or shape[-1] < 1:
        raise node.malformed(f"the data must have columns, found shape {shape}")
    indices = index_input(node, 1, shape[-1])
    places = compound.reshape(indices, (int(np.prod(shape_of(indices))),), node.emit)
    chosen = node.emit(relax.op.take(data, places, len(shape) - 1, mode="clip"))
    return chosen if len(shape) > 1 else node.emit(relax.op.expand_dims(chosen, 0))


@converter("Scaler", domain=MACHINE_LEARNING)
def scaler(node: Node) -> relax.Expr:
    """(X − offset) · scale, float32: one number, or one for each column."""
    columns = node.shape(0)[-1:]
    values = [np.asarray(node.attribute(name, []), np.float32) for name in ("offset", "scale")]
    if any(value.shape not in ((1,), columns) for value in values):
        raise node.malformed(
            f"offset and scale must have one number or {columns} of them, found {[value.size for value in values]}"
        )
    offset, scale = (constant(value) for value in values)
    return times(node, minus(node, cast(node, node.input(0), "float32"), offset), scale)
