"""Products whose weights are no matrices, as products with matrices, whose rows can have groups.

convolution(x, w)               → rows(x) · W: a row of taps · channels for each position, W (taps · channels, N)
matmul(x, w), w (E, K, N)       → E products, one behind the other
matmul(x, take(w, experts))     → matmul(x, w'), where w' are rows of w as a matrix (E · N, K), transposed
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax

from ...module import QnnModule
from ...op.arguments import argument, data_of, factors_of, with_data
from ...op.base import constant, constant_value, shape_of
from ...op.compound import permute, reshape
from ...passes.rewrite import Emit, Rebuild, bindings_of, emit_named
from .layers import EMBEDDING, GroupedLayer, is_convolution, weight_of

Layers = dict[str, GroupedLayer]


def with_matrices(module: QnnModule, layers: Layers) -> tuple[QnnModule, Layers]:
    """`module` with its layers whose weights are no matrices as products with matrices, and the layers that it has
    then, by variable."""
    values = {str(binding.var.name): binding.value for binding in bindings_of(module.ir["main"])}
    others = {name for name in layers if name in values and weight_of(values[name]) is None}
    if not others:
        return module, layers
    found = {name: layer for name, layer in layers.items() if name not in others}
    names = set(values)
    new = Rebuild(module.ir["main"])
    sources = {binding.var: binding.value for binding in new.bindings}  # variable -> what it is bound to
    with new.main():
        for binding in new.bindings:
            name = str(binding.var.name)
            if name not in others:
                new.keep(binding)
                continue
            site = _Site(name, layers[name], new.builder, names, found)
            call = new.substituted(binding.value)
            if is_convolution(call):
                result = site.convolution(call)
            elif constant_value(factors_of(call)[1]) is not None:
                result = site.products(call)
            else:
                result = site.chosen(call, new.substituted(sources[factors_of(binding.value)[1]]))
            new.environment[binding.var] = result
    return replace(module, ir=new.live_module()), found


@dataclass
class _Site:
    """What one layer becomes.

    names: of all variables; found: the layers, to which new ones are added
    """

    name: str
    layer: GroupedLayer
    builder: relax.BlockBuilder
    names: set[str]
    found: Layers

    def emit(self, expr: relax.Expr) -> relax.Expr:
        """A variable with a name of its own: layers are found by their names."""
        number = next(i for i in itertools.count() if f"{self.name}_rows{i}" not in self.names)
        self.names.add(f"{self.name}_rows{number}")
        return emit_named(self.builder, expr, f"{self.name}_rows{number}")

    def product(self, data: relax.Expr, weight: np.ndarray) -> relax.Expr:
        """The product of rows (…, K) with a matrix (K, N), as a layer."""
        return self.added(self.emit(relax.op.matmul(data, constant(weight))), str(data.name))

    def added(self, var: relax.Expr, data: str | None) -> relax.Expr:
        """A variable that is a layer now."""
        self.found[str(var.name)] = replace(self.layer, variable=str(var.name), data=data)
        return var

    def convolution(self, call: relax.Call) -> relax.Expr:
        attrs, (data, weight) = call.attrs, factors_of(call)
        result = self.product(_patches(call, data, self.emit), _as_matrix(constant_value(weight), attrs))
        layout = str(attrs.out_layout or attrs.data_layout)
        axes = [letter for letter in layout if letter not in "NC"]
        return permute(result, [["N", *axes, "C"].index(letter) for letter in layout], self.emit)

    def products(self, call: relax.Call) -> relax.Expr:
        """One product for each matrix, which all read the same rows or each its own."""
        data, weights = factors_of(call)
        shape, matrices = shape_of(data), constant_value(weights)
        assert matrices is not None
        results = []
        for index, matrix in enumerate(matrices):
            own = len(shape) == 3 and shape[0] > 1
            rows = self.emit(relax.op.strided_slice(data, [0], [index], [index + 1])) if own else data
            result = self.product(rows, matrix)
            results.append(reshape(result, (1, shape[-2], matrix.shape[1]), self.emit))
        return self.emit(relax.op.concat(results, 0))

    def chosen(self, call: relax.Call, take: relax.Call) -> relax.Expr:
        """Rows n of an expert e are rows e · N + n of the matrix."""
        table = constant_value(data_of(take))
        assert table is not None
        experts, depth, units = table.shape
        matrix = constant(table.transpose(0, 2, 1).reshape(experts * units, depth))
        indices = argument(take, "indices")
        shape = shape_of(indices)
        expert = self.emit(relax.op.astype(indices, "int64"))
        if take.attrs.mode == "clip":  # the nearest expert, not the nearest row
            expert = self.emit(relax.op.maximum(expert, constant(np.int64(0))))
            expert = self.emit(relax.op.minimum(expert, constant(np.int64(experts - 1))))
        first = self.emit(relax.op.multiply(expert, constant(np.int64(units))))
        first = reshape(first, (*shape, 1), self.emit)
        places = self.emit(relax.op.add(first, constant(np.arange(units, dtype=np.int64))))
        rows = self.emit(relax.op.take(matrix, places, 0, mode=take.attrs.mode))
        self.layer = replace(self.layer, config=replace(self.layer.config, operator=EMBEDDING))
        self.added(rows, None)
        weight = permute(rows, [*range(len(shape)), len(shape) + 1, len(shape)], self.emit)
        return self.emit(with_data(call, factors_of(call)[0], weight))


def _as_matrix(weight: np.ndarray | None, attrs: Any) -> np.ndarray:
    """The weights of a convolution, (taps · channels, outputs)."""
    assert weight is not None
    layout = str(attrs.kernel_layout)
    taps = [axis for axis, letter in enumerate(layout) if letter not in "OI"]
    ordered = weight.transpose(*taps, layout.index("I"), layout.index("O"))
    return ordered.reshape(-1, ordered.shape[-1])


def _patches(call: relax.Call, data: relax.Expr, emit: Emit) -> relax.Expr:
    """What a convolution multiplies for each position of its result: (N, positions…, taps · channels)."""
    attrs = call.attrs
    layout, letters = str(attrs.data_layout), str(attrs.kernel_layout)
    axes = [axis for axis, letter in enumerate(layout) if letter not in "NC"]
    weight = shape_of(factors_of(call)[1])
    kernel = [weight[axis] for axis, letter in enumerate(letters) if letter not in "OI"]
    rank = len(axes)
    strides, dilation, padding = (list(map(int, values)) for values in (attrs.strides, attrs.dilation, attrs.padding))
    rows = permute(data, [layout.index("N"), *axes, layout.index("C")], emit)
    if any(padding):
        pads = itertools.chain.from_iterable(zip(padding[:rank], padding[rank:], strict=True))
        rows = emit(relax.op.nn.pad(rows, [0, 0, *pads, 0, 0]))
    sizes = shape_of(rows)[1:-1]
    spans = [
        (size - (k - 1) * d - 1) // s * s + 1 for size, k, s, d in zip(sizes, kernel, strides, dilation, strict=True)
    ]
    taps = []
    for tap in itertools.product(*map(range, kernel)):
        begin = [place * d for place, d in zip(tap, dilation, strict=True)]
        end = [first + span for first, span in zip(begin, spans, strict=True)]
        whole = begin == [0] * rank and end == list(sizes) and strides == [1] * rank
        positions = list(range(1, rank + 1))
        taps.append(rows if whole else emit(relax.op.strided_slice(rows, positions, begin, end, strides)))
    return taps[0] if len(taps) == 1 else emit(relax.op.concat(taps, -1))
