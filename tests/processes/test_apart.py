"""Work in a fork of this process: its result, its error, or how it died."""

import os
import signal
import sys

import pytest

from qnn_ext.processes.apart import Crashed, apart

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux forks here")

LARGE = bytes(range(256)) * 4096  # more than a pipe holds


def test_result_comes_back():
    before = os.getpid()
    seen = []
    assert apart(lambda: seen.append(1) or LARGE) == LARGE
    assert os.getpid() == before and not seen, "the work was done in this process"


def test_what_it_raises_is_raised_here():
    with pytest.raises(ValueError, match="of its own"):
        apart(lambda: (_ for _ in ()).throw(ValueError("of its own")))


def dies():
    os.write(2, b"last words")
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def test_death_is_an_error(capfd):
    with pytest.raises(Crashed) as caught:
        apart(dies)
    assert caught.value.how == "SIGKILL" and caught.value.said == "last words"
    assert capfd.readouterr().err == ""


def test_exit_code_is_an_error():
    with pytest.raises(Crashed) as caught:
        apart(lambda: os._exit(3))
    assert caught.value.how == "exit code 3"
