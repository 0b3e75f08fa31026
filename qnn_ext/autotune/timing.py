"""How a kernel is timed: in turns with others, in batches shorter than a time slice, and the minimum counts.

Other processes occupy the core for whole time slices, and cache contents and clock rates drift over seconds. The former
slows some batches and leaves the others unaffected; the latter affects all contestants alike, as they take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

BATCH_SECONDS = 2e-4  # shorter than a time slice
ROUNDS = 24
HOPELESS = 1.15  # a kernel slower than the best by this factor after a quarter of the rounds is no longer timed

Timer = Callable[[int], float]
"""Number of calls in one batch -> seconds of one call, the least of some batches."""


def race(
    timers: Sequence[Timer], rounds: int = ROUNDS, batch_seconds: float = BATCH_SECONDS, hopeless: float = HOPELESS
) -> list[float]:
    """The least time in seconds of one call of each timer, in turns. The first runs to the end in any case."""
    first = [timer(1) for timer in timers]
    counts = [max(1, int(batch_seconds / max(seconds, 1e-7))) for seconds in first]
    best = [float("inf")] * len(timers)
    racing = list(range(len(timers)))
    for turn in range(rounds):
        if turn == max(1, rounds // 4):
            racing = [index for index in racing if index == 0 or best[index] < hopeless * min(best)]
        for index in racing:
            best[index] = min(best[index], timers[index](counts[index]))
    return best
