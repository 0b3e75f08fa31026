"""Fixtures of all tests of compiling."""

import sys

import pytest


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no other test of this process had used plugins, with which nothing is kept in the cache."""
    monkeypatch.delitem(sys.modules, "qnn_ext.plugins", raising=False)
