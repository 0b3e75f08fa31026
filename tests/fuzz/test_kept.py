"""Files that once broke something: each is refused properly, or imported and run with the interpreter's results."""

from __future__ import annotations

from pathlib import Path

import pytest

from .cases import Case
from .check import GOOD
from .formats import NAMES
from .pool import Single
from .worker import Settings

KEPT = Path(__file__).parent / "kept"
_NEEDS = {"onnx": "onnx", "pt2": "torch", "torchscript": "torch"}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", [name for name in NAMES if any((KEPT / name).glob("*"))])
def test_kept(name):
    pytest.importorskip(_NEEDS.get(name, "numpy"))
    child = Single(Settings(name, str(KEPT / name), 0, 0, seconds=20.0, memory=2 << 30, warm=False))
    try:
        verdicts = {p.name: child.check(Case(p.name, (), run=True)) for p in sorted((KEPT / name).iterdir())}
    finally:
        child.close()
    assert {file: v.detail for file, v in verdicts.items() if v.outcome not in GOOD} == {}


def test_kept_files_are_small():
    sizes = {path.name: path.stat().st_size for path in KEPT.rglob("*") if path.is_file()}
    assert {name for name, size in sizes.items() if size > 20_000} == set()
