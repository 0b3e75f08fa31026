"""What quantized products multiply their weights by: rows of activations, sampled from data.

A product with a constant weight is, for each group of its channels, Y = P·Wᵀ: W (outputs, inputs · taps), and a row of
P for each position of the result. Rounding of weights and choices between ranges are judged by the error of Y on such
rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from tvm import relax

from ..module import QnnModule
from ..op.arguments import data_of
from ..op.base import call_attributes, definition_of
from ..op.observe import OBSERVE
from ..op.relax_table import traits_of
from ..op.traits import Product
from ..passes.rewrite import bindings_of
from .channels import Weight, weight_of
from .dataset import Batches
from .engines import engine_of
from .shards import batch_named
from .switchable import Observed, switchable

MOST_BATCHES = 64

TensorsOf: TypeAlias = Callable[[Sequence[np.ndarray]], Mapping[str, np.ndarray]]  # a batch → tensors by name


@dataclass(frozen=True)
class WeightedProduct:
    """A product whose weight is a quantized constant.

    call:   in the annotated module; site: of its weight; data: the name of the tensor it reads
    source: the site of its data, None if that is not quantized or not by a single scale
    moved:  whether it reads values of that site that were moved
    """

    call: relax.Call
    weight: Weight
    site: Observed
    data: str
    source: str | None
    moved: bool

    @property
    def length(self) -> int:
        """The length of a row: inputs of a group · taps."""
        return int(self.weight.matrices.shape[2])

    def rows(self, data: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """`count` rows of the layer's data, or all if there are fewer: float32 (groups, n, length)."""
        if traits_of(self.call).product is Product.MATRIX:
            rows = data.reshape(-1, data.shape[-1])
            return np.ascontiguousarray(rows[_chosen(len(rows), count, rng)], np.float32)[None]
        return self._patches(data, count, rng)

    def _patches(self, data: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        attrs = self.call.attrs
        axes = [i for i, letter in enumerate(str(attrs.data_layout)) if letter not in "NC"]
        layout = str(attrs.data_layout)
        data = data.transpose(layout.index("N"), *axes, layout.index("C"))
        rank = len(axes)
        strides, dilation, padding = (
            list(map(int, values)) for values in (attrs.strides, attrs.dilation, attrs.padding)
        )
        pads = [(0, 0), *zip(padding[:rank], padding[rank:], strict=True), (0, 0)]
        data = np.pad(data, pads)
        letters = str(attrs.kernel_layout)
        kernel = [self.weight.array.shape[i] for i, letter in enumerate(letters) if letter not in "OI"]
        result = [
            (n - (k - 1) * d - 1) // s + 1
            for n, k, s, d in zip(data.shape[1:-1], kernel, strides, dilation, strict=True)
        ]
        chosen = _chosen(len(data) * int(np.prod(result)), count, rng)
        sample, *corner = np.unravel_index(chosen, (len(data), *result))
        taps = []
        for tap in itertools.product(*map(range, kernel)):
            where = [c * s + t * d for c, s, t, d in zip(corner, strides, tap, dilation, strict=True)]
            taps.append(data[(sample, *where)])
        patches = np.stack(taps, axis=-1)  # (n, channels, taps)
        groups = self.weight.groups
        return np.ascontiguousarray(patches.reshape(len(chosen), groups, -1).transpose(1, 0, 2), np.float32)


def _chosen(total: int, count: int, rng: np.random.Generator) -> np.ndarray:
    return np.arange(total) if total <= count else np.sort(rng.choice(total, count, replace=False))


def weighted_products(annotated: QnnModule, observed: Sequence[Observed]) -> list[WeightedProduct]:
    """The convolutions and matrix products of an annotated module with quantized constant weights, in order."""
    by_name = {one.site.name: one for one in observed}
    weights: dict[Any, Observed] = {}
    sources: dict[Any, str] = {}
    moved: set[Any] = set()
    found = []
    for binding in bindings_of(annotated.ir["main"]):
        value = binding.value
        if definition_of(value) is OBSERVE:
            one = by_name[str(call_attributes(value)["site"])]
            if one.site.value is not None:
                weights[binding.var] = one
            elif not one.qparams.axis:
                sources[binding.var] = one.site.name
            continue
        known = {var: np.asarray(one.site.value) for var, one in weights.items()}
        weight = weight_of(value, known) if isinstance(value, relax.Call) else None
        site = None if weight is None else next((weights[arg] for arg in value.args if arg in weights), None)
        if weight is not None and site is not None:
            data = data_of(value)
            found.append(WeightedProduct(value, weight, site, str(data.name), sources.get(data), data in moved))
        elif isinstance(value, relax.Call) and value.args and traits_of(value).rearranges and value.args[0] in sources:
            sources[binding.var] = sources[value.args[0]]
            moved.add(binding.var)
    return found


def sampled(
    annotated: QnnModule,
    products: Sequence[WeightedProduct],
    data: Batches,
    counts: Mapping[str, int],
    seed: int = 0,
    tensors_of: TensorsOf | None = None,
) -> Iterator[tuple[WeightedProduct, np.ndarray]]:
    """Rows of the products' data, batch by batch, from the float model on at most MOST_BATCHES batches.

    counts: weight site → about how many rows in all. The same data and seed give the same rows.
    tensors_of: the tensors that the products read, by name, for a batch; None: what a program of its own computes
    """
    tensors_of = tensors_of or _computed(annotated, list(dict.fromkeys(product.data for product in products)))
    batches = min(MOST_BATCHES, data.count or MOST_BATCHES)
    for number, batch in enumerate(itertools.islice(data, MOST_BATCHES)):
        with batch_named(number):
            tensors = tensors_of(batch)
        for index, product in enumerate(products):
            rng = np.random.default_rng([seed, number, index])
            count = -(-counts[product.site.site.name] // batches)
            yield product, product.rows(tensors[product.data], count, rng)


def _computed(annotated: QnnModule, names: Sequence[str]) -> TensorsOf:
    engine = engine_of(switchable(annotated, [], names).module)
    engine.reset_state()

    def tensors_of(batch: Sequence[np.ndarray]) -> Mapping[str, np.ndarray]:
        arrays = list(engine.run(list(batch)).values())[len(annotated.outputs) :]
        return dict(zip(names, arrays, strict=False))

    return tensors_of
