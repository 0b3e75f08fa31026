"""Shared fixtures, and options: --all (see `tests.sampling`), --most and --seconds, which keep `make check` within two
minutes."""

import os
import signal
import sys
import time
from pathlib import Path

import hypothesis
import numpy as np
import pytest

from tests import order, sampling

# With AMX, oneDNN rounds some midpoints otherwise than on all other CPUs, whose rule qnn_ext follows.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

# Tables are as wide as in a pipe: pytest-xdist gives its workers the width of a terminal.
os.environ.pop("COLUMNS", None)

# Every build is a real one, and this user's cache stays as it is.
os.environ["QNN_EXT_CACHE"] = "off"

MODELS = Path(__file__).parents[2] / "shared" / "models"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run every combination of parameters, not a sample of them")
    parser.addoption("--most", type=int, help="run at most this many tests of each module, evenly spread")
    parser.addoption("--seconds", type=float, help="skip the tests that have not started after this many seconds")


def pytest_configure(config: pytest.Config) -> None:
    for number in (signal.SIGINT, *filter(None, [getattr(signal, "SIGHUP", None)])):
        if signal.getsignal(number) == signal.SIG_IGN:  # started by `nohup` or `&`, which children would inherit
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if (seconds := config.getoption("--seconds")) is not None:
        config.pluginmanager.register(TimeLimit(seconds))
    hypothesis.settings.register_profile("sample", derandomize=not config.getoption("--all"))
    hypothesis.settings.load_profile("sample")  # the same examples in each run, or with --all new ones
    config.addinivalue_line("markers", "sampled(*names, whole=None): each case with one variant, see tests/sampling.py")
    config.addinivalue_line("markers", "one_in(number): run one of this many combinations")
    config.addinivalue_line("markers", "exhaustive(instead): only with --all; what runs in its place")


class TimeLimit:
    """Skips tests that would start more than this many seconds into the session, with the reason."""

    def __init__(self, seconds: float) -> None:
        self._reason, self._end = f"not started within {seconds:.0f} s", time.monotonic() + seconds

    def pytest_runtest_setup(self) -> None:
        if time.monotonic() > self._end:
            pytest.skip(self._reason)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--most"):  # `make check` has an order of its own
        order.long_first(items)
    if config.getoption("--all") or any("::" in argument for argument in config.args):
        return
    left_out = set(sampling.left_out(items))
    if most := config.getoption("--most"):
        left_out |= set(sampling.beyond(most, [item for item in items if item not in left_out]))
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def thorough(pytestconfig: pytest.Config) -> bool:
    """Whether tests that loop over cases run all of them."""
    return bool(pytestconfig.getoption("--all"))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(1234)


@pytest.fixture(scope="session")
def models() -> Path:
    """The folder of real models beside the repository; tests that need it skip when it is missing."""
    if not MODELS.is_dir():
        pytest.skip("the folder of real models (../shared/models) is not here")
    return MODELS


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Environment variables with this interpreter's programs first on PATH, as in an activated virtual environment."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture
def everything_shared(monkeypatch):
    """Sets thresholds to zero: every loop that may run in parallel does, in parts that threads take from each other."""
    from qnn_ext.targets.backend import Backend, Sharing

    everything = Sharing(*[1] * 9, meeting=-1.0, part=1e-9, launch=-1e9, unasked=-1e9)
    monkeypatch.setattr(Backend, "sharing", property(lambda _: everything))


@pytest.fixture
def links_for():
    """Skip the test when no linker for the architecture is available."""

    from qnn_ext import ArtifactError
    from qnn_ext.targets.linking import cross_compiler

    def require(architecture: str) -> None:
        try:
            cross_compiler(architecture)
        except ArtifactError as error:
            pytest.skip(str(error))

    return require


@pytest.fixture
def cli(capsys):
    """Run a command; returns exit code, stdout, stderr."""

    from qnn_ext.cli import main

    def run(*args) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return run


@pytest.fixture(autouse=True)
def without_amx():
    """Ends the emulation of AMX that a test began."""
    yield
    if emulator := sys.modules.get("tests.x86.emulator"):
        emulator.release()


@pytest.fixture
def fails(cli):
    """Run a command that must exit with code 1 and one line on stderr; returns that line."""

    def run(*args) -> str:
        code, out, err = cli(*args)
        assert (code, out) == (1, "")
        assert err.startswith("error: ") and err.count("\n") == 1
        return err

    return run
