"""Selects the combinations of a parametrized test that `make test` runs; `make test-all` (`pytest --all`) runs every
one.

    @pytest.mark.sampled("cpu", whole="native")
    @pytest.mark.parametrize("cpu", CPUS)
    @pytest.mark.parametrize("workload", SHAPES)
    def test_shapes(workload, cpu): ...

Here the variants are CPUs and the cases are workloads. All workloads run on `native`, and each also on one of the other
CPUs, in turn: every case and every variant occurs, and the selection is deterministic. Without `whole` each case runs
with one variant only. With several names a variant is a combination of their values.

    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("tile", TILES)
    def test_tiles(tile): ...

runs the first of every three combinations, for tests with many similar ones.

    @pytest.mark.exhaustive("the cases of tests/conformance")
    def test_again(): ...

runs with --all only; the text says what runs in its place. Tests named on the command line (`path::name`) always run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence

import pytest

Case = tuple[tuple[str, Hashable], ...]  # (parameter, value) pairs


def cover(pairs: Iterable[tuple[Case, Hashable]], whole: Hashable = None) -> set[tuple[Case, Hashable]]:
    """A small set of (case, variant) in which every case and every variant of `pairs` occurs; it has all pairs with the
    variant `whole`, and for each case one other variant. The values of each of the cases' parameters are spread over
    the variants as evenly as possible."""
    variants_of: dict[Case, list[Hashable]] = defaultdict(list)
    chosen = set()
    for case, variant in pairs:
        if variant == whole:
            chosen.add((case, variant))
        else:
            variants_of[case].append(variant)
    uses: Counter[Hashable] = Counter()

    def choose(case: Case, variants: Sequence[Hashable]) -> None:
        variant = min(variants, key=lambda variant: uses[variant] + sum(uses[value, variant] for value in case))
        uses.update([variant, *((value, variant) for value in case)])
        chosen.add((case, variant))

    for case, variants in variants_of.items():
        choose(case, variants)
    for case, variants in reversed(variants_of.items()):  # needed when there are more variants than cases
        for variant in variants:
            if not uses[variant]:
                choose(case, [variant])
    return chosen


def _key(item: pytest.Function, names: Sequence[str]) -> tuple[Case, tuple[Hashable, ...]]:
    params = item.callspec.params
    case = tuple((name, _hashable(value)) for name, value in params.items() if name not in names)
    return case, tuple(_hashable(params[name]) for name in names)


def _hashable(value: object) -> Hashable:
    """The value, or the object's identity: all combinations hold the same object."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


def _places(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, int]]:
    """The items marked one_in, with their index among their test's combinations."""
    seen: Counter[str] = Counter()
    for item in items:
        if item.get_closest_marker("one_in"):
            test = item.nodeid.split("[")[0]
            yield item, seen[test]
            seen[test] += 1


def left_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The items that only run with --all."""
    found = [item for item in items if item.get_closest_marker("exhaustive")]
    tests: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("sampled"):
            tests[item.nodeid.split("[")[0]].append(item)
    found += [item for item, place in _places(items) if place % item.get_closest_marker("one_in").args[0]]
    for group in tests.values():
        marker = group[0].get_closest_marker("sampled")
        assert marker is not None
        whole = marker.kwargs.get("whole")
        keys = [_key(item, marker.args) for item in group]
        if whole is not None and (whole,) not in {variant for _, variant in keys}:
            raise pytest.UsageError(f"{group[0].nodeid}: no combination has the variant {whole!r}")
        chosen = cover(keys, (whole,))
        found += [item for item, key in zip(group, keys, strict=True) if key not in chosen]
    return found


def beyond(most: int, items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The items to leave out so that at most this many remain per module, evenly spread."""
    modules: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        modules[item.nodeid.split("::")[0]].append(item)
    found = []
    for group in modules.values():
        kept = {i * len(group) // most for i in range(most)} if len(group) > most else set(range(len(group)))
        found += [item for i, item in enumerate(group) if i not in kept]
    return found
