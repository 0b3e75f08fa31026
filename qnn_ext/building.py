"""build: compiles a module, after quantizing it if the arguments say so."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tvm.target import Target

from .compiling.build import TargetLike, compile_module, compile_modules
from .entry_points import load_plugins
from .errors import QnnError
from .export_c import export_c
from .files.cache import Cache
from .limits import Limits, current, using
from .module import QnnModule
from .passes.cache_dtype import with_cache_dtype
from .passes.float_ports import float_ports
from .passes.low_precision import at_precision
from .running.engine import Engine

if TYPE_CHECKING:
    from .autotune.measured import Measure
    from .quantize.config import QConfig
    from .quantize.stages import TableLike


def build(
    module: QnnModule | Sequence[QnnModule],
    target: TargetLike | Sequence[TargetLike] = "native",
    num_threads: int | None = None,
    params: Mapping[str, Any] | None = None,
    qconfig: QConfig | None = None,
    dataset: Any = None,
    table: TableLike | None = None,
    cuda_graph: bool = False,
    limits: Limits | None = None,
    cache: bool | str | os.PathLike = True,
    measure: bool | Measure = False,
    workspace_limit: int | None = None,
    jobs: int | None = None,
    precision: str = "float32",
    io: str = "model",
    code: bool = True,
    cache_dtype: str = "model",
) -> Engine:
    """Compile a module for a CPU, a GPU or several of them; quantize it first if data, a table or a configuration is
    given.

    module:      or several of them, of one model imported for different shapes, such as a language model for one token
                 and for 128 at once: the engine is that of the first, and has the others beside it, `Engine.others`.
                 Their weights, as far as they are equal, are in memory and in the file once, and so are their states.
                 Only for CPUs, and not with `params`, a quantization, `measure` or `code=False`

    target:      "native", a family of CPUs ("amx_int8", "avx512_vnni", "avx_vnni", "avx512", "avx2", "x86-64"), an LLVM
                 CPU name, "cuda" for this machine's GPU, a GPU's architecture ("sm_80"), or a dict of TVM target
                 attributes: see `qnn_ext.targets.names.make_target`. Or a sequence of these: the engine is then for
                 the fastest one that this machine can run, and its `save` writes one file with all of them, from which
                 `load` picks the fastest that the loading machine can run
    num_threads: the most threads that a call may use. A call takes fewer while other calls of this process run on
                 cores, or where the engine finds fewer to be faster. Unless this or a dict's "num-cores" says it: all
                 cores of this machine, or those of the board that `target` names; but one for a small model, to which
                 several are predicted to save no more than 50 µs a call: on busy cores they would cost it more
    params:      values of inputs that are weights: name → array
    qconfig, dataset, table: as for `qnn_ext.quantize.quantize`. With any of them the module must be a float one and is
                 quantized; without, it is compiled as it is, even inside `with qconfig(...)`
    cuda_graph:  whether a GPU gets all kernels except the first and the last as one graph in a single launch: for small
                 models, whose kernels take no longer than their launches
    limits:      what compiling, separately for each target, and the compiled model may use; by default
                 `qnn_ext.Limits()`. `seconds` and `memory` are checked between passes and kernels, not while LLVM
                 generates machine code
    cache:       whether an engine for a CPU may come from this user's cache on disk, and is kept there if its build
                 took more than half a second; or the cache's folder. By default that is the one which the environment
                 variable QNN_EXT_CACHE names ("off": none), otherwise ~/.cache/qnn_ext. An engine from the cache is
                 the one that would be built; only its `source` and `tir` take as long as a build. `qnn-ext cache` shows
                 and clears it. Builds for GPUs or with plugins are not kept
    measure:     whether the tiles of the integer kernels are the fastest of a few that are timed here, rather than
                 those of least predicted cost; or an `autotune.Measure`. Results are the same bit for bit. What was
                 measured is kept beside the cache of builds, for this machine's kind of CPU: a second build measures
                 nothing. This machine must be able to run the target
    workspace_limit: the most bytes that feature maps may take, `limits` with this `workspace`. Where the plan takes
                 more, one that takes less is used, at some cost in speed on several threads; LimitError if none does
    jobs:        the most threads that generate machine code for an engine that is kept in the cache, by default all
                 cores; other engines are compiled by one. The engine is the same with any number
    precision:   of the products that are not quantized: "float32", or "bfloat16" or "float16", to which their operands
                 are then rounded (ties to even), but for packed weights; sums, biases and everything else stay float32.
                 Results depend on the CPU in their last bits only: a sum of k products is within k · 2⁻²³ · Σ |a · b|
                 of the exact one, and bfloat16 below 2⁻¹²⁶ may count as 0. A CPU without an instruction for such
                 products multiplies the rounded operands in float32. Single layers: the field `precision` of a
                 QConfig's `overrides`
    io:          "float32" makes quantized inputs and outputs float32: the engine takes and returns real values, as with
                 `run(x, quantize=True, dequantize=True)`; "model" leaves them as they are
    cache_dtype: of the rows that a language model keeps in its key-value cache, or another model in states like it:
                 "float16", or "int8" with a scale for each row, found when it is written; "model" leaves them as they
                 are. What reads them computes in float32. See `qnn_ext.passes.cache_dtype`
    code:        False leaves out machine code: for an engine that only `export_c` will use, which generates its own

    Raises TargetError, QuantizationError, LimitError, and QnnError for a folder given as `cache` to which other users
    can write. Without `measure`, compiling runs nothing: a module can be built for a CPU other than this one and saved.
    Calibration runs the float module on this CPU.
    """
    load_plugins()
    if jobs is not None and jobs < 1:
        raise QnnError(f"jobs: must be a positive number of threads, found {jobs}")
    if workspace_limit is not None:
        limits = replace(limits or current(), workspace=workspace_limit)
    if not isinstance(module, QnnModule):
        plain = not (params or cuda_graph or measure) and code and (qconfig, dataset, table) == (None,) * 3
        prepared = partial(_prepared, precision=precision, io=io, cache_dtype=cache_dtype)
        return _build_together(module, plain, target, num_threads, limits, cache, jobs, prepared)
    with using(limits):
        if qconfig is not None or dataset is not None or table is not None:
            module = _quantized(module, target, params, qconfig, dataset, table)
        elif params:
            from .quantize.stages import bind_parameters

            module = bind_parameters(module, params)
        module = _prepared(module, precision, io, cache_dtype)
        kept = _cache(cache)
        with _measuring(module, target, num_threads, measure, kept):
            engine = compile_module(module, target, num_threads, cuda_graph, kept, jobs, code)
        engine.exporter = export_c
        return engine


def _prepared(module: QnnModule, precision: str, io: str, cache_dtype: str) -> QnnModule:
    narrow = with_cache_dtype(module, cache_dtype)
    return float_ports(replace(narrow, ir=at_precision(narrow.ir, precision)), io)


def _build_together(
    modules: Sequence[QnnModule],
    plain: bool,
    target: TargetLike | Sequence[TargetLike],
    num_threads: int | None,
    limits: Limits | None,
    cache: bool | str | os.PathLike,
    jobs: int | None,
    prepared: Callable[[QnnModule], QnnModule],
) -> Engine:
    if not modules:
        raise QnnError("there is no module to build")
    if not plain:
        raise QnnError(
            "params, qconfig, dataset, table, cuda_graph, measure and code=False are for a single module: quantize "
            "modules of several shapes before, and build them without these"
        )
    with using(limits):
        engine = compile_modules([*map(prepared, modules)], target, num_threads, _cache(cache), jobs)
        for one in (engine, *engine.others):
            one.exporter = export_c
        return engine


def _measuring(
    module: QnnModule,
    target: TargetLike | Sequence[TargetLike],
    num_threads: int | None,
    measure: bool | Measure,
    kept: Cache | None,
) -> AbstractContextManager[Any]:
    """A context in which kernels have the tiles that are measured to be fastest, if that is wanted."""
    if not measure:
        return nullcontext()
    from .autotune.measured import Measure, measured_tiles

    how = Measure() if measure is True else measure
    return measured_tiles(module, target, num_threads, how, None if kept is None else kept.folder)


def _cache(given: bool | str | os.PathLike) -> Cache | None:
    if isinstance(given, bool):
        return Cache.of_user() if given else None
    cache = Cache(given)
    cache.check()
    return cache


def _quantized(
    module: QnnModule,
    target: TargetLike | Sequence[TargetLike],
    params: Mapping[str, Any] | None,
    qconfig: QConfig | None,
    dataset: Any,
    table: TableLike | None,
) -> QnnModule:
    """The module quantized to the dtypes that the target's products take, unless the configuration names another."""
    from .quantize import quantize
    from .quantize.config import resolve_config

    config = resolve_config(qconfig)
    if config.target is None:
        single = isinstance(target, (str, Mapping, Target))
        config = replace(config, target=target if single else next(iter(target), None))
    return quantize(module, params, dataset, config, table)
