"""Views of one memory: what a tensor holds after an in-place operator has written to another one that shares it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from ....limits import most_folded
from ....op.base import constant, shape_of
from ..common import import_torch
from .values import qparams_of

Emit = Callable[[relax.Expr], relax.Expr]


def _places(tensor: Any) -> np.ndarray:
    """The place of each element in the memory."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    places = import_torch().arange(count).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return np.asarray(places.numpy())


def rewritten(emit: Emit, whole: Any, held: relax.Expr, part: Any, written: relax.Expr) -> relax.Expr | None:
    """What the tensor `whole`, which held `held`, holds after `written` was written to `part`, a tensor in the same
    memory. None if they see the memory as different kinds of numbers, or it has more elements than may be listed."""
    if whole.dtype != part.dtype or qparams_of(whole) != qparams_of(part):
        return None
    count = part.untyped_storage().nbytes() // part.element_size()
    if max(count, whole.numel()) > most_folded():
        return None
    theirs = _places(part).reshape(-1)
    sources = np.full(count, -1)
    sources[theirs] = np.arange(theirs.size)
    found = sources[_places(whole)]  # for each element of the whole the one of the part, −1 for none
    flat = emit(relax.op.reshape(written, [-1]))
    if (found >= 0).all():
        return _taken(emit, flat, found)
    slab = _slab(found >= 0)
    if slab is None:
        return emit(relax.op.where(constant(found >= 0), _taken(emit, flat, np.maximum(found, 0)), held))
    axis, begin, end = slab
    size = found.shape[axis]
    own = _taken(emit, flat, found.take(np.arange(begin, end), axis))
    parts = [
        emit(relax.op.strided_slice(held, axes=[axis], begin=[low], end=[high]))
        for low, high in ((0, begin), (end, size))
        if low < high
    ]
    parts.insert(1 if begin else 0, own)
    return emit(relax.op.concat(parts, axis))


def _taken(emit: Emit, flat: relax.Expr, places: np.ndarray) -> relax.Expr:
    """flat[places]"""
    in_order = np.array_equal(places.reshape(-1), np.arange(shape_of(flat)[0]))
    if in_order:
        return emit(relax.op.reshape(flat, list(places.shape)))
    return emit(relax.op.take(flat, constant(places), axis=0, mode="clip"))


def _slab(mask: np.ndarray) -> tuple[int, int, int] | None:
    """The axis, begin and end of the slice that a mask selects; None if it selects no slice along one axis."""
    for axis in range(mask.ndim):
        line = mask.any(tuple(other for other in range(mask.ndim) if other != axis))
        places = np.flatnonzero(line)
        if len(places) == 0 or places[-1] - places[0] + 1 != len(places):
            continue
        if mask.sum() == len(places) * (mask.size // mask.shape[axis]):
            return axis, int(places[0]), int(places[-1]) + 1
    return None
