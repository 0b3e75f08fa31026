"""The names of the façade: what is there, what explains itself where it is not, and what an unchanged script finds."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from importlib import import_module

import pytest

import qnn_ext.compat.tvm
from qnn_ext.compat.absent import NotHonouredError
from qnn_ext.compat.tvm import relay

MODULES = [
    import_module(found.name) for found in pkgutil.walk_packages(qnn_ext.compat.tvm.__path__, "qnn_ext.compat.tvm.")
]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.removeprefix("qnn_ext.compat."))
def test_all_names_exist(module):
    for name in module.__all__:
        getattr(module, name)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("relay.ExprMutator", "Relax, in `module.ir`"),
        ("relay.fromtext", "tvm.script.from_source"),
        ("relay.transform.NoSuchPass", "MIGRATION.md"),
        ("contrib.ndk", "engine.save links"),
        ("target.mali", "NVIDIA's GPUs"),
        ("ir.assert_structural_equal", "compare results"),
        ("auto_scheduler", "qnn_ext.autotune"),
        ("build", "qnn_ext.build"),
    ],
)
def test_absent_names_say_what_there_is_instead(name, instead):
    found = qnn_ext.compat.tvm
    *parents, last = name.split(".")
    for parent in parents:
        found = getattr(found, parent)
    with pytest.raises(AttributeError, match=f"{name.split('.')[0]}.*not part of qnn_ext's façade.*{instead}"):
        getattr(found, last)


@pytest.mark.parametrize("name", ["MergeComposite", "ToMixedPrecision", "gradient"])
def test_passes_that_cannot_be_honoured(name):
    with pytest.raises(NotHonouredError, match=rf"relay\.transform\.{name} cannot be honoured: .*; MIGRATION\.md"):
        getattr(relay.transform, name)()


def test_what_tvm_still_has_is_its_own():
    import tvm
    from qnn_ext.compat.tvm.topi.nn.qnn import SQNN_DTYPE_TO_CODE

    from qnn_ext.compat.tvm import te

    assert te is tvm.te
    assert SQNN_DTYPE_TO_CODE is import_module("tvm.topi.nn.qnn").SQNN_DTYPE_TO_CODE
    assert not hasattr(tvm, "relay")


SCRIPT = """
import numpy as np
import tvm
import tvm.relay.testing
from tvm import relay, te, testing
from tvm.relay import transform
from tvm.contrib import graph_executor
from tvm.contrib.utils import tempdir
from tvm.runtime.vm import VirtualMachine

testing.utils.install_request_hook(depth=3)
x = relay.var("x", shape=(2, 3), dtype="int8")
y = relay.qnn.op.requantize(x, relay.const(1.0), relay.const(0), relay.const(2.0), relay.const(1))
mod = tvm.IRModule.from_expr(y)
mod = tvm.transform.Sequential([transform.InferType(), relay.qnn.transform.CanonicalizeOps()])(mod)
target = tvm.target.Target("llvm -mcpu=x86-64")
assert target.kind.name == "llvm" and str(target.attrs["mcpu"]) == "x86-64"
with tvm.transform.PassContext(opt_level=3, config={"relay.backend.use_meta_schedule": False}):
    lib = relay.build(mod, target=target)
folder = tempdir()
lib.export_library(folder.relpath("model.tar"))
module = graph_executor.GraphModule(tvm.runtime.load_module(folder.relpath("model.tar"))["default"](tvm.device("llvm")))
module.set_input("x", tvm.nd.array(np.array([[4, 5, -3]] * 2, np.int8)))
module.run()
assert module.get_output(0).numpy().tolist() == [[3, 4, 0]] * 2
data = np.ones((2, 3), np.int8)
assert VirtualMachine(relay.vm.compile(mod, "x86-64"), tvm.cpu()).invoke("main", data).numpy().tolist() == [[2] * 3] * 2
"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("with_pytest", [False, True])
def test_unchanged_script_with_one_line_added(tmp_path, with_pytest):
    """Also without pytest, which TVM's own tvm.testing imports."""
    if not with_pytest:
        (tmp_path / "pytest.py").write_text("raise ImportError")
    check = f'assert hasattr(testing, "enabled_targets") == {with_pytest}'
    (tmp_path / "script.py").write_text(f"import qnn_ext.compat.install\n{SCRIPT}\n{check}\n{TODAY}")
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


TODAY = """
from tvm import relax  # and what TVM 0.27 has works as before

builder = relax.BlockBuilder()
x = relax.Var("x", relax.TensorType((2,), "float32"))
with builder.function("main", [x]):
    builder.emit_func_output(builder.emit(relax.op.add(x, x)))
function = builder.get()["main"]
assert isinstance(tvm.IRModule.from_expr(function), tvm.IRModule)
run = tvm.compile(tvm.transform.Sequential([relax.transform.LegalizeOps()])(builder.get()), target="llvm")
machine = VirtualMachine(run, tvm.cpu())
assert machine["main"](tvm.runtime.tensor(np.ones(2, np.float32))).numpy().tolist() == [2, 2]
"""


def test_script_with_changed_imports():
    changed = SCRIPT.replace("import tvm\n", "from qnn_ext.compat import tvm\n").replace(
        "import tvm.relay.testing", "import qnn_ext.compat.tvm.relay.testing"
    )
    exec(changed.replace("from tvm", "from qnn_ext.compat.tvm"), {})
