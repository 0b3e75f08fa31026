"""MIGRATION.md tells the truth: every row runs, in the façade and in today's API."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import qnn_ext
from qnn_ext.compat import library
from qnn_ext.targets.names import make_target

ROOT = Path(__file__).parents[2]
SECTIONS = re.split(r"^## ", (ROOT / "MIGRATION.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
ROW = re.compile(r"^\| `(.+)` \| `(.+)` \|$", re.MULTILINE)


def fails(call):
    """The call must raise an error that names what there is today."""
    with pytest.raises(Exception) as caught:
        call()
    assert type(caught.value).__module__.startswith("qnn_ext.") or isinstance(caught.value, AttributeError)
    assert "MIGRATION.md" in str(caught.value) or "build the model again" in str(caught.value)


def blocks(section: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)


def params():
    for section in SECTIONS:
        name = section.splitlines()[0]
        slow = [pytest.mark.exhaustive("tests/compat/test_autotvm.py, on timings made up")] if name == "Tune" else []
        yield pytest.param(section, id=name, marks=slow)


@pytest.fixture
def built_once(monkeypatch):
    """Many rows build one model for one target: a build of the same again returns the engine that there is."""
    engines = {}

    def build(module, target="native", *args, **options):
        key = id(module), str(make_target(target)), repr((args, options))
        if key not in engines:
            engines[key] = original(module, target, *args, **options), module
        return engines[key][0]

    original = qnn_ext.build
    monkeypatch.setattr(qnn_ext, "build", build)
    monkeypatch.setattr(library, "build_engine", build)


@pytest.mark.usefixtures("built_once")
@pytest.mark.parametrize("section", list(params()))
def test_every_row_runs(section, tmp_path, monkeypatch):
    """In the order of the page, in one namespace for each column."""
    (tmp_path / "qnn_ext").symlink_to(ROOT / "qnn_ext")
    monkeypatch.chdir(tmp_path)
    rows = ROW.findall(section)
    assert len(rows) == section.count("\n| ") - 1, "every row is two pieces of code"
    columns = {"fails": fails}, {"fails": fails}
    for namespace in columns:
        for block in dict.fromkeys([*blocks(SECTIONS[0]), *blocks(section)]):
            exec(block, namespace)
    for row in rows:
        for namespace, code in zip(columns, row, strict=True):
            try:
                exec(code, namespace)
            except Exception as error:
                raise AssertionError(f"{code}: {error}") from error
