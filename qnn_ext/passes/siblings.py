"""Siblings: products that read the same tensor become one product with the output channels of all, and slices of it.

A kernel computes output channels in blocks of a vector register's lanes, so that the few channels of one branch, as of
detection heads, leave lanes idle; several branches together fill them, and read the data once. Constants become
vectors along the channels, so every result keeps its bits. Whether that is worth the slices, which may be copied, is
predicted from the cost of the register tiles.

On a GPU, small products leave multiprocessors idle, and together they take little longer than one of them. But each
slice is a kernel of its own, so that n branches take n + 1 launches: worthwhile for several branches, not for two.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import IRModule, relax
from tvm.target import Target

from ..op.arguments import factors_of, with_data
from ..op.base import call_attributes, constant, constant_value, definition_of, shape_of
from ..op.relax_table import traits_of
from ..op.traits import Kind
from ..targets.features import backend_of
from ..topi_int8 import Conv2dWorkload, DenseWorkload, candidates
from .fuse import is_elementwise
from .lower import workload_of
from .rewrite import Rebuild, bindings_of, consumers, op_name

LEAST_SAVED = 0.1  # of the products' time, predicted
COPIED = 0.25  # cycles per byte of a slice that is copied
# On a GPU, in cycles as the costs of its tiles: between two kernels; for a kernel that copies a slice, which is first
# and last of all latency, and for each byte of it
LAUNCH, SLICE, SLICED = 2000, 1500, 1 / 2000
NARROW = ("int8", "uint8")


@dataclass(frozen=True, eq=False)
class Branch:
    """A product with constant weights and the elementwise operators up to its 8-bit result, which only it leads to.

    members: indices of the bindings
    calls:   the calls that they bind
    """

    members: tuple[int, ...]
    calls: tuple[relax.Call, ...]

    @property
    def weight(self) -> np.ndarray:
        """The product's weights, output channels first."""
        return constant_value(factors_of(self.calls[0])[1])  # type: ignore[return-value]

    @property
    def kind(self) -> Hashable:
        """Equal for branches that differ in their constants at most."""
        data = factors_of(self.calls[0])[0]
        return data, self.weight.shape[1:], str(self.weight.dtype), *map(_attributes, self.calls)


def join_siblings(mod: IRModule, target: Target) -> IRModule:
    """`mod` with branches from one tensor computed together where that is predicted to take less time."""
    function = mod["main"]
    bindings = bindings_of(function)
    groups: dict[Hashable, list[Branch]] = defaultdict(list)
    readers = consumers(function, bindings)
    for index in range(len(bindings)):
        branch = _branch(bindings, readers, index)
        if branch is not None:
            groups[branch.kind].append(branch)
    joined = {}
    for branches in groups.values():
        calls = _joined(branches) if len(branches) > 1 and _is_worthwhile(branches, target) else None
        if calls is not None:
            joined[branches[0].members[0]] = branches, calls
    if not joined:
        return mod
    ends = {branch.members[-1]: branch for branches, _ in joined.values() for branch in branches}
    inside = {index for branch in ends.values() for index in branch.members}
    slices: dict[Branch, relax.Expr] = {}
    new = Rebuild(function)
    with new.main():
        for index, binding in enumerate(bindings):
            if index in joined:
                branches, calls = joined[index]
                slices.update(zip(branches, _emit(new, branches, calls), strict=True))
            if index in ends:
                new.bind(binding.var, slices[ends[index]])
            elif index not in inside:
                new.keep(binding)
    return new.module()


def _branch(bindings: Sequence[relax.VarBinding], readers: dict[Any, list[int]], index: int) -> Branch | None:
    """The branch that starts with a product of two tensors; None if it has no 8-bit result, or depends on others."""
    call = bindings[index].value
    traits = traits_of(call)
    if traits.kind is not Kind.ACCUMULATOR or traits.weight is None or len(traits.arguments) > 2:
        return None
    if constant_value(factors_of(call)[1]) is None or call_attributes(call).get("groups", 1) != 1:
        return None
    members = [index]
    while str(bindings[members[-1]].var.ty.dtype) not in NARROW:
        var = bindings[members[-1]].var
        if len(readers[var]) != 1 or readers[var][0] == len(bindings):
            return None
        members.append(readers[var][0])
        value = bindings[members[-1]].value
        if not is_elementwise(value) or not value.args[0].same_as(var) or shape_of(value) != shape_of(call):
            return None
        if any(isinstance(operand, relax.Var) for operand in value.args[1:]):
            return None
    return Branch(tuple(members), tuple(bindings[member].value for member in members))


def _attributes(call: relax.Call) -> Hashable:
    """An operator with its attributes."""
    found = call_attributes(call) if definition_of(call) is not None else {}
    others = [str(operand) for operand in call.args[1:] if constant_value(operand) is None]
    return op_name(call), str(call.ty.dtype), tuple(sorted(found.items())), tuple(others)


def _is_worthwhile(branches: Sequence[Branch], target: Target) -> bool:
    """Whether one product takes less time than several and the copies of all slices."""
    channels = [len(branch.weight) for branch in branches]
    first = branches[0].calls[0]
    workloads = [workload_of(branch.calls[0], target) for branch in branches]
    together = with_data(first, factors_of(first)[0], constant(np.concatenate([one.weight for one in branches])))
    if backend_of(target).grid:
        copied = sum(math.prod(shape_of(branch.calls[-1])) for branch in branches)
        return _saves_launches(workloads, workload_of(together, target), copied, target)
    costs = [_cost(workload, target) for workload in (*workloads, workload_of(together, target))]
    if any(cost is None for cost in costs):
        return False
    *apart, joint = [cost for cost in costs if cost is not None]
    saved = sum(apart) - joint
    return saved > LEAST_SAVED * sum(apart) and saved > COPIED * sum(channels)


def _saves_launches(apart: Sequence[Any], together: Any, copied: int, target: Target) -> bool:
    """Whether one product and a kernel for each slice, `copied` bytes in all, take less time on a GPU than the
    products."""
    costs = []
    for workload in (*apart, together):
        tiles = candidates(workload, target)[0].tiles
        if tiles is None:
            return False
        costs.append(next(iter(tiles(workload).values())))
    joint, copies = costs.pop(), len(apart) * (LAUNCH + SLICE) + SLICED * copied
    return LAUNCH + joint + copies < (1 - LEAST_SAVED) * sum(LAUNCH + cost for cost in costs)


def _cost(workload: Any, target: Target) -> float | None:
    """Predicted cycles of a product for each pixel or row; None if its implementation does not predict them."""
    best = candidates(workload, target)[0]
    if best.tiles is None or best.initial is None or not isinstance(workload, (Conv2dWorkload, DenseWorkload)):
        return None
    channels = workload.out_channels if isinstance(workload, Conv2dWorkload) else workload.n
    blocks = best.initial(workload, np.zeros(channels, np.int32)).shape[0]
    return blocks * next(iter(best.tiles(workload).values()))


def _joined(branches: Sequence[Branch]) -> list[relax.Call] | None:
    """The calls of all branches with their constants joined, without data; None if some cannot be."""
    channels = [len(branch.weight) for branch in branches]
    result: list[relax.Call] = []
    for calls in zip(*(branch.calls[1:] for branch in branches), strict=True):
        first, args = calls[0], list(calls[0].args)
        axis = call_attributes(first).get("axis", -1) if definition_of(first) is not None else -1
        for position in range(1, len(args)):
            values = [constant_value(call.args[position]) for call in calls]
            known = [value for value in values if value is not None]
            if not known or _all_equal(known):
                continue  # equal: what is not constant is part of the branches' kind
            joined = _by_channel(known, channels) if position in _broadcast(first) else None
            if joined is None or axis not in (-1, len(shape_of(first)) - 1):
                return None
            args[position] = constant(joined)
        result.append(relax.Call(first.op, args, first.attrs, first.ty_args))
    return result


def _broadcast(call: relax.Call) -> set[int]:
    """The positions of arguments that may be vectors along the channels: tensors, scales and zero points."""
    traits = traits_of(call)
    names = [name for data in traits.data for name in (data.name, data.scale, data.zero_point)]
    names += [traits.output.scale, traits.output.zero_point] if traits.output else []
    return {traits.index(name) for name in names if name is not None}


def _all_equal(values: Sequence[np.ndarray]) -> bool:
    """Whether constants are one and the same scalar."""
    return all(value.size == 1 and value.dtype == values[0].dtype and value == values[0] for value in values)


def _by_channel(values: Sequence[np.ndarray], channels: Sequence[int]) -> np.ndarray | None:
    """Constants of all branches as one vector along the channels; None if one varies along another axis."""
    vectors = []
    for value, count in zip(values, channels, strict=True):
        last = value.shape[-1] if value.ndim else 1
        if value.dtype != values[0].dtype or value.size != last or last not in (1, count):
            return None
        vectors.append(np.broadcast_to(value.reshape(-1), count))
    return np.concatenate(vectors)


def _emit(new: Rebuild, branches: Sequence[Branch], calls: Sequence[relax.Call]) -> list[relax.Expr]:
    """Bind the product of all branches and what follows; returns their slices of the result."""
    name, first = new.bindings[branches[0].members[-1]].var.name, branches[0].calls[0]
    data = new.substituted(factors_of(first)[0])
    weight = constant(np.concatenate([branch.weight for branch in branches]))
    result = new.builder.emit(with_data(first, data, weight), name_hint=name)
    for call in calls:
        result = new.builder.emit(
            relax.Call(call.op, [result, *call.args[1:]], call.attrs, call.ty_args), name_hint=name
        )
    axis, begin, slices = len(shape_of(result)) - 1, 0, []
    for branch in branches:
        end = begin + len(branch.weight)
        slices.append(relax.op.strided_slice(result, [axis], [begin], [end]))
        begin = end
    return slices
