"""The sample of combinations that `make test` runs leaves out no case and no variant."""

from itertools import product
from types import SimpleNamespace

import pytest

from tests.sampling import beyond, cover


def combinations(cases, variants):
    """Cases of several parameters, given as sizes, and variants by number."""
    names = [f"p{i}" for i in range(len(cases))]
    for values in product(*map(range, cases)):
        for variant in range(variants):
            yield tuple(zip(names, values, strict=True)), variant


@pytest.mark.parametrize("variants", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("cases", [(1,), (4,), (39,), (3, 4), (2, 2, 5)])
def test_every_case_and_every_variant_occurs_and_hardly_more(cases, variants):
    pairs = list(combinations(cases, variants))
    chosen = cover(pairs)
    assert chosen <= set(pairs)
    for place in (0, 1):
        assert {pair[place] for pair in chosen} == {pair[place] for pair in pairs}
    assert len(chosen) == max(len({case for case, _ in pairs}), variants)


@pytest.mark.parametrize("sizes, variants", [((4, 3), 2), ((4, 2), 2), ((6, 4), 3), ((2, 3, 4), 2)])
def test_no_value_always_meets_the_same_variant(sizes, variants):
    """Also where the number of variants divides that of values, and counting through would always pair the same."""
    chosen = cover(combinations(sizes, variants))
    met = {(value, variant) for case, variant in chosen for value in case}
    assert len(met) == sum(sizes) * variants


def test_whole():
    pairs = list(combinations((7,), 4))
    chosen = cover(pairs, whole=2)
    assert {pair for pair in pairs if pair[1] == 2} < chosen
    others = [pair for pair in chosen if pair[1] != 2]
    assert len(others) == 7 and {variant for _, variant in others} == {0, 1, 3}


def test_variants_are_drawn_in_turns():
    """In the order of the cases, whatever their hashes are: all workers of pytest-xdist must draw the same."""
    assert [variant for _, variant in sorted(cover(combinations((7,), 3)))] == [0, 1, 2, 0, 1, 2, 0]


def test_combinations_that_do_not_exist_are_not_chosen():
    """A variant that only some cases have is drawn with one of those."""
    pairs = [((("name", case),), variant) for case in range(4) for variant in ("a", "b") if (case, variant) != (0, "b")]
    pairs.append(((("name", 3),), "rare"))
    chosen = cover(pairs)
    assert chosen <= set(pairs) and {variant for _, variant in chosen} == {"a", "b", "rare"}


@pytest.mark.parametrize("count", [3, 10, 11, 100])
def test_at_most_so_many_of_each_module(count):
    items = [SimpleNamespace(nodeid=f"{module}::t[{i}]") for module in "ab" for i in range(count)]
    left_out = beyond(10, items)
    assert len(items) - len(left_out) == 2 * min(count, 10)
    assert items[0] not in left_out
