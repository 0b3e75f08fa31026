"""The float model with the weights of one layer on a grid of some bits: what that layer alone costs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from tvm import relax

from ...module import QnnModule
from ...op.arguments import factors_of, with_data
from ...op.base import constant
from ...passes.rewrite import Emit
from ..config import QConfig
from ..dataset import Batches
from .converting import Conversion, Prepared, by_row
from .layers import GroupedLayer, weight_of


class Simulation:
    """The layers that a configuration quantizes in groups, and float modules with one of them quantized.

    layers: bits of each layer's weights as configured, by its name; sizes: how many weights it has
    """

    def __init__(self, folded: QnnModule, config: QConfig, data: Batches | None) -> None:
        """Arguments and errors as of `quantize_groups`."""
        self._prepared, self._config = Prepared.of(folded, config, data), config
        self.layers = {layer.config.name: layer.config.nbit_weight for layer in self._prepared.layers.values()}
        walk = _Walk(self._prepared, config)
        walk.of(self._prepared.module.ir)
        self.sizes = walk.sizes

    def alone(self, name: str, bits: int) -> QnnModule:
        """With the weights of this layer in so many bits, and in a dynamic mode its activations by rows in 8. What
        differs between all of these is in constants: inside `shared_engines` they are one program."""
        walk = _Walk(self._prepared, self._config, name, bits)
        return replace(self._prepared.module, ir=walk.of(self._prepared.module.ir))


@dataclass
class _Walk(Conversion):
    """name: the layer that is quantized, none by default; sizes: the weights of each, as far as it was walked over"""

    name: str = ""
    bits: int = 8
    sizes: dict[str, int] = field(default_factory=dict)

    def converted(self, call: relax.Call, layer: GroupedLayer, rows: dict[Any, Any], emit: Emit) -> relax.Call:
        name, weight = layer.config.name, weight_of(call)
        assert weight is not None, "the layer was found by it"
        self.sizes[name] = self.sizes.get(name, 0) + weight.size
        if name == self.name:
            weight = self.fitted(call, layer, replace(layer.form(self.config), bits=self.bits)).values
        weight = weight.astype(np.float32)
        if layer.is_embedding:
            return with_data(call, constant(weight))
        data = factors_of(call)[0]
        if self.config.dynamic:  # x + f · (x̂ − x), where only the factor f says whether the rows are quantized
            factor = constant(np.full(1, name == self.name, np.float32))
            error = emit(relax.op.subtract(by_row(data, rows, emit), data))
            data = emit(relax.op.add(data, emit(relax.op.multiply(error, factor))))
        return with_data(call, data, constant(np.ascontiguousarray(weight.T)))
