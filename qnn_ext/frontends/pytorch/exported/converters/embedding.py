"""Bags of quantized tables, which are tensors of bytes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from tvm import relax

from .....errors import UnsupportedOperatorError
from .....op.base import constant_value
from ...tables import BITS, bags_of, of_bytes
from ..registry import converter


def _bags(
    importer: Any,
    table: relax.Expr,
    indices: relax.Expr,
    offsets: relax.Expr | None,
    _scale_grad: bool,
    _mode: int,
    pruned: bool,
    weights: relax.Expr | None,
    mapping: relax.Expr | None,
    closed: bool,
    bits: int,
) -> relax.Expr:
    """Like PyTorch's kernels, it sums whatever `mode` says."""
    rows = of_bytes(_constant(table), bits, importer.label)
    kept = _constant(mapping) if pruned else None
    return bags_of(importer.emit, rows, indices, offsets, weights, kept, closed, importer.label)


def _constant(value: relax.Expr | None) -> np.ndarray:
    known = constant_value(value) if value is not None else None
    if known is None:
        raise UnsupportedOperatorError("a table that is computed at run time; make it a buffer of the model")
    return known


def _repacked(importer: Any, *_arguments: Any) -> relax.Expr:
    """PyTorch computes it for a constant table."""
    raise UnsupportedOperatorError("a table that is computed at run time; make it a buffer of the model")


for _name, _bits in BITS.items():
    converter(f"quantized.embedding_bag_{_name}_rowwise_offsets.default")(partial(_bags, bits=_bits))
    converter(*(f"quantized.embedding_bag_{_name}_{kind}.default" for kind in ("prepack", "unpack")))(_repacked)
