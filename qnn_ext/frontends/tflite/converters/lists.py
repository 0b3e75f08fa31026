"""TensorList…: lists of TensorFlow's, where its converter was told to leave them. A list is a tensor of its elements,
stacked; in the body of a WHILE, see `lists.py`."""

from __future__ import annotations

import re

import numpy as np
from tvm import relax

from ....limits import charge
from ....op.base import constant
from ...run_time import checked_indices
from ..node import Node, shape_of
from ..registry import converter

_DTYPES = {1: "float32", 3: "int32", 9: "int64", 10: "bool"}
"""By TensorFlow's codes."""


def _names(operator: str) -> tuple[str, str]:
    return operator, f"Flex{operator}"


@converter(*_names("TensorListReserve"), max_version=1)
def convert_reserve(node: Node) -> relax.Expr:
    """A list of zeros. Dimensions of the elements that are not known count as 0, and elements of unknown rank as
    scalars: what is written into them is known."""
    count = node.integer(1)
    if count < 0:
        raise node.malformed(f"a list of {count} elements")
    shape = (count, *(max(dim, 0) for dim in (node.integers(0) if node.shape(0) else ())))
    charge(shape)
    found = re.search(rb"element_dtype\x12\x02\x30(.)", node.operator.custom_options, re.DOTALL)
    return constant(np.zeros(shape, _DTYPES.get(found[1][0], "float32") if found else "float32"))


@converter(*_names("TensorListFromTensor"), *_names("TensorListStack"), max_version=1)
def convert_stack(node: Node) -> relax.Expr:
    """The elements of a list along the first axis, or the other way round."""
    if not node.shape(0):
        raise node.malformed("a list of a scalar")
    return node.input(0)


@converter(*_names("TensorListLength"), max_version=1)
def convert_length(node: Node) -> relax.Expr:
    return constant(np.int32(node.shape(0)[0]))


@converter(*_names("TensorListGetItem"), max_version=1)
def convert_get(node: Node) -> relax.Expr:
    """An element of a list."""
    index = node.input(1)
    if shape_of(index) != () or str(index.ty.dtype) != "int32" or not node.shape(0):
        raise node.malformed(f"an index of dtype {index.ty.dtype} and shape {shape_of(index)} into {node.shape(0)}")
    return relax.op.take(node.input(0), checked_indices(node.emit, index, node.shape(0)[0], node.label), 0, mode="clip")
