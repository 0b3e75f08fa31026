"""The steps of the last pass on a kernel's TIR that depend on the family of CPUs and its instructions.

`lowering` calls them in the order of the fields, all but the first between the steps common to all CPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad
from tvm.target import Target

from ...targets.backend import Backend
from ...targets.features import backend_of

Expr = Any


@dataclass(frozen=True)
class Steps:
    """Steps on the body of a kernel; by default they change nothing.

    begin:   changes a scheduled function before TVM's pipeline vectorizes its loops
    multiply: turns marked loops into instructions on matrices
    order:   reorders statements to suit the CPU
    look_up: turns loads from byte tables into instructions, on CPUs that have their backend's `lookups`
    look_up_floats: the same for loads from tables of 16 float32, with the backend's `segments`
    narrow:  turns saturating narrowing, and forms of it that TVM does not know, into instructions
    finish:  rewrites what LLVM must not see, or must see in another form
    """

    begin: Callable[[tirx.PrimFunc], tirx.PrimFunc] = lambda function: function
    multiply: Callable[[tirx.Stmt], tirx.Stmt] = lambda body: body
    order: Callable[[tirx.Stmt], tirx.Stmt] = lambda body: body
    look_up: Callable[[TensorLoad], Expr] = lambda load: load
    look_up_floats: Callable[[TensorLoad, Target], Expr] = lambda load, target: load
    narrow: Callable[[tirx.Stmt, Target], tirx.Stmt] = lambda body, target: body
    finish: Callable[[tirx.Stmt, Target], tirx.Stmt] = lambda body, target: body


_NONE = Steps()
_registered: dict[Backend, Steps] = {}


def register_steps(backend: Backend, steps: Steps) -> None:
    """Register `steps` for a backend's kernels."""
    _registered[backend] = steps


def steps_of(target: Target) -> Steps:
    """The steps for a target."""
    return _registered.get(backend_of(target), _NONE)
