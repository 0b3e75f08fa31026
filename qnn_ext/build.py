"""The pipeline from a QNN module to an executable: one readable list of passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import tvm
from tvm import IRModule, relax
from tvm.target import Target

from . import artifact
from .codegen import generate_code, generate_gpu_code, with_option
from .errors import TargetError
from .limits import Limits, begin_walk, check, checkpoint, limited, using
from .module import QnnModule
from .numerics.bounded import bounded
from .passes import (
    canonicalize,
    channels_last,
    fold_constant_sums,
    fold_padding,
    fuse,
    legalize,
    lower,
    sink_reshapes,
    sink_shuffles,
)
from .passes.checks import collect_checks, drop_checks
from .passes.describe import kernels_of
from .passes.fold_calls import fold_calls
from .passes.footprint import peak
from .passes.inline import inlined
from .passes.legalize_float import float_legalizations
from .passes.legalize_gpu import gpu_legalizations
from .passes.observers import drop_observers
from .passes.workspaces import lift_workspaces
from .program import compile_program
from .program.sharing import launch_where_worthwhile
from .runtime import Engine
from .target import make_target, required_features, target_architecture
from .topi_int8.cuda.generic import schedule_module as schedule_for_gpu
from .topi_int8.features import is_cuda
from .topi_int8.generic.schedule import SCHEDULED, schedule_module
from .topi_int8.threads import serialize
from .topi_int8.wanted import speed_rank

if TYPE_CHECKING:
    from .quantize.config import QConfig
    from .quantize.pipeline import TableLike

_MOST_FUSED = 64  # ordinary operators in one kernel: its schedule, and LLVM, take longer than in proportion for more

TargetLike: TypeAlias = str | Mapping[str, Any] | Target


def build(
    module: QnnModule,
    target: TargetLike | Sequence[TargetLike] = "native",
    num_threads: int | None = None,
    params: Mapping[str, Any] | None = None,
    qconfig: QConfig | None = None,
    dataset: Any = None,
    table: TableLike | None = None,
    cuda_graph: bool = False,
    limits: Limits | None = None,
) -> Engine:
    """Compile a module for a CPU, a GPU or several of them; quantize it first where data, a table or a configuration is
    given.

    target:      "native", a family of CPUs ("avx512_vnni", "avx_vnni", "avx512", "avx2", "x86-64"), an LLVM CPU name,
                 "cuda" for this machine's GPU, a GPU's architecture ("sm_80"), or a dict of TVM target attributes: see
                 `qnn_ext.target.make_target`. Or a sequence of these: the engine then is that of the fastest this
                 machine can run, and its `save` writes one file with all of them, of which `load` picks the fastest
                 that the machine there can run
    num_threads: threads the kernels may use; default: all cores of this machine
    params:      values of inputs that are weights: name → array
    qconfig, dataset, table: as `qnn_ext.quantize.quantize` takes them. With any of them the module must be a float one
                 and is quantized; without, it is compiled as it is, inside of `with qconfig(...)` too
    cuda_graph:  whether a GPU gets all kernels but the first and the last as one graph, which it is given in a single
                 launch: for small models, whose kernels take no longer than their launches
    limits:      what compiling may take, for each target anew, and the compiled model; by default `qnn_ext.Limits()`.
                 `seconds` and `memory` are looked at between passes and kernels, not while LLVM makes machine code

    Raises TargetError, QuantizationError, LimitError. Compiling runs nothing: a module can be built for a CPU other
    than this one and saved. Calibration runs the float module on this CPU.
    """
    with using(limits):
        return _build(module, target, num_threads, params, qconfig, dataset, table, cuda_graph)


def _build(
    module: QnnModule,
    target: TargetLike | Sequence[TargetLike],
    num_threads: int | None,
    params: Mapping[str, Any] | None,
    qconfig: QConfig | None,
    dataset: Any,
    table: TableLike | None,
    cuda_graph: bool,
) -> Engine:
    if qconfig is not None or dataset is not None or table is not None:
        module = _quantized(module, target, params, qconfig, dataset, table)
    elif params:
        from .quantize.pipeline import bind_parameters

        module = bind_parameters(module, params)
    if isinstance(target, (str, Mapping, Target)):
        return _build_one(module, make_target(target, num_threads), cuda_graph)
    resolved = sorted((make_target(one, num_threads) for one in target), key=_speed)
    if not resolved:
        raise TargetError("no target to build for: name at least one")
    return Engine.best_of([_build_one(module, one, cuda_graph and is_cuda(one)) for one in resolved])


def _quantized(
    module: QnnModule,
    target: TargetLike | Sequence[TargetLike],
    params: Mapping[str, Any] | None,
    qconfig: QConfig | None,
    dataset: Any,
    table: TableLike | None,
) -> QnnModule:
    """The module as integers, of the dtypes that the target wants unless the configuration names another."""
    from .quantize import quantize  # calibration builds, too
    from .quantize.config import resolve_config

    config = resolve_config(qconfig)
    if config.target is None:
        single = isinstance(target, (str, Mapping, Target))
        config = replace(config, target=target if single else next(iter(target), None))
    return quantize(module, params, dataset, config, table)


def _speed(target: Target) -> tuple[int, int]:
    """Sorts targets, the fastest first: by the dot product instruction, then by how many instruction sets there are."""
    return speed_rank(target), -len(required_features(target))


def _build_one(module: QnnModule, target: Target, cuda_graph: bool) -> Engine:
    if cuda_graph and not is_cuda(target):
        raise TargetError(f"only a GPU runs CUDA graphs, not {target.kind.name}: build for 'cuda' or an architecture")
    mod, checks = collect_checks(inlined(module.ir))
    with limited(None):
        begin_walk(_elements_of_constants(mod))
        mod = lower_module(mod, target)
        checkpoint()
        program = None if is_cuda(target) else compile_program(mod, target)
        if program is None:
            needed, largest = peak(mod)
            check("workspace", needed, f"the model, when it computes '{largest}',")
        if program:
            executable = program.executable
        elif is_cuda(target):
            executable = generate_gpu_code(mod, target, cuda_graph)
        else:
            executable = generate_code(launch_where_worthwhile(mod, target), target)
    common = {
        "source": module.source,
        "inputs": [artifact.spec_to_json(spec) for spec in module.inputs],
        "outputs": [artifact.spec_to_json(spec) for spec in module.outputs],
        "states": [artifact.state_to_json(state) for state in module.states],
        "notes": artifact.notes_to_json(module.notes),
        "checks": [asdict(check) for check in checks],
        "versions": {"tvm": tvm.__version__},
    }
    variant = {
        "target": {"kind": target.kind.name, **{str(key): _plain(value) for key, value in target.attrs.items()}},
        "features": required_features(target),
        "architecture": target_architecture(target),
        "kernels": artifact.kernels_to_json(kernels_of(mod)),
        "program": program.layout if program else None,
    }
    weights = program.weights if program else None
    return Engine.from_build(common, variant, module.states, executable, weights, mod)


def _elements_of_constants(mod: IRModule) -> int:
    found: list[int] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, tvm.ir.expr.GenericConst):
            found.append(math.prod(map(int, expr.value.shape)))

    relax.analysis.post_order_visit(mod["main"], visit)
    return sum(found)


def _plain(value: Any) -> Any:
    """An attribute of a target as JSON has it."""
    if isinstance(value, (bool, int, float, str)):
        return value
    return [_plain(item) for item in value] if hasattr(value, "__iter__") else str(value)


def lower_module(mod: IRModule, target: Target) -> IRModule:
    """All passes before code generation: QNN operators in, scheduled PrimFuncs out."""
    mod = qnn_pipeline(mod, target)
    mod = lower(mod, target)
    with target, with_option("relax.FuseOps.max_depth", _MOST_FUSED):
        mod = relax_pipeline(is_cuda(target))(mod)
    if is_cuda(target):
        return lift_workspaces(schedule_for_gpu(mod))
    mod = schedule_module(mod, target)
    return serialize(mod) if int(target.attrs.get("num-cores", 0)) == 1 else mod


def qnn_pipeline(mod: IRModule, target: Target) -> IRModule:
    """The passes on the QNN graph; the interpreter gives the same result after each."""
    passes: list[Callable[[IRModule], IRModule]] = [
        inlined,  # the parts of a partitioned module
        drop_observers,  # marks for calibration compute nothing
        drop_checks,  # what they find is in the status, if it was collected
        fold_padding,  # explicit pads into the convolutions behind them
        channels_last,  # NCHW → NHWC, which the kernels compute
        partial(legalize, target=target),  # the dtypes the target wants
        canonicalize,  # QNN operators → integer primitives
        sink_shuffles,  # accumulators are not moved, but what is made of them
        sink_reshapes,  # nothing between a product and its epilogue
        fold_constant_sums,  # T3, T4 and the bias in one constant
        partial(channels_last, any_order=True),  # float convolutions too: equal to the last bits only from here on
        fuse,  # product + epilogue → one kernel each
    ]
    for one in passes:
        mod = one(mod)
        checkpoint()
    return mod


def _bounding(for_gpu: bool) -> tvm.transform.Pass:
    """What is made of ordinary Relax operators stays within its operands, whatever values it is given."""

    @tvm.transform.module_pass(opt_level=0, name="qnn_ext.bounded")
    def bound(mod: IRModule, _context: tvm.transform.PassContext) -> IRModule:
        return bounded(mod, excepted=SCHEDULED, widest="int64" if for_gpu else "int128")  # CUDA has no int128

    return bound


def relax_pipeline(for_gpu: bool = False) -> tvm.transform.Pass:
    """What stays ordinary Relax: to TIR, constants folded, fused. Our kernels are opaque to it."""
    legalizations = {**float_legalizations(), **(gpu_legalizations() if for_gpu else {})}
    return tvm.transform.Sequential(
        [
            relax.transform.LegalizeOps(legalizations),
            _bounding(for_gpu),  # before constants are folded, which runs the functions
            relax.transform.AnnotateTIROpPattern(),
            fold_calls,
            relax.transform.RewriteDataflowReshape(),  # before fusion: a reshape costs nothing, a fused one copies
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
            relax.transform.DeadCodeElimination(["main"]),
        ]
    )
