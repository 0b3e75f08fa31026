"""Small files that ask for gigabytes or hours are refused by computing sizes, with the limit that they exceed."""

import sys
from pathlib import Path

import pytest

from tests.frontends import explosions
from tests.frontends.tflite.explosions import CASES


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space")
@pytest.mark.parametrize("name", CASES)
def test_small_files_that_ask_for_much(name):
    found = explosions.results(Path(__file__).with_name("explosions.py"))
    explosions.check(found[name], CASES[name][1])
