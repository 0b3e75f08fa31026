"""What the choice of tiles and the schedule of a register tile know of a CPU's core, beside its instructions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Core:
    """A family of cores.

    l1_bytes, l2_bytes: data caches
    counts:    whether tiles are chosen by the number of instructions, which says all of a core that issues few of them
               a cycle; else by cycles of a wide core that looks far ahead
    weaves:    whether epilogues are woven into the next tile's dot products, see `weave`
    prefetches: whether weights are fetched before their use, see `prefetch`
    """

    l1_bytes: int
    l2_bytes: int
    counts: bool
    weaves: bool
    prefetches: bool


X86 = Core(l1_bytes=32 * 1024, l2_bytes=1024 * 1024, counts=False, weaves=True, prefetches=True)

ARM = Core(l1_bytes=32 * 1024, l2_bytes=512 * 1024, counts=True, weaves=False, prefetches=False)
"""From Cortex-A53, which issues two instructions a cycle in order, to Cortex-A76 and Neoverse N1. Nothing is woven: A53
profits from dot products that wait for no other instruction, the larger cores see 128 and more of them ahead; and
hardware fetches weights, which lie in order, by itself."""
