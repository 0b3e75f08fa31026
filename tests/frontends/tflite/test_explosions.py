"""Files of some bytes that ask for gigabytes or hours are refused by arithmetic, with the limit that refuses them."""

import sys
from functools import cache
from pathlib import Path

import pytest

from tests.frontends import explosions
from tests.frontends.tflite.explosions import CASES


@cache
def results() -> dict[str, tuple[str, float]]:
    return explosions.results(Path(__file__).with_name("explosions.py"))


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space")
@pytest.mark.parametrize("name", CASES)
def test_small_files_that_ask_for_much(name):
    explosions.check(results()[name], CASES[name][1])
