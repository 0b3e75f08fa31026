"""How a kernel is timed: in turns with others, in batches shorter than a time slice, and the minimum counts.

Other processes take the core away for whole time slices, and caches and clocks drift over seconds. The first makes
some batches slow and leaves the others alone; the second hits all contestants alike, as they take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

BATCH_SECONDS = 2e-4  # shorter than a time slice
ROUNDS = 24
HOPELESS = 1.15  # what is slower than the best by this factor after a quarter of the rounds is not timed any more

Timer = Callable[[int], float]
"""Number of calls in one batch -> seconds of one call, the least of some batches."""


def race(
    timers: Sequence[Timer], rounds: int = ROUNDS, batch_seconds: float = BATCH_SECONDS, hopeless: float = HOPELESS
) -> list[float]:
    """The least seconds of one call of each timer, timed in turns. The first one runs to the end in any case."""
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
