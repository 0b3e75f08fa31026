"""What TVM's pipeline for scheduled TIR is surrounded by, for each backend: its own package registers it.

`compiling.codegen` calls it when loops are vectorized and the CPU or GPU is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.target import Target

from ..targets.backend import Backend
from ..targets.features import backend_of


@dataclass(frozen=True)
class Lowering:
    """Passes on a kernel.

    finish: on its body after TVM's pipeline, the last one before code is generated
    begin:  on the scheduled function before TVM's pipeline; changes nothing by default
    """

    finish: Callable[[tirx.Stmt, Target], tirx.Stmt]
    begin: Callable[[tirx.PrimFunc], tirx.PrimFunc] = lambda function: function


_registered: dict[Backend, Lowering] = {}


def register_lowering(backend: Backend, lowering: Lowering) -> None:
    """Register the passes on a backend's kernels."""
    _registered[backend] = lowering


def lowering_of(target: Target) -> Lowering:
    """The passes on kernels for a target."""
    return _registered[backend_of(target)]
