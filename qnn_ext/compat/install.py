"""`import qnn_ext.compat.install` as the only added line of a script: `tvm` gets back the names that TVM 0.20 removed.

`tvm.relay`, `tvm.autotvm`, `tvm.nd` and `tvm.contrib.graph_executor` become the façade's. What TVM still has is kept,
and also takes what it took then: target strings in their old form, functions of the façade in `IRModule.from_expr`,
targets as devices, settings of Relay in a PassContext, files of ours in `load_module`. This holds for the whole
process; importing any other part of qnn_ext changes nothing in TVM.
"""

from __future__ import annotations

import sys
from functools import wraps
from importlib import import_module
from typing import Any

import tvm
import tvm.contrib
import tvm.rpc
import tvm.runtime.vm
import tvm.target

from . import remote
from .aliases import Aliases
from .devices import device, gpu
from .expressions import Expr, TupleWrapper
from .functors import assert_structural_equal, structural_equal
from .library import Executable, load_module
from .library import VirtualMachine as OurMachine
from .modules import IRModule
from .passes import Pass
from .passes import Sequential as OurSequential
from .targets import arm_cpu, attributes_of, cuda
from .tvm import RENAMED, testing
from .tvm.testing.utils import install_request_hook

MODULES = (
    "relay",
    "autotvm",
    "nd",
    "auto_scheduler",
    "micro",
    "parser",
    "contrib.debugger",
    "contrib.graph_executor",
    "contrib.graph_runtime",
    "contrib.relay_viz",
    "contrib.utils",
    "runtime.container",
)
"""The modules of the façade that TVM 0.27 does not have."""


def _add_modules() -> None:
    modules: tuple[str, ...] = MODULES
    try:
        setattr(import_module("tvm.testing.utils"), "install_request_hook", install_request_hook)  # noqa: B010
        for name in (*testing.__all__, "__getattr__"):
            vars(tvm.testing).setdefault(name, getattr(testing, name))
    except ImportError:  # it needs pytest
        modules = (*MODULES, "testing")
    Aliases("tvm", f"{__package__}.tvm", modules).install()
    for name in RENAMED:
        if name.startswith(modules):
            sys.modules[f"tvm.{name}"] = sys.modules[f"{__package__}.tvm.{name}"]
    for name in modules:
        import_module(f"tvm.{name}")
        parent, _, child = f"tvm.{name}".rpartition(".")
        setattr(import_module(parent), child, import_module(f"{__package__}.tvm.{name}"))


def _widen_target() -> None:
    """Target("llvm -mcpu=…"): TVM takes only a kind or JSON as a string."""
    original = tvm.target.Target.__init__

    @wraps(original)
    def made(self: Any, target: Any, host: Any = None) -> None:
        old = isinstance(target, str) and " -" in target
        original(self, attributes_of(target) if old else target, host)

    tvm.target.Target.__init__ = made
    tvm.target.arm_cpu, tvm.target.cuda = arm_cpu, cuda


def _widen_module() -> None:
    original = tvm.IRModule.from_expr

    @wraps(original)
    def from_expr(expr: Any, functions: Any = None, type_defs: Any = None) -> Any:
        ours = isinstance(expr, (Expr, TupleWrapper))
        return IRModule.from_expr(expr) if ours else original(expr, functions)

    tvm.IRModule.from_expr = staticmethod(from_expr)


def _widen_ir() -> None:
    tvm.ir.structural_equal = structural_equal
    tvm.ir.assert_structural_equal = assert_structural_equal


def _widen_passes() -> None:
    context = tvm.transform.PassContext
    original = context.__init__

    @wraps(original)
    def made(self: Any, *args: Any, config: Any = None, trace: Any = None, **options: Any) -> None:
        kept = {name: value for name, value in (config or {}).items() if not name.startswith("relay.")}
        original(self, *args, config=kept, **options)

    context.__init__ = made
    sequential = tvm.transform.Sequential

    @wraps(sequential)
    def in_turn(passes: Any = (), *args: Any, **options: Any) -> Any:
        ours = any(isinstance(one, Pass) for one in passes)
        return OurSequential(passes) if ours else sequential(passes, *args, **options)

    tvm.transform.Sequential = in_turn


def _widen_runtime() -> None:
    machine = tvm.runtime.vm.VirtualMachine

    def new(cls: type, rt_mod: Any = None, *args: Any, **options: Any) -> Any:
        return OurMachine(rt_mod) if isinstance(rt_mod, Executable) else object.__new__(cls)

    machine.__new__ = new
    tvm.runtime.load_module = load_module
    tvm.device, tvm.gpu = device, gpu
    for name in ("LocalSession", "RPCSession", "Server", "TrackerSession", "connect", "connect_tracker"):
        setattr(tvm.rpc, name, getattr(remote, name))


_add_modules()
_widen_target()
_widen_module()
_widen_ir()
_widen_passes()
_widen_runtime()
