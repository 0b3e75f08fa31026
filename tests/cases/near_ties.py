"""Near-ties: neighbouring scales between which an element of a framework's result jumps, because the real number is a
midpoint for one of the two to within rounding. Every rounding on the way shows there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

Scale = TypeVar("Scale", np.float32, np.float64)
_BITS = {4: np.uint32, 8: np.uint64}


def near_ties(
    rng: np.random.Generator, run: Callable[[Scale], np.ndarray], first: Scale, last: Scale, most: int
) -> list[tuple[Scale, Scale]]:
    """Pairs of neighbouring scales, found by bisection for up to `most` of the elements that differ between the scales
    `first` and `last`.

    run: a scale -> the result
    """
    kind = type(first)
    bits = _BITS[kind().itemsize]

    def scale(number: int) -> Scale:
        return bits(number).view(kind)

    low, found = run(first).reshape(-1), set()
    for element in rng.permutation(np.flatnonzero(low != run(last).reshape(-1)))[:most]:
        below, above = (int(end.view(bits)) for end in (first, last))
        while above - below > 1:
            middle = (below + above) // 2
            same = run(scale(middle)).reshape(-1)[element] == low[element]
            below, above = (middle, above) if same else (below, middle)
        found.add(below)
    return [(scale(below), scale(below + 1)) for below in sorted(found)]
