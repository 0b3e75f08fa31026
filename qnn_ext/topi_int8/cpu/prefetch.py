"""Prefetching weights: while one panel is in use, the next is fetched into L2 from L3 or memory.

To hardware prefetchers, each panel's first pass is several new streams, and they are late for all of them; a model's
weights do not stay in L2 between two runs.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad

from ...numerics.annotations import PREFETCH, annotation_of

VECTOR_BYTES = 16
"""Weights are vectors of at least this size; activations are loaded a few bytes at a time."""

_INTO_L2 = 2  # the locality of llvm.prefetch


def prefetching(loop: tirx.For) -> tirx.For:
    """The loop, with prefetches of the weights it loads wherever it is annotated."""
    ahead = annotation_of(loop, PREFETCH)
    if ahead is None:
        return loop
    loads: list[TensorLoad] = []
    tvm_ffi.structural_walk(loop.body, (TensorLoad, loads.append))
    distinct = {tvm_ffi.StructuralKey(load): load for load in loads if _is_weight(load)}  # type: ignore[call-arg]
    fetches = [tirx.Evaluate(_fetch(load, int(ahead))) for load in distinct.values()]
    body = [*(loop.body.seq if isinstance(loop.body, tirx.SeqStmt) else [loop.body]), *fetches]
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, tirx.SeqStmt(body), None, {})


def _is_weight(load: TensorLoad) -> bool:
    """Whether a load reads a whole vector and is not of an accumulator: those have constant indices."""
    index = load.indices[0]
    if not isinstance(index, tirx.Ramp) or isinstance(index.base, tirx.IntImm):
        return False
    return tvm_ffi.dtype(str(load.ty.dtype)).itemsize >= VECTOR_BYTES


def _fetch(load: TensorLoad, ahead: int) -> Any:
    source, start = load.source, load.indices[0].base
    elements = ahead // tvm_ffi.dtype(str(source.ty.dtype)).itemsize
    return into_l2(tirx.address_of(source[start + elements]))


def into_l2(address: Any) -> Any:
    """The call that fetches the line at an address into L2."""
    return tirx.call_intrin("void", "tirx.prefetch", address, 0, _INTO_L2, 1)
