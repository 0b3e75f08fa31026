"""Long test modules start first, and exist."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.order import LONG, long_first


@pytest.mark.parametrize("module", LONG)
def test_long_modules_exist(module):
    assert (Path(__file__).parents[1] / module).is_file()


def test_long_modules_are_first_and_small_ones_last():
    names = ["tests/a.py::1", "tests/b.py::1", "tests/b.py::2", f"{LONG[1]}::1", f"{LONG[0]}::2", f"{LONG[0]}::1"]
    items = [SimpleNamespace(nodeid=name) for name in names]
    long_first(items)
    found = [item.nodeid for item in items]
    assert found == [
        f"{LONG[0]}::2",
        f"{LONG[0]}::1",
        f"{LONG[1]}::1",
        "tests/b.py::1",
        "tests/b.py::2",
        "tests/a.py::1",
    ]
