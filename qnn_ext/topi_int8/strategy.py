"""Strategy registry: workload and target -> the implementation with the highest priority that does not refuse them.

An implementation is a TE compute and a schedule function over `s_tir.Schedule`. `compute` returns the accumulator in
its logical shape; the caller appends any elementwise epilogue (bias, requantize, residual add, table) as further TE
stages and creates one PrimFunc of all of them; `schedule` inlines those stages into the last one and tiles everything
together, so no int32 feature map is ever written to memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from tvm import te
from tvm.target import Target

from ..errors import TargetError
from ..targets.backend import Backend
from ..targets.features import backend_of
from .workload import AnyWorkload, BlockwiseWorkload, Conv2dWorkload, Workload, is_float


@dataclass(frozen=True)
class Implementation:
    """One way to compute a workload.

    name:        shown by `profile` and `inspect`, e.g. "conv2d_nhwc_vnni.x86"
    priority:    of the implementations that do not refuse, the highest wins; generic fallbacks have 0
    backends:    the families of processors that it is made for
    depthwise:   whether it is made for depthwise convolutions, True, or for everything else, False; None: for both
    floats:      whether it is made for sums of floats, True, or of integers, False; None: for both
    refuses:     (workload, target) -> why it does not take a workload that it is made for, as in `refusal`; None: it
                 does
    pack_weight: (workload, weight) -> array as `compute` expects it; runs once, at compile time. None for workloads
                 whose second operand is computed at run time
    compute:     (workload, x, w, pad_value) -> accumulator te.Tensor of the workload's logical output shape; conv2d
                 itself pads with the integer `pad_value` (in x's dtype); dense and batch_matmul ignore it
    schedule:    (schedule, workload, target) -> None; the PrimFunc holds this compute plus the epilogue
    initial:     (workload, per-channel bias) -> the initial values of the accumulators, an int32 array with the shape
                 of the last axes of the block that computes them, named `accumulator`. None: they start at zero
    tiles:       workload -> {legal register tile: predicted cost}, cheapest first. The four functions above take one
                 as the keyword `tile`, by default the first
    variants:    (workload, tile) -> the same tile with other values for decisions whose cost is not predicted, such as
                 the size of a task: further choices for tuning
    """

    name: str
    priority: int
    backends: tuple[Backend, ...]
    compute: Callable[..., te.Tensor]
    schedule: Callable[..., None]
    depthwise: bool | None = None
    floats: bool | None = None
    refuses: Callable[[Any, Target], str | None] = lambda workload, target: None
    pack_weight: Callable[..., np.ndarray] | None = None
    initial: Callable[..., np.ndarray] | None = None
    accumulator: str = ""
    tiles: Callable[[Any], dict[Any, float]] | None = None
    variants: Callable[[Any, Any], list[Any]] | None = None

    @property
    def is_generic(self) -> bool:
        """Whether it is the fallback for workloads that all other implementations refuse."""
        return self.priority == 0

    def with_tile(self, tile: Any) -> Implementation:
        """The same implementation with a register tile from `tiles` instead of the cheapest one."""
        pack_weight = self.pack_weight and partial(self.pack_weight, tile=tile)
        return replace(
            self,
            compute=partial(self.compute, tile=tile),
            schedule=partial(self.schedule, tile=tile),
            pack_weight=pack_weight,
            initial=self.initial and partial(self.initial, tile=tile),
        )


def cheapest_first(costs: dict[Any, float]) -> dict[Any, float]:
    """Tiles with their predicted cost, in the order that `Implementation.tiles` returns them."""
    return dict(sorted(costs.items(), key=lambda item: item[1]))


_registry: dict[type, list[Implementation]] = {}


def register(workload_type: type, implementation: Implementation) -> Implementation:
    """Register `implementation` for workloads of `workload_type`."""
    implementations = _registry.setdefault(workload_type, [])
    implementations.append(implementation)
    implementations.sort(key=lambda item: -item.priority)
    return implementation


def names(workload_type: type) -> list[str]:
    """The names of all implementations for workloads of this type."""
    return [item.name for item in _registry.get(workload_type, [])]


Choice = Callable[[Implementation, Workload, Target], Any]


class KnownChoice(ABC):
    """A choice that can be told from others, so that builds with it can be kept."""

    @abstractmethod
    def __call__(self, item: Implementation, workload: Workload, target: Target) -> Any:
        """The tile to use; None: the cheapest."""

    @abstractmethod
    def digest(self, target: Target) -> str:
        """What all that it chooses for a target follows from."""


_choice: ContextVar[Choice | None] = ContextVar("choice", default=None)


@contextmanager
def tiles_from(choice: Choice | None) -> Iterator[None]:
    """Within the context, implementations use the tile that `choice` returns, or their cheapest if it returns None, as
    they do without a choice."""
    token = _choice.set(choice)
    try:
        yield
    finally:
        _choice.reset(token)


def current_choice() -> Choice | None:
    """The choice from `tiles_from` that is in effect."""
    return _choice.get()


def candidates(workload: AnyWorkload, target: Target) -> list[Implementation]:
    """All implementations that take the workload on the target, best first."""
    found = [item for item in _made_for(workload, target) if item.refuses(workload, target) is None]
    choice = _choice.get()
    return [_chosen(item, workload, target, choice) for item in found] if choice else found


def _made_for(workload: AnyWorkload, target: Target) -> list[Implementation]:
    """The implementations for such workloads on the target's family of processors, best first."""
    backend = backend_of(target)
    depthwise = isinstance(workload, Conv2dWorkload) and workload.depthwise
    every = [item for item in _registry.get(type(workload), []) if backend in item.backends]
    return [item for item in every if item.depthwise in (None, depthwise) and item.floats in (None, is_float(workload))]


def _chosen(item: Implementation, workload: AnyWorkload, target: Target, choice: Choice) -> Implementation:
    if item.tiles is None or isinstance(workload, BlockwiseWorkload):
        return item
    tile = choice(item, workload, target)
    return item if tile is None else item.with_tile(tile)


def select(workload: AnyWorkload, target: Target) -> Implementation:
    """The implementation to use. Raises TargetError when all refuse, which generic fallbacks should prevent."""
    found = candidates(workload, target)
    if not found:
        raise TargetError(f"no kernel for {workload} on target {target}")
    return found[0]


REASONS = 3
"""The most reasons that `why_generic` gives."""


def why_generic(workload: AnyWorkload, target: Target) -> str:
    """Why the generic implementation computes a workload: the reasons of those that refuse it, the best ones' first,
    each with the best implementation that gives it unless all give the same."""
    reasons: dict[str, str] = {}
    for item in _made_for(workload, target):
        reason = item.refuses(workload, target)
        if reason is not None:
            reasons.setdefault(reason, item.name)
    if not reasons:
        return f"there is no faster kernel for {backend_of(target).name}"
    if len(reasons) == 1:
        (text,) = reasons
    else:
        text = "; ".join(f"{reason} ({name})" for reason, name in list(reasons.items())[:REASONS])
    return f"no faster kernel takes {workload.summary}: {text}"
