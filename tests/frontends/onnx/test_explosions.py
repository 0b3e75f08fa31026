"""Files of some bytes that ask for gigabytes or hours are refused by arithmetic, with the limit that refuses them."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from qnn_ext import LimitError, Limits, from_onnx

from .explosions import CASES, lstm, model, node, ranged

SECONDS = 20  # of one import; most take milliseconds


@cache
def results() -> dict[str, tuple[str, float]]:
    """What one child, which imports all of them, says of each."""
    program = Path(__file__).with_name("explosions.py")
    child = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=300)
    lines = [json.loads(line) for line in child.stdout.splitlines()]
    assert child.returncode == 0, f"ended after {lines[-1:]}: {child.stderr[-500:]}"
    return {name: (text, seconds) for name, text, seconds in lines}


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space")
@pytest.mark.parametrize("name", CASES)
def test_small_files_that_ask_for_much(name):
    text, seconds = results()[name]
    expected = CASES[name][1]
    if expected in Limits.__dataclass_fields__:
        assert text.startswith("LimitError: ") and f"--limit {expected}=" in text
    else:
        assert expected in text and bool(expected) == bool(text)
    assert seconds < SECONDS


def test_raised_limits():
    with pytest.raises(LimitError, match="--limit unrolled=5"):
        from_onnx(lstm(5), limits=Limits(unrolled=4))
    assert from_onnx(lstm(5), limits=Limits(unrolled=5)).outputs[0].shape == (5, 1, 1, 1)
    with pytest.raises(LimitError, match="--limit folded=33554432"):
        from_onnx(ranged(1 << 25))
    assert from_onnx(ranged(1 << 25), limits=Limits(folded=1 << 25)).outputs[0].shape == (1, 8)
    wide = model([node("Concat", ["x"] * 3000, ["y"], axis=0)])
    assert from_onnx(wide, limits=Limits(operands=3000)).outputs[0].shape == (3000, 8)
