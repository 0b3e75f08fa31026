"""The plan of a program: which kernels it calls, and where in the workspace or the weights each of its tensors is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tvm_ffi
from tvm import IRModule, ir, tirx
from tvm.target import Target

from ...errors import LimitError
from ...limits import current, exceeded
from ...running.model import Layout
from ...targets.features import backend_of
from .emit import HEADER, scratch_storages
from .graph import Graph, NotStraightError, read_graph
from .in_place import update_in_place
from .memory import Constants, place
from .numbers import share_numbers
from .overlaps import overlaps_of
from .parts import without_copies
from .phases import Kernel, Lowered, computation
from .sharing import share_out
from .storage import Storage, aligned


@dataclass(frozen=True)
class Plan:
    """What a program calls, and where all of its tensors are. constants: those of all programs planned together"""

    graph: Graph
    kernels: Mapping[ir.GlobalVar, Kernel]
    scratch: Sequence[Sequence[Storage]]
    constants: Constants
    layout: Layout
    live: list[int]


def plan(
    mods: Sequence[IRModule],
    target: Target,
    header: Callable[[Graph, Target], int],
    least_saving: float,
    meeting: float,
    *,
    states: int = 0,
    lent: int = 0,
) -> list[Plan]:
    """The graphs of lowered modules with a place for each of their tensors. Raises NotStraightError, and LimitError.

    Several modules have the same constants, as far as these are equal, and their states at the same places: their
    programs can run in turn over one workspace, each from where the one before left off.

    header:       bytes at the start of the workspace that no tensor gets
    least_saving: nanoseconds that several threads must save for the kernels to be shared out
    meeting:      nanoseconds that it takes to wait for all of them
    states:       how many of the last inputs are states that may be updated in their own memory
    lent:         how many of the inputs, the first ones, a call may overwrite
    """
    drafts = [_draft(mod, target, least_saving, meeting, states, lent) for mod in mods]
    constants = Constants()
    for draft in drafts:
        constants.add(storage for storage in draft.graph.storages() if storage.array is not None)
    start = max(header(draft.graph, target) for draft in drafts)
    if len(drafts) > 1:
        start = max(_place_states(draft.graph.inputs[len(draft.graph.inputs) - states :], start) for draft in drafts)
    return [_placed(draft, target, constants, start) for draft in drafts]


@dataclass(frozen=True)
class _Draft:
    """A plan in which no tensor has a place yet. functions: the kernels as they were before lowering"""

    graph: Graph
    functions: Mapping[ir.GlobalVar, tirx.PrimFunc]
    kernels: Mapping[ir.GlobalVar, Kernel]
    scratch: Sequence[Sequence[Storage]]
    tasks: int


def _draft(mod: IRModule, target: Target, least_saving: float, meeting: float, states: int, lent: int) -> _Draft:
    graph = read_graph(mod)
    functions = graph.functions | {step.kernel: mod[step.kernel] for step in graph.kernels}
    functions = share_numbers(graph, functions)
    functions = update_in_place(graph, functions, states)
    lowered = Lowered(target)
    functions = without_copies(graph, functions, lowered)
    same = _distinct(functions)
    graph.steps = [replace(step, kernel=same[step.kernel]) for step in graph.steps]
    functions = {step.kernel: functions[step.kernel] for step in graph.steps}
    kernels, tasks = share_out(graph, lowered.of(functions), target, least_saving, meeting)
    for storage in graph.inputs[lent:]:
        storage.used_at(len(graph.steps))  # a later call may reuse the same values
    return _Draft(graph, functions, kernels, scratch_storages(graph, kernels), tasks)


def _place_states(states: Sequence[Storage], start: int) -> int:
    """Put the states first, one behind the other; returns their end. Raises NotStraightError if one is part of another
    tensor."""
    for storage in states:
        if storage.whole is not None:
            raise NotStraightError("a state is a part of another tensor")
        storage.offset = start
        start += aligned(storage.size)
    return start


def _placed(draft: _Draft, target: Target, constants: Constants, start: int) -> Plan:
    """The plan with all tensors in the workspace from `start` on, but those that have a place."""
    graph, scratch = draft.graph, draft.scratch
    overlaps = overlaps_of(graph, draft.functions) if backend_of(target).tight else None
    tensors = [storage for storage in graph.storages() if storage.array is None]
    known = [storage for storage in tensors if storage.offset >= 0]
    buffers = [item for items in scratch for item in items]
    workspace = place([*tensors, *buffers], start, draft.tasks, overlaps, known)
    if workspace > current().workspace and draft.tasks > 1:
        workspace = place([*tensors, *buffers], start, known=known)  # as for one task: slower, but smaller
    if workspace > current().workspace:
        raise LimitError(f"{exceeded('workspace', workspace, _needs(graph, scratch))}; a smaller batch takes less")
    layout = Layout(
        workspace=workspace,
        weights=constants.size,
        tasks=draft.tasks,
        steps=len(graph.kernels),
        stamps=HEADER,
        inputs=tuple(storage.offset for storage in graph.inputs),
        outputs=tuple((int(storage.array is not None), storage.offset) for storage in graph.outputs),
    )
    return Plan(graph, draft.kernels, scratch, constants, layout, _live(graph, tensors, scratch))


def _live(graph: Graph, tensors: Sequence[Storage], scratch: Sequence[Sequence[Storage]]) -> list[int]:
    """Bytes in use at each step that is a kernel of the model."""
    steps = len(graph.steps)
    change = np.zeros(steps + 1, np.int64)
    for storage in tensors:
        if storage.whole is None and storage.first <= storage.last:
            change[min(max(storage.first, 0), steps)] += storage.size
            change[min(storage.last + 1, steps)] -= storage.size
    alive = np.cumsum(change[:-1])
    return [
        int(alive[index]) + sum(one.size for one in scratch[index])
        for index, step in enumerate(graph.steps)
        if not step.own
    ]


def _needs(graph: Graph, scratch: Sequence[Sequence[Storage]]) -> str:
    """The step with most bytes in use and the largest tensors then, by the kernels that write them, for a message."""
    writers = {storage.root[0]: step.kernel.name_hint for step in reversed(graph.steps) for storage in step.writes}
    tensors = dict.fromkeys(storage.root[0] for storage in graph.storages() if storage.array is None)
    used = [
        [*(one for one in tensors if one.first <= index <= one.last), *buffers] for index, buffers in enumerate(scratch)
    ]
    most = max(range(len(used)), key=lambda index: sum(one.size for one in used[index]))
    largest = sorted(used[most], key=lambda one: -one.size)[:3]
    texts = [
        f"{one.size:,} " + ("of scratch" if one in scratch[most] else f"for '{writers.get(one, 'an input')}'")
        for one in largest
    ]
    total = sum(one.size for one in used[most])
    step = graph.steps[most].kernel.name_hint
    return f"the model, with {total:,} bytes in use when '{step}' runs ({', '.join(texts)}, …),"


def _distinct(functions: Mapping[ir.GlobalVar, tirx.PrimFunc]) -> dict[ir.GlobalVar, ir.GlobalVar]:
    """For each kernel, the first with the same computation: repeated layers and steps of recurrent ones share code."""
    first: dict[tvm_ffi.StructuralKey, ir.GlobalVar] = {}
    return {var: first.setdefault(computation(function), var) for var, function in functions.items()}
