"""Makes a failing recipe small: drops operators and shrinks shapes as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from .judge import Outcome
from .recipe import Recipe


def reduced(outcome: Outcome, retry: Callable[[Recipe], Outcome], attempts: int = 60) -> Outcome:
    """The outcome of the smallest recipe found that fails with the same kind in the same stage."""
    best = outcome
    while attempts > 0:
        for candidate in smaller(best.recipe):
            attempts -= 1
            found = retry(candidate)
            if same_failure(found, outcome):
                best = found
                break
            if attempts <= 0:
                break
        else:
            return best
    return best


def smaller(recipe: Recipe) -> Iterator[Recipe]:
    """Recipes with one step fewer, dropping the last first; then those with smaller shapes."""
    if len(recipe.steps) > 1:
        for position in reversed(range(len(recipe.steps))):
            yield recipe.without(position)
    for size in (1, 2, 3, 5, 9):
        if size < recipe.size:
            yield replace(recipe, size=size)


def same_failure(one: Outcome, two: Outcome) -> bool:
    """Whether both failed in the same way: for values, it is enough that some oracle or target differs in both."""
    if one.kind != two.kind:
        return False
    if one.kind == "mismatch":
        return bool(differing(one) & differing(two))
    return one.what == two.what and one.detail.split(":")[0] == two.detail.split(":")[0]


def differing(outcome: Outcome) -> set[str]:
    return {name for name, verdict in outcome.against.items() if verdict == "differs"}
