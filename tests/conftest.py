"""Shared fixtures."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

MODELS = Path(__file__).parents[2] / "shared" / "models"


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(1234)


@pytest.fixture(scope="session")
def models() -> Path:
    """The folder of real models beside the repository; tests that want it skip when it is not there."""
    if not MODELS.is_dir():
        pytest.skip("the folder of real models (../shared/models) is not here")
    return MODELS


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Environment variables with this interpreter's programs first on PATH, as in an activated virtual environment."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture
def everything_shared(monkeypatch):
    """Thresholds at nothing: every loop that may be parallel is."""
    from qnn_ext.program import phases, sharing

    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("qnn_ext.topi_int8"):
            for name in [name for name in vars(module) if name.startswith("PARALLEL_") and name != "PARALLEL_GRAINS"]:
                monkeypatch.setattr(module, name, 1)
    monkeypatch.setattr("qnn_ext.topi_int8.schedule_util.parallel_rows.__defaults__", (1,))
    monkeypatch.setattr(phases, "MEETING", -1.0)
    monkeypatch.setattr(sharing, "LAUNCH", -1e9)


@pytest.fixture
def links_for():
    """Skip the test where no linker for an architecture is at hand."""

    from qnn_ext import ArtifactError
    from qnn_ext.linking import cross_compiler

    def require(architecture: str) -> None:
        try:
            cross_compiler(architecture)
        except ArtifactError as error:
            pytest.skip(str(error))

    return require


@pytest.fixture
def cli(capsys):
    """Run a command: exit code, stdout, stderr."""

    from qnn_ext.cli import main

    def run(*args) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return run


@pytest.fixture
def fails(cli):
    """Run a command that must end in one line on stderr with exit code 1; that line."""

    def run(*args) -> str:
        code, out, err = cli(*args)
        assert (code, out) == (1, "")
        assert err.startswith("error: ") and err.count("\n") == 1
        return err

    return run
