"""Bias correction: the mean error that quantized weights add to a layer's results is subtracted from its bias.

E[W_q·x + b] ≠ E[W·x + b], as rounding errors of weights do not cancel: ε = E[(W_q − W)·x] per output channel. With
b − ε in place of b the means agree again. Source: Nagel et al. 2019, Data-Free Quantization Through Weight Equalization
and Bias Correction, section 4.2; ε is measured on data.

Where the mean is small beside the differences between samples, what is measured on few of them is mostly chance. "auto"
therefore takes less: with s the standard error of the measured mean ε, ε · max(0, 1 − s² / ε²), which is what is left
of ε² once its variance is subtracted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax

from ..errors import QuantizationError
from ..module import QnnModule, TensorSpec
from ..op.arguments import factors_of
from ..op.base import call_attributes, constant, constant_value, definition_of, shape_of
from ..op.loop import results_of
from ..op.observe import OBSERVE
from ..passes.rewrite import Rebuild, bindings_of, consumers, op_name, rewrite
from .annotate import sites
from .annotate.families import Family, family_of
from .config import QConfig
from .dataset import batches
from .engines import engine_of
from .ranges import Range
from .shards import batch_named
from .switchable import observations

Biases = Mapping[int, Sequence[float]]  # number of a product with a quantized weight → ε of each output channel


@dataclass(frozen=True)
class _Product:
    """A product with a quantized constant weight.

    index:  position of its binding in `main`; bias: that of the following addition, None if there is none
    weight: which operand is the weight; axis: of the channels in the result, counted from the end
    site:   of the weight
    """

    index: int
    bias: int | None
    weight: int
    axis: int
    site: str


def correct_bias(
    annotated: QnnModule,
    table: Mapping[str, Range],
    dataset: Any,
    config: QConfig | None = None,
    exact: QnnModule | None = None,
) -> QnnModule:
    """`annotated` with biases that compensate the mean error of its quantized weights on `dataset`.

    Arguments and errors as of `mean_errors`. A layer without a bias gets one.
    """
    return corrected(annotated, mean_errors(annotated, table, dataset, config or QConfig(), exact))


def mean_errors(
    annotated: QnnModule,
    table: Mapping[str, Range],
    dataset: Any,
    config: QConfig,
    exact: QnnModule | None = None,
    cautious: bool = False,
) -> Biases:
    """The mean error that the quantized weights of each product add to its results, where there is any.

    table:    site → range; only those of weights matter
    dataset:  as `quantize` takes it; all of it is used
    exact:    the annotated module before `round_weights`, if that was applied
    cautious: whether errors that may be chance are taken for smaller, as "auto" does; each batch is one measurement

    Raises QuantizationError for a data set that is empty or does not fit.
    """
    products = _products(annotated.ir["main"])
    if not products:
        return {}
    simulated = {one.site.name: one for one in observations(annotated, table, config)}
    values = {site.name: site.value for site in sites(annotated if exact is None else exact)}
    weights = [
        simulated[product.site].simulate(np.asarray(simulated[product.site].site.value))
        - np.asarray(values[product.site])
        for product in products
    ]
    module = _measuring(annotated, products, weights)
    engine = engine_of(module)
    sums = [np.zeros(spec.shape) for spec in module.outputs]
    squares = [np.zeros(spec.shape) for spec in module.outputs]
    count = 0
    for index, batch in enumerate(batches(dataset, annotated.inputs)):
        with batch_named(index):
            found = engine.run(batch)
        for total, square, error in zip(sums, squares, found.values(), strict=True):
            total += error
            square += np.square(error, dtype=np.float64)
        count += 1
    if not count:
        raise QuantizationError("the data set is empty: bias correction measures mean errors on data")
    errors = [total / count for total in sums]
    if cautious:
        errors = [_certain(error, square / count, count) for error, square in zip(errors, squares, strict=True)]
    return {number: error.tolist() for number, error in enumerate(errors) if error.any()}


def _certain(means: np.ndarray, mean_squares: np.ndarray, count: int) -> np.ndarray:
    """ε · max(0, 1 − s² / ε²), s being the standard error of ε; 0 of a single measurement, which shows none."""
    if count == 1:
        return np.zeros_like(means)
    variance = np.maximum(mean_squares - np.square(means), 0) / (count - 1)
    return means * np.maximum(0, 1 - variance / np.maximum(np.square(means), np.finfo(np.float64).tiny))


def corrected(annotated: QnnModule, biases: Biases) -> QnnModule:
    """`annotated` with these errors subtracted from the biases. Raises QuantizationError if they do not fit."""
    if not biases:
        return annotated
    products = _products(annotated.ir["main"])
    bindings = bindings_of(annotated.ir["main"])
    for number, errors in biases.items():
        product = products[number] if number < len(products) else None
        channels = None if product is None else shape_of(bindings[product.index].var)[product.axis]
        if channels != len(errors):
            raise QuantizationError(
                f"the biases of the calibration table do not fit: product {number} has {len(errors)}, the model's "
                f"{'is missing' if channels is None else f'has {channels}'}; calibrate again"
            )
    found = [(products[number], np.asarray(errors, np.float64)) for number, errors in biases.items()]
    return replace(annotated, ir=rewrite(annotated.ir, _Corrected(found)))


def _products(function: relax.Function) -> list[_Product]:
    bindings = bindings_of(function)
    readers = consumers(function, bindings)
    weights: dict[Any, str] = {}
    found = []
    for index, binding in enumerate(bindings):
        value = binding.value
        if definition_of(value) is OBSERVE:
            if constant_value(value.args[0]) is not None:
                weights[binding.var] = str(call_attributes(value)["site"])
        elif family_of(value, ()) is Family.PRODUCT:
            factors = factors_of(value)
            weight = next((i for i, factor in enumerate(factors) if factor in weights), None)
            if weight is not None:
                bias = _bias_behind(binding.var, bindings, readers)
                found.append(_Product(index, bias, weight, _channel_axis(value, weight), weights[factors[weight]]))
    return found


def _channel_axis(call: relax.Call, weight: int) -> int:
    """The axis of a product's result that holds its weight's output channels, counted from the end."""
    if op_name(call) == "matmul":
        return -1 if weight == 1 else -2
    return str(call.attrs.out_layout or call.attrs.data_layout).index("C") - len(shape_of(call))


def _bias_behind(var: relax.Var, bindings: list[relax.VarBinding], readers: Mapping[Any, list[int]]) -> int | None:
    """The addition of a constant that is the only reader of `var`."""
    if len(readers[var]) != 1 or readers[var][0] >= len(bindings):
        return None
    value = bindings[readers[var][0]].value
    is_bias = op_name(value) == "add" and any(constant_value(arg) is not None for arg in value.args)
    return readers[var][0] if is_bias else None


def _measuring(annotated: QnnModule, products: list[_Product], errors: list[np.ndarray]) -> QnnModule:
    """A float module that returns E[(W_q − W)·x] of each product, one value per channel, and keeps the states.

    errors: W_q − W of each product
    """
    new = Rebuild(annotated.ir["main"])
    by_index = {product.index: (product, error) for product, error in zip(products, errors, strict=True)}
    means = []
    with new.main():
        for index, binding in enumerate(new.bindings):
            value = new.substituted(binding.value)
            if index in by_index:
                means.append(_mean_error(value, *by_index[index], new.builder))
            new.bind(binding.var, value.args[0] if definition_of(value) is OBSERVE else value)
        states = results_of(annotated.ir["main"])[len(annotated.outputs) :]
        new.result = relax.Tuple([*means, *map(new.substituted, states)])
    outputs = tuple(TensorSpec(f"error {i}", shape_of(mean), "float32") for i, mean in enumerate(means))
    inputs = tuple(replace(spec, dynamic_batch=False) for spec in annotated.inputs)
    return replace(annotated, ir=new.live_module(), inputs=inputs, outputs=outputs, notes=())


def _mean_error(call: relax.Call, product: _Product, weights: np.ndarray, builder: relax.BlockBuilder) -> Any:
    args = list(call.args)
    args[product.weight] = constant(weights)
    error = builder.emit(relax.Call(call.op, args, call.attrs, call.ty_args))
    ndim = len(shape_of(error))
    others = [i for i in range(ndim) if i != product.axis % ndim]
    return builder.emit(relax.op.mean(error, others) if others else error)


class _Corrected:
    """The rule for `rewrite`, which calls it once for each binding, in order."""

    def __init__(self, errors: Sequence[tuple[_Product, np.ndarray]]) -> None:
        self._biases: dict[int, np.ndarray] = {}
        self._missing: dict[int, np.ndarray] = {}
        for product, error in errors:
            placed = error.reshape(-1, *(1,) * (-product.axis - 1))
            if product.bias is None:
                self._missing[product.index] = placed
            else:
                self._biases[product.bias] = placed
        self._positions: Iterator[int] = iter(range(1 << 31))

    def __call__(self, value: Any, emit: Any) -> Any:
        index = next(self._positions)
        if index in self._missing:
            return relax.op.add(emit(value), constant((-self._missing[index]).astype(np.float32)))
        if index not in self._biases:
            return None
        args = list(value.args)
        position = next(i for i, arg in enumerate(args) if constant_value(arg) is not None)
        bias = np.asarray(constant_value(args[position]), np.float64) - self._biases[index]
        args[position] = constant(bias.astype(np.float32))
        return relax.Call(value.op, args, value.attrs, value.ty_args)
