"""A float module → one whose products and embeddings read packed weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from tvm import IRModule, relax

from ... import op as qnn
from ...errors import QuantizationError
from ...module import QnnModule
from ...op.arguments import factors_of, with_data
from ...op.base import constant
from ...op.compound import integer_rows, reshape
from ...op.loop import Loop
from ...passes.blockwise import keep_packed
from ...passes.bodies import with_changed_body
from ...passes.layout.forms import static_shape
from ...passes.rewrite import Emit, Rebuild
from ..config import QConfig
from ..dataset import Batches
from .fitting import Fitted, fitted
from .grid import GroupFormat
from .layers import GroupedLayer, grouped_layers, weight_of
from .matrices import with_matrices
from .moments import second_moments
from .scaling import activation_aware


def quantize_groups(folded: QnnModule, config: QConfig, data: Batches | None = None) -> QnnModule:
    """`folded` (float32) with the weights of its matrix products, and on request of its embeddings, in groups.

    data: for weight_rounding="gptq" and smooth="awq", which leave products in loops to the nearest integers

    Raises QuantizationError if there is nothing to quantize, data are missing, or weights or data are not finite.
    """
    prepared = Prepared.of(folded, config, data)
    mod = Conversion(prepared, config).of(prepared.module.ir)
    return replace(prepared.module, ir=keep_packed(mod))


@dataclass(frozen=True)
class Prepared:
    """A float module before its weights are quantized: all that shall be are matrices, with AWQ's factors in them.

    layers: by variable; moments: of what GPTQ and AWQ need, by tensor
    """

    module: QnnModule
    layers: Mapping[str, GroupedLayer]
    moments: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, folded: QnnModule, config: QConfig, data: Batches | None) -> Prepared:
        """Arguments and errors as of `quantize_groups`."""
        layers, notes = grouped_layers(folded, config)
        if not layers:
            raise QuantizationError(
                f"{folded.source} has no product with constant weights that the configuration quantizes in groups: "
                "leave out weight_only and group_size, or fewer layers in float"
            )
        folded, layers = with_matrices(folded, layers)
        moments: dict[str, np.ndarray] = {}
        needing = ["weight_rounding='gptq'"] if config.weight_rounding == "gptq" else []
        needing += ["smooth='awq'"] if config.smooth == "awq" else []
        if needing:
            if data is None:
                raise QuantizationError(f"{needing[0]} needs data: give a dataset, or leave it out")
            moments = second_moments(folded, [layer.data for layer in layers.values() if layer.data is not None], data)
        if config.smooth == "awq":
            folded, moments = activation_aware(folded, layers, moments, config)
        return cls(replace(folded, notes=(*folded.notes, *notes)), layers, moments)


@dataclass
class Conversion:
    """One walk over a module and the bodies of its loops, whose variables have the names of the loops before theirs."""

    prepared: Prepared
    config: QConfig

    def of(self, mod: IRModule, prefix: str = "") -> IRModule:
        """The walk."""
        new = Rebuild(mod["main"])
        rows: dict[Any, Any] = {}
        with new.main():
            for binding in new.bindings:
                value = new.substituted(binding.value)
                name, loop = f"{prefix}{binding.var.name}", Loop.of(value)
                if loop is not None:
                    value = with_changed_body(loop, partial(self.of, prefix=f"{name}.")).call()
                elif name in self.prepared.layers:
                    value = self.converted(value, self.prepared.layers[name], rows, new.builder.emit)
                new.bind(binding.var, value)
        return new.module()

    def converted(self, call: relax.Call, layer: GroupedLayer, rows: dict[Any, Any], emit: Emit) -> relax.Call:
        """What a layer becomes. rows: data of products → the same, quantized row by row"""
        found = self.fitted(call, layer, layer.form(self.config))
        form, depth = found.grid.form, found.grid.depth
        integers, scale, zero_point = map(constant, found.grid.stored(found.integers))
        weight = emit(qnn.blockwise_dequantize(integers, scale, zero_point, depth, form.dtype, form.group(depth)))
        if layer.is_embedding:
            return with_data(call, weight)
        data = factors_of(call)[0]
        if self.config.dynamic:
            data = by_row(data, rows, emit)
        return with_data(call, data, emit(relax.op.permute_dims(weight)))

    def fitted(self, call: relax.Call, layer: GroupedLayer, form: GroupFormat) -> Fitted:
        """The integers of a layer's weight."""
        weight = weight_of(call)
        assert weight is not None, "the layer was found by it"
        moment = None if layer.data is None else self.prepared.moments.get(layer.data)
        try:
            return fitted(weight, form, layer.config.weight_scale, self.config.weight_rounding, moment)
        except QuantizationError as error:
            raise QuantizationError(f"layer {layer.config.name!r}: {error}") from None


def by_row(x: Any, known: dict[Any, Any], emit: Emit) -> Any:
    """dequantize(quantize(x)) with a scale for each row: s = max |x| / 127, 1 for a row of zeros.

    known: what this was made of before
    """
    if x not in known:
        known[x] = _by_row(x, emit)
    return known[x]


def _by_row(x: Any, emit: Emit) -> Any:
    shape = static_shape(x)
    if shape is None or 0 in shape:
        return x
    integers, scale = integer_rows(x, emit)
    return reshape(emit(qnn.dequantize(integers, scale, constant(np.int32(0)), axis=0)), shape, emit)
