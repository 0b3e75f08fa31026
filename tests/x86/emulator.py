"""Runs code with AMX in this process, on CPUs that lack it: `amx.c` computes what ends in an illegal instruction.

Only with QNN_EXT_EMULATE_AMX=1, which `make test` sets for a run of these tests alone: others may take the signal.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
from tvm.target import Target

from qnn_ext.targets import amx, host, names
from qnn_ext.targets.architectures import host_architecture
from qnn_ext.targets.features import has_feature

_patch = pytest.MonkeyPatch()
_features = host.host_features

COUNTED = ("ldtilecfg", "tilezero", "tileloadd", "tilestored", "tdpbusd", "crossing", "tdpbf16ps")


def emulates(target: Target) -> bool:
    """Whether code for a target has AMX's instructions and this CPU does not."""
    return has_feature(target, "amx-tile") and not _features() >= amx.FEATURES


def require() -> None:
    """Emulate AMX, and let this CPU report it, until the end of the test; skip the test if there is no C compiler to
    build the emulator."""
    if os.environ.get("QNN_EXT_EMULATE_AMX") != "1":
        pytest.skip("AMX is emulated in a run of its own: QNN_EXT_EMULATE_AMX=1 pytest -k amx")
    if host_architecture() != "x86_64":
        pytest.skip("AMX is emulated on x86-64 only")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) to build the emulator of AMX with")
    _library().amx_emulate()
    for module in (host, names):
        _patch.setattr(module, "host_features", lambda: _features() | amx.FEATURES)
    _patch.setattr(amx, "request", lambda: True)


def release() -> None:
    """Let this CPU lack AMX again."""
    _patch.undo()


def counts() -> Mapping[str, int]:
    """How many of AMX's instructions were emulated so far, by name, and how many rows crossed a line of the cache."""
    return {name: _library().amx_count(kind) for kind, name in enumerate(COUNTED)}


@cache
def _library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory(prefix="qnn-ext-amx-") as folder:
        path = Path(folder) / "amx.so"
        source = Path(__file__).with_name("amx.c")
        subprocess.run(
            ["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", str(source), "-o", str(path), "-lm"], check=True
        )
        library = ctypes.CDLL(str(path))
    library.amx_count.restype = ctypes.c_uint64
    return library
