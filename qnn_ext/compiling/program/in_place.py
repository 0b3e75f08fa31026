"""States updated in their own memory: rows are written into a key-value cache without a copy of it.

A kernel with the note WRITES copies its first operand and replaces rows of the copy. If that operand is a state, or an
earlier such update of one, and nothing reads its old values any more, the result takes the state's memory, and only the
rows are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tvm import ir, tirx

from ...numerics.annotations import WRITES
from ...topi_int8.generic.row_writes import rows_writer
from .graph import Graph
from .storage import Storage


def update_in_place(
    graph: Graph, functions: Mapping[ir.GlobalVar, tirx.PrimFunc], states: int
) -> dict[ir.GlobalVar, tirx.PrimFunc]:
    """Let updates of states write into their memory; returns the functions that the steps now call.

    states: number of states, the last inputs
    """
    result = dict(functions)
    memory = set(graph.inputs[len(graph.inputs) - states :])
    for index, step in enumerate(graph.steps):
        function = result[step.kernel]
        notes = function.attrs or {}
        if WRITES not in notes or step.loop is not None:
            continue
        data, *others = step.reads
        (written,) = step.writes
        root = data.root[0]
        if root not in memory or data.size != root.size or _is_needed(graph, index, root):
            continue
        if any(other.root[0] is root for other in others):
            continue
        written.become_part(root, 0)
        root.is_updated = True
        kernel = ir.GlobalVar(f"{step.kernel.name_hint}_in_place{index}")
        result[kernel] = rows_writer(function, int(notes[WRITES]))
        graph.steps[index] = replace(step, kernel=kernel, reads=tuple(others))
    return result


def _is_needed(graph: Graph, index: int, root: Storage) -> bool:
    """Whether anything behind a step reads what `root` held before it. The step's own result is not yet part of it."""
    later = [*(read for step in graph.steps[index + 1 :] for read in step.reads), *graph.outputs]
    return any(read.root[0] is root for read in later)
