"""The pipeline from a QNN module to an executable: one readable list of passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import IRModule, relax
from tvm.target import Target

from .module import QnnModule
from .passes import canonicalize, channels_last, fold_constant_sums, fold_padding, fuse, legalize, lower, sink_reshapes
from .runtime import Engine
from .target import make_target
from .topi_int8.generic.schedule import schedule_module
from .topi_int8.threads import serialize


def build(
    module: QnnModule,
    target: str | Mapping[str, Any] | Target = "native",
    num_threads: int | None = None,
) -> Engine:
    """Compile a module for a CPU.

    target:      "native", an LLVM CPU name, or a dict of TVM target attributes: see `qnn_ext.target.make_target`
    num_threads: threads the kernels may use; default: all cores of this machine

    Raises TargetError. Nothing is run: a module can be built for a CPU other than this one and saved.
    """
    resolved = make_target(target, num_threads)
    mod = lower_module(module.ir, resolved)
    executable = tvm.compile(mod, target=resolved)
    return Engine.from_build(module, mod, executable, resolved)


def lower_module(mod: IRModule, target: Target) -> IRModule:
    """All passes before code generation: QNN operators in, scheduled PrimFuncs out."""
    mod = qnn_pipeline(mod, target)
    mod = lower(mod, target)
    with target:
        mod = relax_pipeline()(mod)
    mod = schedule_module(mod, target)
    return serialize(mod) if int(target.attrs.get("num-cores", 0)) == 1 else mod


def qnn_pipeline(mod: IRModule, target: Target) -> IRModule:
    """The passes on the QNN graph; the interpreter gives the same result after each."""
    mod = fold_padding(mod)  # explicit pads into the convolutions behind them
    mod = channels_last(mod)  # NCHW → NHWC, which the kernels compute
    mod = legalize(mod, target)  # the dtypes the target wants
    mod = canonicalize(mod)  # QNN operators → integer primitives
    mod = sink_reshapes(mod)  # nothing between a product and its epilogue
    mod = fold_constant_sums(mod)  # T3, T4 and the bias in one constant
    return fuse(mod)  # product + epilogue → one kernel each


def relax_pipeline() -> tvm.transform.Pass:
    """What stays ordinary Relax: to TIR, constants folded, fused. Our kernels are opaque to it."""
    return tvm.transform.Sequential(
        [
            relax.transform.LegalizeOps(),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FoldConstant(),
            relax.transform.RewriteDataflowReshape(),  # before fusion: a reshape costs nothing, a fused one copies
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
            relax.transform.DeadCodeElimination(["main"]),
        ]
    )
