"""Every tutorial runs as a user would run it."""

import subprocess
import sys
from pathlib import Path

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
