"""Bias correction: the mean error that quantized weights add to a layer's results is subtracted from its bias.

E[W_q·x + b] ≠ E[W·x + b], as rounding errors of weights do not cancel: ε = E[(W_q − W)·x] per output channel. With
b − ε in place of b the means agree again. Source: Nagel et al. 2019, Data-Free Quantization Through Weight Equalization
and Bias Correction, section 4.2; ε is measured on data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from .switchable import Observed, observations


@dataclass(frozen=True)
class _Product:
    """A product with a quantized constant weight.

    index:  position of its binding in `main`; bias: that of the following addition, None if there is none
    weight: which operand is the weight; axis: of the channels in the result, counted from the end
    error:  W_q − W
    """

    index: int
    bias: int | None
    weight: int
    axis: int
    error: np.ndarray


def correct_bias(
    annotated: QnnModule,
    table: Mapping[str, Range],
    dataset: Any,
    config: QConfig | None = None,
    exact: QnnModule | None = None,
) -> QnnModule:
    """`annotated` with biases that compensate the mean error of its quantized weights on `dataset`.

    table:   site → range; only those of weights matter
    dataset: as `quantize` takes it; all of it is used
    exact:   the annotated module before `round_weights`, if that was applied

    A layer without a bias gets one. Raises QuantizationError for a data set that is empty or does not fit.
    """
    observed = {one.site.name: one for one in observations(annotated, table, config or QConfig())}
    values = {site.name: site.value for site in sites(annotated if exact is None else exact)}
    products = _products(annotated.ir["main"], observed, values)
    if not products:
        return annotated
    module = _mean_errors(annotated, products)
    engine = engine_of(module)
    totals = [np.zeros(spec.shape) for spec in module.outputs]
    count = 0
    for batch in batches(dataset, annotated.inputs):
        for total, error in zip(totals, engine.run(batch).values(), strict=True):
            total += error
        count += 1
    if not count:
        raise QuantizationError("the data set is empty: bias correction measures mean errors on data")
    return replace(annotated, ir=rewrite(annotated.ir, _Corrected(products, [total / count for total in totals])))


def _products(
    function: relax.Function, observed: Mapping[str, Observed], exact: Mapping[str, np.ndarray | None]
) -> list[_Product]:
    bindings = bindings_of(function)
    readers = consumers(function, bindings)
    errors: dict[Any, np.ndarray] = {}
    found = []
    for index, binding in enumerate(bindings):
        value = binding.value
        if definition_of(value) is OBSERVE:
            one = observed[str(call_attributes(value)["site"])]
            if one.site.value is not None:
                errors[binding.var] = one.simulate(one.site.value) - np.asarray(exact[one.site.name])
        elif family_of(value, ()) is Family.PRODUCT:
            factors = factors_of(value)
            weight = next((i for i, factor in enumerate(factors) if factor in errors), None)
            if weight is not None:
                bias = _bias_behind(binding.var, bindings, readers)
                found.append(_Product(index, bias, weight, _channel_axis(value, weight), errors[factors[weight]]))
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


def _mean_errors(annotated: QnnModule, products: list[_Product]) -> QnnModule:
    """A float module that returns E[(W_q − W)·x] of each product, one value per channel, and keeps the states."""
    new = Rebuild(annotated.ir["main"])
    by_index = {product.index: product for product in products}
    means = []
    with new.main():
        for index, binding in enumerate(new.bindings):
            value = new.substituted(binding.value)
            if index in by_index:
                means.append(_mean_error(value, by_index[index], new.builder))
            new.bind(binding.var, value.args[0] if definition_of(value) is OBSERVE else value)
        states = results_of(annotated.ir["main"])[len(annotated.outputs) :]
        new.result = relax.Tuple([*means, *map(new.substituted, states)])
    outputs = tuple(TensorSpec(f"error {i}", shape_of(mean), "float32") for i, mean in enumerate(means))
    inputs = tuple(replace(spec, dynamic_batch=False) for spec in annotated.inputs)
    return replace(annotated, ir=new.live_module(), inputs=inputs, outputs=outputs, notes=())


def _mean_error(call: relax.Call, product: _Product, builder: relax.BlockBuilder) -> Any:
    args = list(call.args)
    args[product.weight] = constant(product.error)
    error = builder.emit(relax.Call(call.op, args, call.attrs, call.ty_args))
    ndim = len(shape_of(error))
    others = [i for i in range(ndim) if i != product.axis % ndim]
    return builder.emit(relax.op.mean(error, others) if others else error)


class _Corrected:
    """The rule for `rewrite`, which calls it once for each binding, in order."""

    def __init__(self, products: list[_Product], errors: list[np.ndarray]) -> None:
        self._biases: dict[int, np.ndarray] = {}
        self._missing: dict[int, np.ndarray] = {}
        for product, error in zip(products, errors, strict=True):
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
