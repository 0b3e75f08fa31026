"""The plan for scarce memory: nothing that lives is overwritten, and tensors overlap where they may."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from qnn_ext.compiling.program.memory import place
from qnn_ext.compiling.program.storage import ALIGNMENT, Storage, aligned

START = 128


def drawn(rng, count):
    """A chain of results with some that live longer: each step reads the result before and writes its own."""
    sizes = rng.integers(1, 4000, count)
    return [
        Storage(int(size), first=step, last=step + 1 + int(rng.integers(0, 3) == 0) * int(rng.integers(1, 6)))
        for step, size in enumerate(sizes)
    ]


def overlaps_in(rng, chain):
    """Distances for operands that nothing else reads after the step that makes the result."""
    pairs = pairwise(chain)
    return {(one, two): int(rng.integers(0, 500)) for one, two in pairs if one.last == two.first}


def check(chain, overlaps, end):
    """All are within the plan; two that live together are apart, or as far behind each other as is said."""
    assert all(one.offset >= START and one.offset % ALIGNMENT == 0 for one in chain)
    assert max(one.offset + aligned(one.size) for one in chain) == end
    for one in chain:
        for two in chain:
            if one is two or one.first > two.last or two.first > one.last:
                continue
            apart = one.offset + one.size <= two.offset or two.offset + two.size <= one.offset
            behind = (one, two) in overlaps and one.offset >= two.offset + overlaps[one, two]
            behind |= (two, one) in overlaps and two.offset >= one.offset + overlaps[two, one]
            assert apart or behind


@pytest.mark.parametrize("seed", range(6))
def test_nothing_alive_is_overwritten(seed):
    rng = np.random.default_rng(seed)
    chain = drawn(rng, 30)
    overlaps = overlaps_in(rng, chain)
    end = place(chain, START, overlaps=overlaps)
    check(chain, overlaps, end)
    apart = place(chain, START, overlaps={})
    check(chain, {}, apart)
    assert end <= apart


def test_a_chain_of_equal_tensors_takes_one():
    chain = [Storage(1024, first=step, last=step + 1) for step in range(5)]
    free = dict.fromkeys(pairwise(chain), 0)
    assert place(chain, 0, overlaps=free) == 1024


def test_a_distance_is_kept():
    operand, result = Storage(1024, first=0, last=1), Storage(1024, first=1, last=2)
    assert place([operand, result], 0, overlaps={(operand, result): 100}) == 1024 + aligned(100)
    assert operand.offset - result.offset == aligned(100)


def test_the_order_of_the_search_pays():
    """Largest first would put the two large ones side by side, though a small one between them lives with both."""
    small, large, other = Storage(64, first=0, last=3), Storage(640, first=0, last=1), Storage(640, first=2, last=3)
    assert place([small, large, other], 0, overlaps={}) == 640 + 64


def test_the_same_plan_every_time():
    plans = []
    for _ in range(2):
        chain = drawn(np.random.default_rng(3), 40)
        place(chain, 0, overlaps=overlaps_in(np.random.default_rng(4), chain))
        plans.append([one.offset for one in chain])
    assert plans[0] == plans[1]
