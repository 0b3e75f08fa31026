"""The order in which `pytest -n 2 --dist loadfile` hands out test modules: long ones first, so that no process is still
busy with one when the others have nothing left. pytest-xdist alone goes by the number of tests, and the modules that
take minutes have few (`--no-loadscope-reorder` turns that off)."""

from __future__ import annotations

from collections import Counter

import pytest

# with --all these take more than a minute each; the longest first
LONG = (
    "tests/test_tutorials.py",
    "tests/cuda/test_models.py",
    "tests/processes/test_ends.py",
    "tests/arm/test_models.py",
    "tests/test_documentation.py",
    "tests/models/test_engine.py",
    "tests/conformance/test_near_ties.py",
    "tests/fuzz/test_fuzz.py",
)


def long_first(items: list[pytest.Item]) -> None:
    """Sort tests by module: those of LONG, then the others from many tests to few."""
    sizes = Counter(item.nodeid.split("::")[0] for item in items)
    by_size = (module for module, _ in sizes.most_common())
    places = {module: place for place, module in enumerate(dict.fromkeys((*LONG, *by_size)))}
    items.sort(key=lambda item: places[item.nodeid.split("::")[0]])
