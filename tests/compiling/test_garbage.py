"""Python's collector during builds: its thresholds return to what they were."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from qnn_ext.compiling.garbage import young_collections


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


def test_full_collections_wait_for_the_end(thresholds: tuple[int, int, int]) -> None:
    with young_collections():
        assert gc.isenabled() and gc.get_threshold()[:2] == thresholds[:2]
        assert gc.get_threshold()[2] > 100 * thresholds[2]
    assert gc.get_threshold() == thresholds


def test_they_return_after_an_error(thresholds: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="of a build"), young_collections():
        raise ValueError("of a build")
    assert gc.get_threshold() == thresholds


def test_they_return_with_the_last_of_several_builds(thresholds: tuple[int, int, int]) -> None:
    inside, done = threading.Event(), threading.Event()

    def build() -> None:
        with young_collections():
            inside.set()
            assert done.wait(60)

    other = threading.Thread(target=build)
    with young_collections():
        other.start()
        assert inside.wait(60)
    assert gc.get_threshold() != thresholds  # the other build goes on
    done.set()
    other.join()
    assert gc.get_threshold() == thresholds


def test_what_others_have_set_stays() -> None:
    with young_collections():
        gc.set_threshold(123, 4, 5)
    assert gc.get_threshold() == (123, 4, 5)
