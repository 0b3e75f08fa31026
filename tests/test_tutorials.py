"""Every tutorial runs as a user would run it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.one_in(12)
@pytest.mark.parametrize("tutorial", sorted((ROOT / "tutorials").glob("[0-9]*.py")), ids=lambda path: path.stem)
def test_tutorial(tutorial, tmp_path, environment):
    done = subprocess.run(
        [sys.executable, tutorial], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == [], "a tutorial leaves nothing behind"


def test_plots_are_drawn_in_pages_only(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tutorials"))
    import pictures

    def draw() -> None:
        pictures.gallery(np.zeros((3, 8, 8, 1)), ["a", "b", "c"], columns=2, wrong=[True])
        pictures.bars(["a", "b"], [1.0, 2.0], "ms", [2.0, 3.0], ["one", "two"])
        pictures.histogram(np.array([1, 5, 2]), np.array([0.0, 1.0, 2.0, 3.0]), 0.5, 2.5, "values")

    monkeypatch.setitem(sys.modules, "matplotlib", None)  # a script does without it
    draw()
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(ROOT / "tutorials"))
    pytest.importorskip("matplotlib")
    display = pytest.importorskip("IPython.display")
    shown: list = []
    monkeypatch.setattr(pictures, "drawn", lambda: True)
    monkeypatch.setattr(display, "display", shown.append)
    draw()
    assert [image.data[:4] for image in shown] == [b"\x89PNG"] * 3
