"""fold → annotate → calibrate → realize; each stage gives a module that can be printed, built and run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from tvm import IRModule, relax

from ..errors import QuantizationError
from ..module import QnnModule, TensorSpec
from ..op.base import call_attributes, constant, definition_of, shape_of
from ..op.observe import OBSERVE, observe
from ..op.relax_table import traits_of
from ..passes.bodies import every_binding, everywhere
from ..passes.rewrite import Emit, Rebuild, bindings_of, op_name, plain_attrs, rewrite
from ..running.engine import Engine
from .accuracy import QuantizedAccuracy, measured
from .annotate import annotate, sites
from .annotate.families import quantized_operators
from .balance import balance
from .bias_correction import Biases, corrected, mean_errors
from .calibrate import calibrate
from .config import QConfig, plain_operator, resolve_config
from .dataset import Batches, ShardedBatches, batches
from .dynamic import dynamic
from .engines import shared_engines
from .equalize import equalize
from .fold import fold
from .grouped import quantize_groups
from .halves import in_float32
from .learned import learned_steps, round_weights, with_steps
from .measurable import measurable
from .progress import shown
from .realize import simulate, to_integers
from .rescale import found_scales, rescaled, settled
from .smooth import smooth
from .table import CalibrationTable, fingerprint

TableLike = CalibrationTable | str | os.PathLike


@dataclass(frozen=True)
class Stages(Mapping[str, QnnModule]):
    """The modules of a quantization by stage, in order, and the ranges it found.

    "fold":      float, batch normalizations folded into the weights; with `balance`, `equalize` and `smooth`, channels
                 rescaled
    "annotate":  float, `R.qnn.observe` on each tensor to be quantized
    "calibrate": the same with the ranges written into the observers, and if requested, weights rounded and biases
                 corrected
    "simulate":  float operators between quantize and dequantize
    "realize":   integers

    Dynamic quantization and weights in groups have only "fold" and "realize"; do_simulation has no "realize".
    source, data: the float model and the data set, None without one
    """

    modules: Mapping[str, QnnModule]
    table: CalibrationTable
    source: QnnModule | None = None
    data: Batches | None = None

    def __getitem__(self, stage: str) -> QnnModule:
        return self.modules[stage]

    def __iter__(self) -> Iterator[str]:
        return iter(self.modules)

    def __len__(self) -> int:
        return len(self.modules)

    @property
    def result(self) -> QnnModule:
        """The module of the last stage."""
        return list(self.modules.values())[-1]

    @cached_property
    def accuracy(self) -> QuantizedAccuracy | None:
        """The result against the float model on some of the data, both built and run when first asked for; None as
        `measured` says."""
        return self.measured()

    def measured(self, engine: Engine | None = None) -> QuantizedAccuracy | None:
        """`accuracy`, with an engine of the result that is already built."""
        return None if self.source is None else measured(self.source, self.result, self.data, engine)


def stages(
    mod: QnnModule | IRModule,
    params: Mapping[str, Any] | None = None,
    dataset: Any = None,
    config: QConfig | None = None,
    table: TableLike | None = None,
    progress: bool = False,
) -> Stages:
    """The module after each stage of quantization, and the calibration table; arguments and errors as of `quantize`."""
    config = resolve_config(config)
    _check_operators(config)
    module = float_module(mod, params)
    # even what can be read only once is read twice
    dataset = None if dataset is None else batches(dataset, module.inputs)
    table = _loaded(table)
    modules = {"fold": folded(module, config, dataset)}
    if config.grouped:
        modules["realize"] = quantize_groups(modules["fold"], config, dataset)
        return Stages(modules, CalibrationTable(), module, dataset)
    if config.dynamic:
        modules["realize"] = dynamic(modules["fold"], config)
        return Stages(modules, CalibrationTable(), module, dataset)
    with shared_engines():
        with shown(progress) as show:
            show("factors of channels")
            chosen = config if table is not None else settled(modules["fold"], config, dataset)
            rescaling = found_scales(modules["fold"], config, chosen, dataset) if table is None else table
        modules["fold"] = rescaled(modules["fold"], rescaling)
        annotated = modules["annotate"] = annotate(modules["fold"], config)
        ranges = _ranges(module, annotated, dataset, chosen, table, progress)
        ranges = replace(ranges, scales=rescaling.scales, factored=rescaling.factored)
        with shown(progress) as show:
            show("rounding of weights")
            ranges = replace(ranges, roundings=_roundings(annotated, ranges, dataset, config, table))
    exact = annotated
    with shown(progress) as show:
        show("rounding of weights")
        if config.weight_rounding == "auto":
            annotated = with_steps(annotated, ranges, config, ranges.roundings)
        elif config.weight_rounding != "nearest":
            annotated = round_weights(annotated, ranges, _needed(dataset, "weight_rounding"), config)
        show("biases")
        ranges = replace(ranges, biases=_biases(annotated, ranges, dataset, config, exact, table))
    annotated = corrected(annotated, ranges.biases)
    modules["calibrate"] = with_ranges(annotated, ranges)
    modules["simulate"] = simulate(annotated, ranges, config)
    if not config.do_simulation:
        modules["realize"] = to_integers(modules["simulate"], config)
    return Stages(modules, ranges, module, dataset)


def folded(module: QnnModule, config: QConfig, data: Batches | None) -> QnnModule:
    """The stage "fold" of a float module, without what is "auto"."""
    found = fold(module, config)
    if config.equalize is True:
        found = equalize(found)
    if config.smooth is not None and not isinstance(config.smooth, str):
        found = smooth(found, _needed(data, "smooth"), float(config.smooth))
    if config.balance is True:
        found = balance(found, _needed(data, "balance"), config)
    return found


def _biases(
    annotated: QnnModule,
    ranges: CalibrationTable,
    dataset: Batches | None,
    config: QConfig,
    exact: QnnModule,
    table: CalibrationTable | None,
) -> Biases:
    """What bias correction subtracts. table: the one that was given"""
    if config.bias_correction is True:
        return mean_errors(annotated, ranges, _needed(dataset, "bias_correction"), config, exact)
    if config.bias_correction is False:
        return {}
    if table is not None:
        return table.biases
    remote = isinstance(dataset, ShardedBatches) and dataset.dataset.map is not None
    if dataset is None or remote or annotated.states or config.calibrate_mode != "auto":
        return {}
    return mean_errors(annotated, ranges, dataset, config, exact, cautious=True)


def _roundings(
    annotated: QnnModule,
    ranges: CalibrationTable,
    dataset: Batches | None,
    config: QConfig,
    table: CalibrationTable | None,
) -> Mapping[str, str]:
    """What "auto" rounds in another way than to the nearest integers. table: the one that was given"""
    if config.weight_rounding != "auto" or config.calibrate_mode != "auto":
        return {}
    if table is not None:
        return table.roundings
    remote = isinstance(dataset, ShardedBatches) and dataset.dataset.map is not None
    if dataset is None or remote or annotated.states:
        return {}
    return learned_steps(measurable(annotated), ranges, dataset, config)


def _needed(dataset: Batches | None, field: str) -> Batches:
    """The data set, which this field of the configuration needs even if a table has the ranges."""
    if dataset is None:
        raise QuantizationError(f"{field} needs data: give a dataset, or leave {field} out")
    return dataset


def _check_operators(config: QConfig) -> None:
    """Raises QuantizationError when debug_enabled_ops names an operator that is never quantized."""
    known = {plain_operator(name) for name in quantized_operators()} | {"dense", "batch_matmul"}
    for name in config.debug_enabled_ops or ():
        if plain_operator(name) not in known:
            known_names = ", ".join(sorted(known))
            raise QuantizationError(
                f"debug_enabled_ops: {name!r} cannot be quantized; the operators that can be are {known_names}"
            )


def _ranges(
    module: QnnModule,
    annotated: QnnModule,
    dataset: Any,
    config: QConfig,
    table: CalibrationTable | None,
    progress: bool,
) -> CalibrationTable:
    """The given table, checked, or the one that calibration finds."""
    model = fingerprint(module)
    if table is None:
        return replace(calibrate(annotated, dataset, config, progress), model=model)
    table.check([site.name for site in sites(annotated)], model)
    return table


def _loaded(table: TableLike | None) -> CalibrationTable | None:
    if isinstance(table, (str, os.PathLike)):
        return CalibrationTable.load(table)
    if table is not None and not isinstance(table, CalibrationTable):
        raise QuantizationError(f"a table must be a CalibrationTable or the path of one, found {type(table).__name__}")
    return table


def with_ranges(annotated: QnnModule, table: CalibrationTable) -> QnnModule:
    """`annotated` with the range of each site in its observer; per-channel ranges stay in the table."""

    def rule(value: relax.Expr, emit: Emit) -> relax.Expr | None:
        if definition_of(value) is not OBSERVE:
            return None
        attributes = call_attributes(value)
        found = table[attributes["site"]]
        if found.per_channel:
            return None
        return observe(value.args[0], **{**attributes, "low": float(found.low), "high": float(found.high)})

    def changed(mod: IRModule) -> IRModule:
        return rewrite(mod, rule)

    return replace(annotated, ir=everywhere(annotated.ir, changed))


# ---- what is quantized -------------------------------------------------------------------------------------------


def float_module(mod: QnnModule | IRModule, params: Mapping[str, Any] | None = None) -> QnnModule:
    """`mod` as a float QnnModule with `params` as constants, and what is float16 in float32.

    Raises QuantizationError if it is already quantized, computes nothing in float32, or a parameter does not fit.
    """
    if not isinstance(mod, (QnnModule, IRModule)):
        raise QuantizationError(
            f"a model must be a QnnModule or an IRModule, found {type(mod).__name__}: import files with from_onnx, "
            "from_tflite, from_pytorch or from_mxnet"
        )
    module = mod if isinstance(mod, QnnModule) else _wrapped(mod)
    if params:
        module = bind_parameters(module, params)
    values = [binding.value for binding in bindings_of(module.ir["main"])]
    integer = _integer_products(module)
    if integer:
        raise QuantizationError(
            f"{module.source} is already quantized: it has {len(integer)} integer products ({integer[0]} …); "
            "build it as it is, or start from the float model"
        )
    if any(op_name(value) == "qnn.observe" for value in values):
        raise QuantizationError(f"{module.source} is already annotated: pass this module to calibrate and realize")
    return in_float32(module)


def is_quantized(module: QnnModule) -> bool:
    """Whether a module has integer products, so that `quantize` refuses it."""
    return bool(_integer_products(module))


def _integer_products(module: QnnModule) -> list[str]:
    """Other integer operators, such as a dequantize of 8-bit inputs, leave a model to be quantized."""
    values = (binding.value for binding, _ in every_binding(module.ir))
    return [op_name(value) for value in values if traits_of(value).quantized and traits_of(value).product is not None]


def bind_parameters(module: QnnModule, params: Mapping[str, Any]) -> QnnModule:
    """`module` with the inputs named in `params` as constants. Raises QuantizationError for values that do not fit."""
    if not isinstance(params, Mapping):
        raise QuantizationError(
            f"params must be a dictionary of inputs that become constants, found {type(params).__name__}; calibration "
            "data is given as dataset="
        )
    function = module.ir["main"]
    specs = dict(
        zip([spec.name for spec in module.inputs], zip(module.inputs, function.params, strict=False), strict=True)
    )
    environment: dict[Any, Any] = {}
    for name, value in params.items():
        if name not in specs:
            raise QuantizationError(f"params: there is no input {name!r}; the inputs are {', '.join(map(repr, specs))}")
        spec, param = specs[name]
        array = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
        if array.shape != spec.shape or array.dtype != spec.dtype:
            raise QuantizationError(
                f"params: {name!r} must be {spec.dtype} {spec.shape}, found {array.dtype} {array.shape}"
            )
        environment[param] = constant(array)
    inputs = tuple(spec for spec in module.inputs if spec.name not in params)
    return replace(module, ir=_bound(function, environment), inputs=inputs)


def _bound(function: relax.Function, environment: dict[Any, Any]) -> IRModule:
    """`main` with variables replaced and its result a tuple."""
    new = Rebuild(function)
    new.environment.update(environment)
    attrs = {key: value for key, value in plain_attrs(function).items() if key != "num_input"}
    with new.main([param for param in function.params if param not in environment], attrs):
        for binding in new.bindings:
            new.keep(binding)
        body = new.substituted(function.body.body)
        new.result = relax.Tuple([body]) if isinstance(body.ty, relax.TensorType) else body
    return new.module()


def _wrapped(mod: IRModule) -> QnnModule:
    """A QnnModule of an IRModule whose `main` is a straight line of float operators on tensors of known shape."""
    function = mod["main"]
    ir = _bound(function, {})
    ret = ir["main"].ret_ty
    try:
        inputs = tuple(TensorSpec(str(param.name), shape_of(param), str(param.ty.dtype)) for param in function.params)
        outputs = tuple(
            TensorSpec(f"output_{i}", tuple(int(dim) for dim in ty.shape), str(ty.dtype))
            for i, ty in enumerate(ret.fields)
        )
    except (TypeError, AttributeError) as error:
        raise QuantizationError(f"main's inputs and outputs must be tensors of known shape: {error}") from error
    return QnnModule(ir, inputs, outputs)
