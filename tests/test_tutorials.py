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


MODELS = ROOT.parent / "shared" / "models"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("tutorial", ["19_microcontroller", "20_language_model", "22_packed_weights"])
def test_tutorial_with_a_trained_model(tutorial, tmp_path, environment):
    """What it says when it is given the model that it is about."""
    keywords, llm = MODELS / "tflite" / "kws_ref_model.tflite", MODELS / "llm"
    if not (keywords.exists() and llm.exists()):
        pytest.skip("../shared/models is not there")
    with np.load(keywords.with_suffix(".npz")) as arrays:
        np.save(tmp_path / "features.npy", arrays["input0_0"])
    command = [sys.executable, ROOT / "tutorials" / f"{tutorial}.py"]
    command += [keywords, tmp_path / "features.npy"] if tutorial == "19_microcontroller" else []
    done = subprocess.run(
        command, env=environment | {"LLM": str(llm)}, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert any(
        words in done.stdout for words in ("heard: yes", "Once upon a time", "4 bits, gptq", "this tutorial needs")
    )


def test_plots_are_drawn_in_pages_only(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tutorials"))
    import pictures

    def draw() -> None:
        pictures.gallery(np.zeros((3, 8, 8, 1)), ["a", "b", "c"], columns=2, wrong=[True])
        pictures.photos([np.zeros((1, 3, 4, 6)), np.ones((1, 3, 4, 6))], ["dark", "light"])
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
    assert [image.data[:4] for image in shown] == [b"\x89PNG"] * 4
