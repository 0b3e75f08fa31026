"""Annotations that carry facts with TIR from one pass to another: every key, who writes it and who reads it.

Facts are never inferred from the name of a function or a block. This module is here, and not where most of it is used,
because all packages that create or read TIR may import numerics.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

# ---- functions ---------------------------------------------------------------------------------------------------

SCHEDULED = "tirx.is_scheduled"
"""TVM's own: passes leave the function as it is. Written by lower and by the generic schedules, read by them and by
`numerics.bounded`: such a function reads only within its operands."""

COMPOSITE = "Composite"
"""TVM's own: the operators of a group, "conv2d_accumulate+add". Written by fuse, read by lower, which turns each
function that has it into a kernel, and by fold_calls."""

LAYER = "qnn_layer"
"""The model's name for what a group or a kernel computes. Written by fuse, read by lower."""

SOURCES = "qnn_sources"
"""The model's names for the tensors that a group or a kernel computes, those inside it too. Written by fuse, read by
lower."""

JOIN = "qnn_join"
"""The axis along which a kernel joins its operands, in order. Written by legalize_moves, read by program.parts, which
lets the operands' kernels write directly into the result."""

SLICE = "qnn_slice"
"""A kernel copies equally long runs of memory from its operand: the first element, the number of runs, and the elements
from the start of one to that of the next. Written and read like JOIN."""

TAKE = "qnn_take"
"""A kernel takes elements along an axis. Written and read by legalize_moves."""

WRITES = "qnn_writes"
"""A kernel copies its first operand and replaces rows along this axis. Written by legalize_moves, read by
program.in_place, which lets it write into the operand's own memory where nothing reads that any more."""

UNALIGNED = "qnn_unaligned"
"""Operands and results may be unaligned: they are parts of others. Written by program.parts, read by program.phases."""


NUMBERS = "qnn_numbers"
"""The first parameter is a vector of constants that several kernels with this function have different ones of. Written
by program.numbers, read by program.phases."""


@dataclass(frozen=True)
class KernelFacts:
    """Facts about a kernel, as attributes of its function. Written by lower, read by autotune and, for profile and
    inspect, by compiling.describe; compiling.program shares the code of kernels that differ only in names.

    layer, composite, sources: as LAYER, COMPOSITE and SOURCES
    implementation:   name of the implementation, or "generic"
    macs:             multiply-accumulates
    workload:         the product as JSON, see `running.kernels.Kernel`
    reason:           why no faster implementation computes it
    """

    layer: str
    composite: str
    implementation: str
    macs: int = 0
    workload: str = ""
    reason: str = ""
    sources: tuple[str, ...] = ()

    def on(self, function: tirx.PrimFunc) -> tirx.PrimFunc:
        """The function with these facts, without empty ones."""
        for field in fields(self):
            if value := getattr(self, field.name):
                function = function.with_attr(_KEYS[field.name], value)
        return function


_KEYS = {
    "layer": LAYER,
    "composite": COMPOSITE,
    "implementation": "qnn_implementation",
    "macs": "qnn_macs",
    "workload": "qnn_workload",
    "reason": "qnn_reason",
    "sources": SOURCES,
}


def facts_of(function: tirx.PrimFunc) -> KernelFacts | None:
    """The facts about a kernel; None if it comes from TVM's own operators."""
    attributes = {str(key): value for key, value in function.attrs.items()} if function.attrs else {}
    if _KEYS["implementation"] not in attributes:
        return None
    macs = int(attributes.pop(_KEYS["macs"], 0))
    sources = tuple(map(str, attributes.pop(SOURCES, ())))
    texts = {name: str(attributes[key]) for name, key in _KEYS.items() if key in attributes}
    return KernelFacts(macs=macs, sources=sources, **texts)


def without_names(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function without the attributes that distinguish it from others with the same computation."""
    for name in ("global_symbol", *(_KEYS[field] for field in ("layer", "composite", "reason", "sources"))):
        function = function.without_attr(name)
    return function


def is_scheduled(function: tirx.PrimFunc) -> bool:
    """Whether schedules leave the function as it is."""
    return bool(function.attrs and function.attrs.get(SCHEDULED))


# ---- blocks: as `attrs` of te.compute ----------------------------------------------------------------------------

KEEP = "qnn_keep_stage"
"""The generic schedules do not inline this stage. Written by computes whose stages are expensive or must be rounded."""

BEHIND = "qnn_behind"
"""For each buffer that a block reads, how many bytes it must start behind the block's result to share memory with it;
−1: it cannot. Written by kernels that know their order, read by program.overlaps."""

OPERAND = "qnn_operand"
"""The stage gathers or pads an operand for a product. Written by the computes of products, read by their schedules,
which place it where the product reads it, or inside the stage that copies it."""


def has(sch: Schedule, block: SBlockRV, key: str) -> bool:
    """Whether a block's stage is marked with this key."""
    return key in sch.get(block).annotations


# ---- loops -------------------------------------------------------------------------------------------------------

PARTITION = "pragma_loop_partition_hint"
"""TVM's own: lowering splits the loop into one for each branch of a condition inside. Written by schedules."""

PREFETCH = "qnn_prefetch"
"""Every vector that the loop's body loads is prefetched this many bytes ahead. Written by the CPUs' register tile, read
by cpu.prefetch."""

MATRIX = "qnn_matrix"
"""The loop over the lanes of a register tile that instructions on matrices compute, or clear; how many such tiles in a
row use the same weights. Written by cpu.matrix, read by x86.matrices."""

SETUP = "qnn_setup"
"""The first so many statements of a parallel loop's body set up the thread that runs it, and the last one undoes that:
for several iterations in a row on a thread, once is enough. Written by x86.matrices, read by topi_int8.threads."""

WEAVE = "qnn_weave"
"""Software pipelining: the loop's iterations, an epilogue's vectors, are interleaved with the dot products of the next
tile. Written by the CPUs' register tile, read by cpu.weave."""


TRIPS = "qnn_trips"
"""How many rounds a loop whose extent is known only at run time has at most. Written by kernels, read by
program.cost."""


def annotation_of(stmt: Any, key: str) -> Any:
    """The value of a loop's annotation with this key; None for other loops and statements."""
    return stmt.annotations.get(key) if isinstance(stmt, tirx.For) else None
