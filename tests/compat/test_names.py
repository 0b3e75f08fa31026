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

pytest_plugins = ["pytester"]
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
        ("relay.fromtext", "tvm.script.from_source"),
        ("relay.transform.NoSuchPass", "MIGRATION.md"),
        ("contrib.debugger.debug_executor", r"engine\.profile"),
        ("target.mali", "NVIDIA's GPUs"),
        ("relay.op.contrib.dnnl", "compiled as a whole"),
        ("contrib.relay_viz.RelayVisualizer", r"print\(mod\)"),
        ("parser.fromtext", "tvm.script.from_source"),
        ("auto_scheduler.SearchTask", "qnn_ext.autotune"),
        ("build", "qnn_ext.build"),
    ],
)
def test_absent_names_say_what_there_is_instead(name, instead):
    found = qnn_ext.compat.tvm
    *parents, last = name.split(".")
    for parent in parents:
        found = getattr(found, parent)
    with pytest.raises(
        AttributeError, match=f"{parents[-1] if parents else ''}.*not part of qnn_ext's façade.*{instead}"
    ):
        getattr(found, last)
    package = ".".join([qnn_ext.compat.tvm.__name__, *parents])
    with pytest.raises(ImportError, match=f"not part of qnn_ext's façade.*{instead}"):
        exec(f"from {package} import {last}")


@pytest.mark.parametrize(
    "code",
    [
        "from tvm.relay.expr import Call",
        "from tvm.relay.function import Function",
        "import tvm.relay.expr_functor",
        "from tvm.relay.testing.init import create_workload",
        "from tvm.relay.quantize.kl_divergence import _find_scale_by_kl",
        "from tvm.relay.frontend.pytorch_utils import is_version_greater_than",
        "from tvm.relay.backend import Executor, Runtime",
        "from tvm.autotvm.task.dispatcher import DispatchContext",
        "from tvm.autotvm.measure.measure_methods import request_remote",
        "from tvm.contrib import cc, ndk, tar",
        "import tvm.contrib.relay_viz.interface",
        "from tvm.contrib.download import download_testdata",
        "from tvm.rpc import tracker",
        "from tvm.rpc.tracker import Tracker",
        "import tvm.auto_scheduler as auto_scheduler",
        "from tvm.autotvm.tophub import context",
    ],
)
def test_files_that_scripts_import_from(code):
    """Names are found where TVM had the files that they were in."""
    exec(code.replace("tvm", "qnn_ext.compat.tvm", 1), {})


@pytest.mark.parametrize("name", ["MergeComposite", "ToMixedPrecision", "gradient"])
def test_passes_that_cannot_be_honoured(name):
    with pytest.raises(NotHonouredError, match=rf"relay\.transform\.{name} cannot be honoured: .*; MIGRATION\.md"):
        getattr(relay.transform, name)()


ELSEWHERE = """
import pytest
from qnn_ext.compat import tvm

@tvm.testing.parametrize_targets("llvm", "cuda")
def test_named(target, dev):
    assert (target, dev) == ("llvm", tvm.cpu(0))

@tvm.testing.parametrize_targets
@tvm.testing.known_failing_targets("cuda")
def test_bare(target, dev):
    assert target == "llvm"

@tvm.testing.uses_gpu
def test_both():
    tvm.testing.assert_allclose([1.0], [1.0])

@tvm.testing.requires_llvm
def test_here():
    assert tvm.testing.enabled_targets is not None

@tvm.testing.requires_cudnn
def test_cudnn():
    raise AssertionError

@tvm.testing.requires_package("no_such_package")
def test_package():
    raise AssertionError

def test_absent():
    with pytest.raises(AttributeError, match="not part of qnn_ext"):
        tvm.testing.no_such_name
"""


def test_decorators_of_tests(pytester):
    """A file of tests as TVM had them: collected, run for the CPU, skipped where a feature is missing."""
    pytester.makepyfile(ELSEWHERE)
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=5, skipped=2)


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
from tvm.relay.expr import Call
from tvm import rpc
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
remote = rpc.LocalSession()
remote.upload(folder.relpath("model.tar"))
assert isinstance(remote.load_module("model.tar")["default"](remote.cpu(0)).engine.inputs, tuple)
tvm.ir.assert_structural_equal(tvm.IRModule.from_expr(y), tvm.IRModule.from_expr(y))
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
