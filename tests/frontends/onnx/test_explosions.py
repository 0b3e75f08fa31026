"""Small files that ask for gigabytes or hours are refused by computing sizes, with the limit that they exceed."""

import sys
from pathlib import Path

import pytest

from qnn_ext import LimitError, Limits, from_onnx
from tests.frontends import explosions

from .explosions import CASES, model, node, ranged


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space")
@pytest.mark.parametrize("name", CASES)
def test_small_files_that_ask_for_much(name):
    found = explosions.results(Path(__file__).with_name("explosions.py"))
    explosions.check(found[name], CASES[name][1])


def test_raised_limits():
    with pytest.raises(LimitError, match="--limit folded=33554432"):
        from_onnx(ranged(1 << 25))
    assert from_onnx(ranged(1 << 25), limits=Limits(folded=1 << 25)).outputs[0].shape == (1, 8)
    wide = model([node("Concat", ["x"] * 3000, ["y"], axis=0)])
    assert from_onnx(wide, limits=Limits(operands=3000)).outputs[0].shape == (3000, 8)
