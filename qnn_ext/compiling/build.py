"""The pipeline from a QNN module to an executable, as one readable list of passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import tvm
from tvm import IRModule, relax
from tvm.target import Target

from ..errors import QnnError, TargetError
from ..files.cache import Cache
from ..limits import begin_walk, check, checkpoint, limited
from ..module import Check, QnnModule
from ..numerics.annotations import SCHEDULED
from ..numerics.bounded import bounded
from ..op.loop import Loop
from ..passes import (
    canonicalize,
    channels_last,
    fold_constant_sums,
    fold_padding,
    fuse,
    join_shuffles,
    legalize,
    lower,
    order_channels,
    sink_reshapes,
    sink_shuffles,
)
from ..passes.attention import cached_attention
from ..passes.bias_first import bias_first
from ..passes.blocked_convolutions import blocked_convolutions
from ..passes.blocked_sums import blocked_sums
from ..passes.blockwise_lanes import blockwise_lanes
from ..passes.bodies import every_binding, has_loops, hoist_invariants, with_bodies, without_unused
from ..passes.checks import collect_checks, drop_checks
from ..passes.empties import without_empties
from ..passes.float_products import float_products
from ..passes.fold_calls import fold_calls
from ..passes.fold_known import fold_known
from ..passes.footprint import peak
from ..passes.inline import inlined
from ..passes.integer_products import integer_products
from ..passes.join_tables import join_tables
from ..passes.legalize_float import float_legalizations
from ..passes.legalize_gpu import gpu_legalizations
from ..passes.legalize_moves import fuse_takes, keep_joins
from ..passes.legalize_sorting import sorting_legalizations
from ..passes.observers import drop_observers
from ..passes.plain_convolutions import plain_convolutions
from ..passes.repeated import compute_once
from ..passes.rewrite import operands
from ..passes.siblings import join_siblings
from ..passes.sizes import collect_sizes, drop_trims
from ..passes.splits import MOST, slice_splits
from ..passes.unroll import unrolled
from ..passes.value_ranges import join_extremes
from ..passes.winograd import winograd
from ..passes.workspaces import lift_workspaces
from ..running.engine import Engine
from ..running.kernels import Kernel
from ..running.model import Model, Variant
from ..targets.backend import THREADS, Backend, threads_of
from ..targets.features import backend_of, speed_rank
from ..targets.names import description_of, make_target, required_features, target_architecture
from ..topi_int8.cuda.generic import schedule_module as schedule_for_gpu
from ..topi_int8.generic.schedule import schedule_module
from ..topi_int8.threads import serialize
from .cache import cached
from .codegen import allocated, generate_code, generate_gpu_code, with_option
from .describe import kernels_of
from .garbage import young_collections
from .program import Kept, NotStraightError, Program, compile_programs
from .program.sharing import launch_where_worthwhile
from .watch import applied, timed

_MOST_FUSED = 64  # ordinary operators in one kernel: scheduling and LLVM take more than linear time

TargetLike: TypeAlias = str | Mapping[str, Any] | Target


@young_collections()
def compile_module(
    module: QnnModule,
    target: TargetLike | Sequence[TargetLike] = "native",
    num_threads: int | None = None,
    cuda_graph: bool = False,
    cache: Cache | None = None,
    jobs: int | None = None,
    code: bool = True,
) -> Engine:
    """`qnn_ext.build` for a module that needs no quantization, under the current limits."""
    if not isinstance(target, Sequence) or isinstance(target, str):
        return _compile_one(module, _wanted(target, num_threads), cuda_graph, cache, jobs, code)
    return Engine.best_of(
        [
            _compile_one(module, one, cuda_graph and backend_of(one.target).grid, cache, jobs, code)
            for one in _by_speed(target, num_threads)
        ]
    )


def _by_speed(targets: Sequence[TargetLike], num_threads: int | None) -> list[_Wanted]:
    """What to compile for, fastest first. Raises TargetError if there is none."""
    if not targets:
        raise TargetError("there is no target to build for: give at least one")
    return sorted((_wanted(one, num_threads) for one in targets), key=lambda one: _speed(one.target))


def _speed(target: Target) -> tuple[int, int]:
    """Key that sorts targets, fastest first: by dot product instruction, then by the number of instruction sets."""
    return speed_rank(target), -len(required_features(target))


@dataclass(frozen=True)
class _Wanted:
    """What to compile for; asked: whether its number of threads was asked for."""

    target: Target
    asked: bool


def _wanted(target: TargetLike, num_threads: int | None) -> _Wanted:
    attributes = target.attrs if isinstance(target, Target) else target if isinstance(target, Mapping) else {}
    return _Wanted(make_target(target, num_threads), bool(num_threads) or THREADS in attributes)


def _compile_one(
    module: QnnModule, wanted: _Wanted, cuda_graph: bool, cache: Cache | None, jobs: int | None, code: bool
) -> Engine:
    target, asked = wanted.target, wanted.asked
    if cuda_graph and not backend_of(target).grid:
        raise TargetError(
            f"CUDA graphs run only on GPUs, not on {target.kind.name}: build for 'cuda' or an architecture such as "
            "'sm_80'"
        )
    if not code:
        return _compiled(module, target, asked, cuda_graph, None, code=False)

    def compiled(kept: Kept | None) -> list[Engine]:
        return [_compiled(module, target, asked, cuda_graph, kept)]

    return cached(cache, [module], target, asked, compiled, jobs)[0]


def _compiled(
    module: QnnModule, target: Target, asked: bool, cuda_graph: bool, kept: Kept | None, code: bool = True
) -> Engine:
    backend = backend_of(target)
    with limited(None):
        original, checks, mod = _lowered(module, target)
        program, fallback = timed("program", lambda: _program(mod, target, asked, kept, code, len(module.states)))
        if program is None and has_loops(mod):
            mod = lower_module(original, target)
        if program is None:
            mod = allocated(mod)
            needed, largest = peak(mod)
            check("workspace", needed, f"the model, when it computes '{largest}',")
        kernels = kernels_of(mod, program.live if program else None)
        if program or not code:
            executable = program and program.executable
        elif backend.grid:
            executable = timed("machine code", lambda: generate_gpu_code(mod, target, cuda_graph))
        else:
            shared = launch_where_worthwhile(mod, target, kernels, asked)
            executable = timed("machine code", lambda: generate_code(shared, target))
    variant = _variant(target, kernels, program, fallback)
    return Engine.from_build(_model(module, checks), variant, executable, program.weights if program else None, mod)


def _lowered(module: QnnModule, target: Target) -> tuple[IRModule, list[Check], IRModule]:
    """The module without calls, its checks, and its kernels."""
    original, checks = collect_checks(collect_sizes(inlined(module.ir), module.outputs))
    begin_walk(_elements_of_constants(original))
    mod = lower_module(original, target, loops=not backend_of(target).grid)
    checkpoint()
    return original, checks, mod


def _model(module: QnnModule, checks: Sequence[Check]) -> Model:
    return Model.of(module, checks, {"tvm": tvm.__version__})


def _variant(target: Target, kernels: list[Kernel], program: Program | None, fallback: str = "") -> Variant:
    return Variant(
        description_of(target),
        required_features(target),
        target_architecture(target),
        kernels,
        program.layout if program else None,
        fallback,
    )


def _program(
    mod: IRModule, target: Target, asked: bool, kept: Kept | None, code: bool, states: int
) -> tuple[Program | None, str]:
    """The model as one function, or the reason why TVM's virtual machine runs it, as it does all models on GPUs."""
    if backend_of(target).grid:
        return None, ""
    try:
        return compile_programs([mod], target, asked, kept, code, states)[0], ""
    except NotStraightError as error:
        return None, str(error)


# ---- several shapes ----------------------------------------------------------------------------------------------


@young_collections()
def compile_modules(
    modules: Sequence[QnnModule],
    target: TargetLike | Sequence[TargetLike] = "native",
    num_threads: int | None = None,
    cache: Cache | None = None,
    jobs: int | None = None,
) -> Engine:
    """`qnn_ext.build` for modules of one model that takes different shapes: the engine of the first, with those of the
    others beside it (`Engine.others`), over the same weights and states."""
    single = not isinstance(target, Sequence) or isinstance(target, str)
    targets: Sequence[TargetLike] = [target] if single else target  # type: ignore[assignment, list-item]
    resolved = _by_speed(targets, num_threads)
    _check_alike(modules)
    by_target = [
        cached(cache, modules, one.target, one.asked, partial(_compiled_together, modules, one), jobs)
        for one in resolved
    ]
    engines = [Engine.best_of(list(variants)) for variants in zip(*by_target, strict=True)]
    return Engine.together(engines)


def _check_alike(modules: Sequence[QnnModule]) -> None:
    """Raise QnnError unless modules have the same states and the same names of inputs and outputs. Those that keep
    states may have only some of the first one's outputs."""
    first = modules[0]
    for other in modules[1:]:
        for kind in ("inputs", "outputs"):
            names, wanted = ([spec.name for spec in getattr(module, kind)] for module in (other, first))
            if names != wanted and not (kind == "outputs" and first.states and set(names) <= set(wanted)):
                raise QnnError(
                    f"{other.source} and {first.source} have different {kind}, {names} and {wanted}: only shapes of "
                    "one model can share an engine"
                )
        states = [
            [(state.name, state.initial.shape, state.initial.dtype) for state in m.states] for m in (other, first)
        ]
        if states[0] != states[1]:
            raise QnnError(
                f"{other.source} and {first.source} keep different states: shapes of one model can share an engine if "
                "its states are the same for all of them"
            )


def _compiled_together(modules: Sequence[QnnModule], wanted: _Wanted, kept: Kept | None) -> list[Engine]:
    target = wanted.target
    if backend_of(target).grid:
        raise TargetError("an engine of several shapes can only be for CPUs, not for GPUs: build one for each shape")
    with limited(None):
        lowered = [_lowered(module, target) for module in modules]
        mods = [mod for _, _, mod in lowered]
        try:
            programs = timed(
                "program", lambda: compile_programs(mods, target, wanted.asked, kept, states=len(modules[0].states))
            )
        except NotStraightError as error:
            raise TargetError(f"the shapes cannot share an engine, as one is no single function: {error}") from None
    engines = []
    for module, (_, checks, mod), program in zip(modules, lowered, programs, strict=True):
        variant = _variant(target, kernels_of(mod, program.live), program)
        engines.append(Engine.from_build(_model(module, checks), variant, program.executable, program.weights, mod))
    return engines


def _elements_of_constants(mod: IRModule) -> int:
    values = (operand for binding, _ in every_binding(mod) for operand in operands(binding.value))
    constants = {value for value in values if isinstance(value, tvm.ir.expr.GenericConst)}
    return sum(math.prod(map(int, constant.value.shape)) for constant in constants)


def lower_module(mod: IRModule, target: Target, loops: bool = False) -> IRModule:
    """All passes before code generation: QNN operators in, scheduled PrimFuncs out.

    loops: whether loops stay, with the kernels of their bodies, for what can run them; otherwise they are unrolled
    """
    backend = backend_of(target)
    mod = applied(partial(unrolled, chosen=_is_one_round if loops else None), mod)
    mod = qnn_pipeline(mod, target)
    mod = applied(partial(lower, target=target), mod)
    with target, with_option("relax.FuseOps.max_depth", _MOST_FUSED):
        for one in relax_passes(backend):
            mod = applied(one, mod)
    if backend.grid:
        return applied(lift_workspaces, applied(schedule_for_gpu, mod))
    mod = applied(partial(schedule_module, target=target), mod)
    mod = applied(serialize, mod) if threads_of(target.attrs) == 1 else mod
    return with_bodies(mod, partial(lower_module, target=target, loops=loops))


def _is_one_round(loop: Loop) -> bool:
    """Whether a loop is none."""
    return loop.trips == 0 or (loop.trips == 1 and loop.condition is None)


def qnn_pipeline(mod: IRModule, target: Target) -> IRModule:
    """The passes on the QNN graph; the interpreter gives the same result after each of them."""
    grid = backend_of(target).grid
    passes: list[Callable[[IRModule], IRModule]] = [
        inlined,  # the parts of a partitioned module
        without_unused,  # states and outputs of loops
        hoist_invariants,  # out of loops, whose bodies go through these passes on their own
        drop_observers,  # calibration marks, which compute nothing
        partial(slice_splits, most=MOST if grid else 0),  # kernels with one result
        drop_checks,  # their findings are in the status, if it was collected
        drop_trims,  # the engine trims
        without_empties,  # tensors without elements are constants
        compute_once,  # ranges and quantization of data that several products read
        partial(cached_attention, target=target),  # over a key-value cache, in one kernel
        partial(integer_products, target=target),  # where floats have no kernel
        fold_padding,  # explicit pads into the convolutions after them
        join_tables,  # x · sigmoid(x) in one lookup
        partial(blocked_convolutions, target=target),  # of floats, as ONNX Runtime sums them
        channels_last,  # NCHW → NHWC, the kernels' layout
        partial(legalize, target=target),  # the dtypes the target's instructions take
        canonicalize,  # QNN operators → integer primitives
        sink_shuffles,  # move requantized results instead of accumulators
        sink_reshapes,  # nothing between a product and its epilogue
        fold_constant_sums,  # T3, T4 and the bias in one constant
        partial(join_siblings, target=target),  # branches from one tensor in one product
        # of floats, over one dimension and transposed: from here on, their last bits may differ
        partial(plain_convolutions, target=target),
        partial(channels_last, any_order=True),  # float convolutions too
        partial(blocked_sums, target=target),  # of long products, as ONNX Runtime sums them
        partial(blockwise_lanes, target=target),  # of products by weights in groups
        *([] if grid else [bias_first]),  # of float products, as XNNPACK sums them
        partial(float_products, target=target),  # where an instruction computes them
        partial(winograd, target=target),  # those of 3 × 3 with fewer multiply-adds
        fold_known,  # constants: once they are kernels, they can no longer be folded
        join_shuffles,  # one transpose behind a product
        order_channels,  # as that transpose stores them
        *([] if grid else [join_extremes]),  # min and max → one pass over the data
        partial(fuse, grid=grid),  # product + epilogue → one kernel each
    ]
    for one in passes:
        mod = applied(one, mod)
        checkpoint()
    return mod


def _bounding(widest: str) -> tvm.transform.Pass:
    """Keeps code for ordinary Relax operators within its operands' memory, whatever their values are."""

    @tvm.transform.module_pass(opt_level=0, name="qnn_ext.bounded")
    def bound(mod: IRModule, _context: tvm.transform.PassContext) -> IRModule:
        return bounded(mod, excepted=SCHEDULED, widest=widest)

    return bound


def relax_passes(backend: Backend) -> list[tvm.transform.Pass]:
    """The passes for what stays ordinary Relax: to TIR, constants folded, fused. They do not look into our kernels."""
    legalizations = {
        **float_legalizations(),
        **(gpu_legalizations() if backend.grid else sorting_legalizations()),
    }
    return [
        relax.transform.LegalizeOps(legalizations),
        _bounding(backend.widest_integer),  # before constant folding, which runs the functions
        relax.transform.AnnotateTIROpPattern(),
        fold_calls,
        *([] if backend.grid else [fuse_takes, keep_joins]),
        relax.transform.RewriteDataflowReshape(),  # before fusion: a reshape is free, a fused one copies
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(["main"]),
    ]
