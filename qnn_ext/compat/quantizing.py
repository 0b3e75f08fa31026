"""relay.quantize: Relay's configuration, with its defaults, over qnn_ext.quantize."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from ..quantize import QConfig as Settings
from ..quantize import current_config
from ..quantize import qconfig as settings_in_force
from ..quantize import quantize as quantize_model
from .arrays import NDArray, array_of
from .modules import IRModule, module_of

PERCENTILE = 99.999
"""What Relay's mode "percentile" always took."""


class QConfig:
    """`with relay.quantize.qconfig(…):`, entered as often as wanted. Its fields are attributes.

    Fields that are not given have Relay's defaults: symmetric int8 per tensor, power-of-two weights, a fixed range of
    ±8, the first convolution and dense layers in float. Those that only qnn_ext has may be given too.
    """

    def __init__(self, **fields: Any) -> None:
        self._settings = Settings.relay(**{"percentile": PERCENTILE, **fields})
        self._entered: list[AbstractContextManager[Settings]] = []

    def __enter__(self) -> QConfig:
        scope = settings_in_force(self._settings)
        scope.__enter__()
        self._entered.append(scope)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._entered.pop().__exit__(*exception)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._settings, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            raise AttributeError(f"set {name} where the configuration is made: relay.quantize.qconfig({name}=…)")
        super().__setattr__(name, value)


def qconfig(**fields: Any) -> QConfig:
    """A configuration of quantization. Raises QuantizationError for unknown fields and values."""
    return QConfig(**fields)


def current_qconfig() -> Any:
    """The configuration of the innermost `with qconfig(…)`, or Relay's defaults."""
    return current_config() or QConfig()


def quantize(mod: Any, params: Mapping[str, Any] | None = None, dataset: Any = None) -> IRModule:
    """A float model as an integer one.

    mod:     a module or a function of the façade
    params:  values of inputs that are weights
    dataset: samples to calibrate on: dicts of arrays by input name, as an iterable that may be read only once; for the
             modes "kl_divergence" and "percentile", and what qnn_ext.quantize adds

    Raises QuantizationError.
    """
    config = current_config() or Settings.relay()
    model = module_of(mod).model(params)
    samples = None if dataset is None else [_arrays(sample) for sample in dataset]
    return IRModule.from_model(quantize_model(model, dataset=samples, config=config))


def _arrays(sample: Any) -> Any:
    if isinstance(sample, Mapping):
        return {str(name): array_of(value) for name, value in sample.items()}
    return array_of(sample) if isinstance(sample, NDArray) else sample


def prerequisite_optimize(mod: Any, params: Mapping[str, Any] | None = None) -> IRModule:
    """The module with its weights as constants. `quantize` itself folds batch normalizations and constants."""
    module = module_of(mod)
    function = module["main"]
    if not params or not any(param.name_hint in params for param in function.params):
        return module
    return IRModule.from_model(module.model(params))
