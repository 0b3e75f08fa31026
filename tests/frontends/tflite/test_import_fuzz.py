"""Damaged models on the whole road of the import: each becomes a module with the file's shapes, or an error of ours.

Deterministic. QNN_FUZZ_CASES raises the number of cases per model; `import_fuzz.py` says how to look into one part.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = int(os.environ.get("QNN_FUZZ_CASES", "12"))
PARTS = 2
BUILD_EVERY = 100


@pytest.mark.parametrize("part", range(PARTS))
def test_damaged_models(part: int, tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    command = [sys.executable, "import_fuzz.py", "--part", f"{part}/{PARTS}", "--progress", str(progress)]
    command += ["--cases", str(CASES), "--build-every", str(BUILD_EVERY)]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    case = progress.read_text().strip() if progress.exists() else "before the first case"
    assert done.returncode == 0, f"the process ended with {done.returncode} in {case}\n{done.stderr[-3000:]}"
    *problems, summary = map(json.loads, done.stdout.splitlines())
    assert not problems, f"{len(problems)} problems, the first: {problems[0]}"
    # the mutations are neither harmless nor all caught at the door
    assert summary["cases"] > 200 * CASES
    assert summary["accepted"] > summary["cases"] / 10 and summary["refused"] > summary["cases"] / 10
    assert summary["run"] and summary["built"]
