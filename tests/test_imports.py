"""The import rules of ARCHITECTURE.md, which pyproject.toml states for import-linter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_import_rules():
    done = subprocess.run([Path(sys.executable).with_name("lint-imports")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


UNCHANGED = """
import os, pkgutil, sys
from importlib import import_module
import tvm, tvm_ffi

def state():
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TORCH")}  # PyTorch's own
    return variables, set(tvm_ffi.core.ERROR_NAME_TO_TYPE)

before = state()
import qnn_ext
for module in pkgutil.walk_packages(qnn_ext.__path__, "qnn_ext."):
    # the first changes TVM when imported, which is its purpose; the second is a program for another Python; the others
    # need a server that the tests do not install
    others = ("qnn_ext.serving.kserve", "qnn_ext.serving.replicas")
    if module.name not in ("qnn_ext.compat.install", "qnn_ext.evaluation.mxnet_server", *others):
        import_module(module.name)
assert not hasattr(tvm, "relay")
assert "qnn_ext.compiling.build" in sys.modules
assert state() == before
"""


def test_importing_changes_nothing_for_others():
    """Neither the environment nor the exceptions that TVM knows; `tvm_runtime.set_up` does, at the first use."""
    subprocess.run([sys.executable, "-c", UNCHANGED], check=True)


WITHOUT_PYTORCH = """
import sys
import qnn_ext, {first}
assert "tvm" in sys.modules and "torch" not in sys.modules
import torch, numpy
module = qnn_ext.from_tflite("{model}")
engine = qnn_ext.build(module, num_threads=1)
x = numpy.zeros(engine.inputs[0].shape, engine.inputs[0].dtype)
assert numpy.array_equal(engine(torch.from_numpy(x)), engine(x))
"""


@pytest.mark.parametrize("first", ["tvm", "qnn_ext.frontends.tflite, qnn_ext.compiling.build"])
def test_tvm_is_imported_without_pytorch(first):
    """It takes a second; tensors of PyTorch imported later are taken all the same."""
    pytest.importorskip("torch")
    model = ROOT / "qnn_ext/data/digits_cnn_int8.tflite"
    subprocess.run([sys.executable, "-c", WITHOUT_PYTORCH.format(first=first, model=model)], check=True)
