"""relay.quantize: Relay's configuration, with its defaults, over qnn_ext.quantize, as a whole and stage by stage."""

from __future__ import annotations

import enum
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields as fields_of
from typing import Any

import numpy as np

from ..errors import NothingMarkedError, QuantizationError, QuantizationWarning
from ..quantize import CalibrationTable, current_config
from ..quantize import QConfig as Settings
from ..quantize import annotate as annotate_model
from ..quantize import calibrate as calibrate_model
from ..quantize import fold as fold_model
from ..quantize import qconfig as settings_in_force
from ..quantize import quantize as quantize_model
from ..quantize import realize as realize_model
from ..quantize.calibrators.base import Settings as CalibratorSettings
from ..quantize.calibrators.base import make_calibrator
from ..quantize.stages import float_module, with_ranges
from .arrays import array_of
from .modules import IRModule, module_of
from .passes import Pass

PERCENTILE = 99.999
"""What Relay's mode "percentile" always took."""


class QAnnotateKind(enum.IntEnum):
    """What a tensor is to the operator that reads it."""

    IDENTITY = 0
    INPUT = 1
    WEIGHT = 2
    ACTIVATION = 3


def kind2str(kind: int) -> str:
    """The kind's name in the configuration's fields."""
    return QAnnotateKind(kind).name.lower()


class QConfig:
    """`with relay.quantize.qconfig(…):`, entered as often as wanted. Its fields are attributes.

    Fields that are not given have Relay's defaults: symmetric int8 per tensor, power-of-two weights, a fixed range of
    ±8, the first convolution and dense layers in float. Those that only qnn_ext has may be given too.
    """

    def __init__(self, **fields: Any) -> None:
        self._settings = Settings.relay(**{"percentile": PERCENTILE, **fields})
        self._scope = settings_in_force(self._settings)

    def __enter__(self) -> QConfig:
        self._scope.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._scope.__exit__(*exception)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._settings, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            raise AttributeError(f"set {name} where the configuration is made: relay.quantize.qconfig({name}=…)")
        super().__setattr__(name, value)

    def get_nbit_by_kind(self, kind: int) -> int:
        """Bits of inputs, weights or activations."""
        return getattr(self, f"nbit_{kind2str(kind)}")

    def get_dtype_by_kind(self, kind: int) -> str:
        """Dtype of inputs, weights or activations."""
        return getattr(self, f"dtype_{kind2str(kind)}")


def qconfig(**fields: Any) -> QConfig:
    """A configuration of quantization. Fields that do not exist are ignored, as in Relay, with a warning.

    Raises QuantizationError for values that a field cannot have.
    """
    known = {item.name for item in fields_of(Settings)}
    for name in fields.keys() - known:
        warnings.warn(f"qconfig: there is no field {name!r}, it is ignored", QuantizationWarning, stacklevel=2)
    return QConfig(**{name: value for name, value in fields.items() if name in known})


def current_qconfig() -> Any:
    """The configuration of the innermost `with qconfig(…)`, or Relay's defaults."""
    return current_config() or QConfig()


def quantize(mod: Any, params: Mapping[str, Any] | None = None, dataset: Any = None) -> IRModule:
    """A float model as an integer one.

    mod:     a module or a function of the façade
    params:  values of inputs that are weights
    dataset: samples to calibrate on: dicts of arrays by input name, as an iterable that may be read only once; for the
             modes "kl_divergence" and "percentile", and what qnn_ext.quantize adds

    A model with nothing to quantize, or of which the qconfig keeps all in float, stays as it is, with a warning. Raises
    QuantizationError.
    """
    model = module_of(mod).model(params)
    try:
        quantized = quantize_model(model, dataset=_samples(dataset, model), config=_settings())
    except NothingMarkedError as error:
        warnings.warn(f"{error}: it stays as it is", QuantizationWarning, stacklevel=2)
        return IRModule.from_model(model)
    return IRModule.from_model(quantized)


def _settings() -> Settings:
    return current_config() or Settings.relay()


def _samples(dataset: Any, model: Any) -> list[Any] | None:
    """The samples, converted to the inputs' dtypes as Relay's executor did."""
    if dataset is None:
        return None
    dtypes = {spec.name: spec.dtype for spec in model.inputs}

    def converted(sample: Any) -> Any:
        if not isinstance(sample, Mapping):
            return array_of(sample) if hasattr(sample, "asnumpy") else sample
        arrays = {str(name): array_of(value) for name, value in sample.items()}
        return {name: array.astype(dtypes.get(name, array.dtype)) for name, array in arrays.items()}

    return [converted(sample) for sample in dataset]


def prerequisite_optimize(mod: Any, params: Mapping[str, Any] | None = None) -> IRModule:
    """The module with its weights as constants. `quantize` itself folds batch normalizations and constants."""
    module = module_of(mod)
    function = module["main"]
    if not params or not any(param.name_hint in params for param in function.params):
        return module
    return IRModule.from_model(module.model(params))


# ---- stage by stage ----------------------------------------------------------------------------------------------


class QuantizeContext:
    """`with quantize_context():` around the stages. Relay counted layers in it; ours are counted where they are."""

    Current: QuantizeContext | None = None

    def __enter__(self) -> QuantizeContext:
        self._outer, QuantizeContext.Current = QuantizeContext.Current, self
        return self

    def __exit__(self, *_: Any) -> None:
        QuantizeContext.Current = self._outer


quantize_context = QuantizeContext


class Calibrated(IRModule):
    """A module between `calibrate` and `realize`, with the ranges that were found."""

    table: CalibrationTable


def _stage_settings(stage: str) -> Settings:
    settings = _settings()
    whole = [
        name
        for name in ("smooth", "bias_correction", "equalize", "dynamic")
        if getattr(settings, name) not in (None, False, "auto")
    ]
    if settings.weight_rounding not in ("auto", "nearest"):
        whole.append("weight_rounding")
    if whole:
        raise QuantizationError(f"relay.quantize.{stage}: {whole[0]} takes all stages: call relay.quantize.quantize")
    return settings


def partition() -> Pass:
    """The first stage: batch normalizations and constants folded."""

    def run(mod: IRModule) -> IRModule:
        return IRModule.from_model(fold_model(float_module(mod.model()), _stage_settings("partition")))

    return Pass("QuantizePartition", run)


def annotate() -> Pass:
    """The second: an observer on each tensor that shall be quantized, as the configuration says."""

    def run(mod: IRModule) -> IRModule:
        return IRModule.from_model(annotate_model(mod.model(), _stage_settings("annotate")))

    return Pass("QuantizeAnnotate", run)


def calibrate(dataset: Any = None) -> Callable[..., Calibrated]:
    """The third, a function of (module, context): a range for each observer, from the samples or `global_scale`."""

    def run(mod: IRModule, context: Any = None) -> Calibrated:
        model, settings = mod.model(), _stage_settings("calibrate")
        table = calibrate_model(model, _samples(dataset, model), settings)
        calibrated = Calibrated(function=IRModule.from_model(with_ranges(model, table)).function)
        calibrated.table = table
        return calibrated

    return run


def realize() -> Pass:
    """The last: integers. Raises QuantizationError for modules that `calibrate` has not seen."""

    def run(mod: IRModule) -> IRModule:
        if not isinstance(mod, Calibrated):
            raise QuantizationError(
                "relay.quantize.realize takes a module that relay.quantize.calibrate()(module) made"
            )
        return IRModule.from_model(realize_model(mod.model(), mod.table, _stage_settings("realize")))

    return Pass("QuantizeRealize", run)


def find_scale_by_kl(
    arr: Any, quantized_dtype: str = "int8", num_bins: int = 8001, num_quantized_bins: int = 255
) -> float:
    """relay.quantize.kl_divergence._find_scale_by_kl: the threshold of |arr| for symmetric integers."""
    bits = int(np.ceil(np.log2(num_quantized_bins)))
    return _threshold("kl_divergence", arr, CalibratorSettings(bits=bits, symmetric=True, bins=num_bins // 2 + 1))


def find_scale_by_percentile(arr: Any, percentile: float = 0.99999) -> float:
    """relay.quantize._calibrate._find_scale_by_percentile: the magnitude below which this share of |arr| is."""
    return float(np.quantile(np.abs(array_of(arr)), percentile))


def _threshold(mode: str, arr: Any, settings: CalibratorSettings) -> float:
    calibrator = make_calibrator(mode, settings)
    calibrator.collect("arr", array_of(arr).astype(np.float32))
    found = calibrator.threshold("arr")
    return max(-float(found.low), float(found.high))
