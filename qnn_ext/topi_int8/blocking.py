"""The cache sizes that loops are blocked for: the CPU's own, within the bounds that were found to pay.

Larger blocks were measured to gain nothing, even where they fit. Smaller caches count as they are.
"""

from __future__ import annotations

from tvm.target import Target

from ..targets.backend import Caches
from ..targets.features import backend_of, caches_of

MOST_L1 = 32 << 10
"""The most bytes of level 1. With blocks for the 64 KiB of a Cortex-A76, MobileNetV1 executed 0.6 % more instructions;
for the 48 KiB of a Zen 5, 24 convolutions of six networks took 0.8 % longer, and all others stayed the same."""

MOST_L2 = 512 << 10
"""The most bytes of a level 2 that is the last. Blocks for the 1 MiB of a Cortex-A72 change two of 120 products; one
executes as many instructions as before, the other 0.1 % more."""

BACKED_L2 = 1 << 20
"""The bytes of level 2 where a level 3 stands behind it: on a Zen 2, whose level 2 has 512 KiB, MobileNetV2 was slower
with blocks for that size; on a Zen 5 with 1 MiB, 38 products took 1.0 % longer with blocks for 2 MiB."""


def blocked_caches(target: Target) -> Caches:
    """The sizes of level 1 and 2 for which strips of tiles, prefetches and rows of elementwise stages are chosen."""
    caches = caches_of(target)
    level_2 = BACKED_L2 if backend_of(target).third_level else min(caches.l2_bytes, MOST_L2)
    return Caches(min(caches.l1_bytes, MOST_L1), level_2)
