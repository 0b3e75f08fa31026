"""Arguments that TVM's PyTorch importer does not check and PyTorch rejects when invalid: indices, divisors."""

from __future__ import annotations

import math
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from tvm import relax

from ....errors import ModelFormatError
from ....op.base import shape_of
from ...run_time import checked_divisor, checked_indices

_ALONG_AXIS = ("aten.gather.default", "aten.scatter.src", "aten.scatter.value")
_BY_AXES = ("aten.index.Tensor", "aten.index_put.default", "aten.index_put_.default")
_REMAINDERS = ("aten.remainder.Tensor", "aten.fmod.Tensor", "aten.remainder.Scalar", "aten.fmod.Scalar")


@contextmanager
def checked_arguments(importer: Any, values: MutableMapping[fx.Node, Any], node: fx.Node) -> Iterator[None]:
    """Within, `values` holds the node's indices and divisors with checks, as TVM's converter reads them there."""
    found = _checks(importer, values, node)
    others = [arg for arg in node.all_input_nodes if arg not in found]
    before = {argument: values[argument] for argument in found}
    if len(others) + len(found) == _count_of_uses(node):  # a value used both as index and as data is left alone
        values.update(found)
    try:
        yield
    finally:
        values.update(before)


def _count_of_uses(node: fx.Node) -> int:
    uses: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), uses.append)
    return len(uses)


def _checks(importer: Any, values: MutableMapping[fx.Node, Any], node: fx.Node) -> dict[fx.Node, relax.Expr]:
    name = str(node.target)
    args: Any = node.args

    def indices(argument: Any, length: int, negative: bool) -> dict[fx.Node, relax.Expr]:
        if not isinstance(argument, fx.Node) or not str(values[argument].ty.dtype).startswith(("int", "uint")):
            return {}  # a mask
        return {argument: checked_indices(importer.emit, values[argument], length, importer.label, negative)}

    if name in _ALONG_AXIS:
        shape = shape_of(values[args[0]])
        return indices(args[2], shape[args[1] % len(shape)] if shape else 1, negative=False)
    if name == "aten.take.default":
        return indices(args[1], math.prod(shape_of(values[args[0]])), negative=True)
    if name == "aten.one_hot.default" and len(args) > 1 and args[1] >= 0:
        return indices(args[0], args[1], negative=False)
    if name in _BY_AXES:
        pairs = zip(args[1], shape_of(values[args[0]]), strict=False)
        return {node: expr for index, size in pairs for node, expr in indices(index, size, negative=True).items()}
    if name in _REMAINDERS:
        return _divisor(importer, values, node)
    return {}


def _divisor(importer: Any, values: MutableMapping[fx.Node, Any], node: fx.Node) -> dict[fx.Node, relax.Expr]:
    divisor: Any = node.args[1]
    if isinstance(divisor, fx.Node):
        return {divisor: checked_divisor(importer.emit, values[divisor], importer.label)}
    of_integers = not torch.is_floating_point(importer.meta)
    if of_integers and divisor == 0:
        raise ModelFormatError(f"{importer.label}: integer division by a constant zero")
    return {}
