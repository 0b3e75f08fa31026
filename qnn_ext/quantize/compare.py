"""Two builds of a model compared on the same data: outputs, and inner tensors with the same name in both."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from tvm import relax

from ..compiling.build import compile_module
from ..errors import InputError, QuantizationError
from ..module import QnnModule, TensorSpec
from ..op.base import constant_value, shape_of
from ..op.relax_table import traits_of
from ..passes.rewrite import bindings_of, is_anonymous
from ..qparams import QParams
from ..running.engine import Engine
from .analysis import Fidelity, FidelityMeter
from .dataset import batches
from .shards import batch_named
from .switchable import switchable

Model: TypeAlias = QnnModule | Engine

# suffixes that exporters and quantizers append to a tensor's name, and those that distinguish tensors derived from one
_SUFFIXES = re.compile(r"(_QuantizeLinear_Output|_DequantizeLinear_Output|_QuantizeLinear_Input|_quantized|_site)\d*$")


@dataclass(frozen=True)
class OutputComparison:
    """One output: its Fidelity; the share of equal values; for vectors, the share of samples with the same arg max."""

    fidelity: Fidelity
    equal: float
    same_answer: float | None


@dataclass(frozen=True)
class Comparison:
    """The second model against the first, in real values.

    outputs: by the first model's names; tensors: inner tensors of both models, in order of computation; samples:
             batches
    """

    outputs: Mapping[str, OutputComparison]
    tensors: Mapping[str, Fidelity]
    samples: int


def compare(one: Model, two: Model, dataset: Any, samples: int = 64) -> Comparison:
    """Run both models on the first `samples` batches of `dataset` and compare their results, in real values.

    one, two: modules, which are built here, or engines. Inputs and outputs are matched by name, or by order if names
              differ; quantized ones are quantized and dequantized with their own parameters
    dataset:  real values, as `quantize` takes it, for the inputs of `one`

    Inner tensors are compared if both models are modules without states. Raises InputError if inputs or outputs differ
    in number or shape, QuantizationError for data that do not fit.
    """
    _check_ports(one, two)
    names = _common_tensors(one, two) if isinstance(one, QnnModule) and isinstance(two, QnnModule) else []
    runners = [_Runner(model, [pair[i] for pair in names], one) for i, model in enumerate((one, two))]
    outputs = {spec.name: _OutputMeter() for spec in one.outputs}
    tensors = {_plain(pair[0].name): FidelityMeter() for pair in names}
    count = 0
    for index, batch in enumerate(itertools.islice(batches(dataset, real_inputs(one)), samples)):
        with batch_named(index):
            expected, found = (runner(batch) for runner in runners)
        for meter, x, y in zip((*outputs.values(), *tensors.values()), expected, found, strict=True):
            meter.add(x, y)
        count += 1
    if not count:
        raise QuantizationError("the data set is empty: there is nothing to compare on")
    return Comparison(
        {name: meter.comparison for name, meter in outputs.items()},
        {name: meter.result for name, meter in tensors.items()},
        count,
    )


def real_inputs(model: Model) -> list[TensorSpec]:
    """The model's inputs as real values: float32 instead of quantized integers."""
    return [replace(spec, dtype="float32", qparams=None) if spec.qparams else spec for spec in model.inputs]


def random_batches(model: Model, count: int, seed: int = 0) -> Iterable[dict[str, np.ndarray]]:
    """Values drawn from the whole range of quantized inputs, from 0 … 1 for float ones; 0 or 1 for integers."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield {spec.name: _random(spec, rng) for spec in model.inputs}


def _random(spec: TensorSpec, rng: np.random.Generator) -> np.ndarray:
    if spec.qparams is not None:
        info = np.iinfo(spec.dtype)
        return spec.qparams.dequantize(rng.integers(info.min, info.max + 1, spec.shape).astype(spec.dtype))
    if spec.dtype.startswith("float"):
        return rng.uniform(0, 1, spec.shape).astype(spec.dtype)
    return rng.integers(0, 2, spec.shape).astype(spec.dtype)


def _check_ports(one: Model, two: Model) -> None:
    for kind in ("inputs", "outputs"):
        first, second = getattr(one, kind), _in_order(getattr(one, kind), getattr(two, kind))
        if [spec.shape for spec in first] != [spec.shape for spec in second]:
            described = (", ".join(map(str, specs)) for specs in (first, second))
            raise InputError(f"the models' {kind} do not match: {' against '.join(described)}")
    for spec in one.outputs:
        if spec.bounded:
            raise InputError(
                f"the size of output {spec.name!r} is known only at run time, and the two models may give different "
                "ones: compare models that end before the operator it comes from, or measure a metric"
            )


def _in_order(wanted: Sequence[TensorSpec], found: Sequence[TensorSpec]) -> Sequence[TensorSpec]:
    """`found` in the order of `wanted`, if the names are the same."""
    by_name = {spec.name: spec for spec in found}
    names = [spec.name for spec in wanted]
    return [by_name[name] for name in names] if set(names) == set(by_name) else found


class _OutputMeter(FidelityMeter):
    """Fidelity, and how many values and arg max positions are the same."""

    def __init__(self) -> None:
        super().__init__()
        self._equal = self._values = self._same = self._answers = 0

    def add(self, expected: np.ndarray, found: np.ndarray) -> None:
        super().add(expected, found)
        self._equal += int(np.count_nonzero(expected == found))
        self._values += expected.size
        if expected.ndim == 2 and expected.shape[1] > 1:
            self._same += int(np.count_nonzero(expected.argmax(1) == found.argmax(1)))
            self._answers += len(expected)

    @property
    def comparison(self) -> OutputComparison:
        same = self._same / self._answers if self._answers else None
        return OutputComparison(self.result, self._equal / self._values if self._values else 1.0, same)


# ---- inner tensors -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tensor:
    """A variable whose real values are known: those of the variable, or dequantized with `qparams`."""

    name: str
    shape: tuple[int, ...]
    qparams: QParams | None


def _common_tensors(one: QnnModule, two: QnnModule) -> list[tuple[_Tensor, _Tensor]]:
    """Tensors with the same name and shape in both models."""
    if one.states or two.states:
        return []
    first, second = _tensors(one), _tensors(two)
    inner = [name for name in first if name not in {spec.name for spec in one.outputs} and name in second]
    return [(first[name], second[name]) for name in inner if first[name].shape == second[name].shape]


def _tensors(module: QnnModule) -> dict[str, _Tensor]:
    """Plain name → tensor; if several share a plain name, the last."""
    found = {}
    for binding in bindings_of(module.ir["main"]):
        if not isinstance(binding.var.ty, relax.TensorType):
            continue
        dtype = str(binding.var.ty.dtype)
        qparams = _qparams_of(binding.value, dtype)
        name = str(binding.var.name)
        if (dtype == "float32" or qparams is not None) and not is_anonymous(name):
            found[_plain(name)] = _Tensor(name, shape_of(binding.var), qparams)
    return found


def _plain(name: str) -> str:
    return _SUFFIXES.sub("", name)


def _qparams_of(value: Any, dtype: str) -> QParams | None:
    """The parameters of an operator's result, if scale and zero point are constants."""
    traits = traits_of(value)
    if traits.output is None or traits.output.scale is None or dtype.startswith("float"):
        return None
    scale, zero_point = (
        constant_value(traits.argument(value, name)) for name in (traits.output.scale, traits.output.zero_point)
    )
    if scale is None or zero_point is None or scale.size != 1 or zero_point.size != 1:
        return None
    return QParams(scale, zero_point, dtype)


class _Runner:
    """A model as a function from real inputs to real outputs and inner tensors, both in the order of `like`."""

    def __init__(self, model: Model, tensors: Sequence[_Tensor], like: Model) -> None:
        self._inputs = _in_order(like.inputs, model.inputs)
        self._outputs = _in_order(like.outputs, model.outputs)
        self._qparams = [spec.qparams for spec in self._outputs] + [tensor.qparams for tensor in tensors]
        names = [spec.name for spec in model.outputs]
        self._order = [names.index(spec.name) for spec in self._outputs]
        if isinstance(model, QnnModule):
            shown = switchable(model, [], [tensor.name for tensor in tensors]).module if tensors else model
            model = compile_module(shown)
        self._engine = model

    def __call__(self, batch: Sequence[np.ndarray]) -> list[np.ndarray]:
        values = {
            spec.name: spec.qparams.quantize(value) if spec.qparams is not None else value.astype(spec.dtype)
            for spec, value in zip(self._inputs, batch, strict=True)
        }
        self._engine.reset_state()
        results = list(self._engine.run(values).values())
        results = [results[index] for index in self._order] + results[len(self._order) :]
        return [
            qparams.dequantize(result) if qparams is not None else result
            for result, qparams in zip(results, self._qparams, strict=True)
        ]
