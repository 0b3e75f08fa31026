"""Ranges chosen among candidates: for each tensor by the error of the layers that read it, for all of them together by
the error of the model's outputs."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..module import QnnModule
from ..op.observe import observed_sites
from .config import QConfig
from .dataset import batches
from .engines import engine_of
from .instrument import Instrumented, instrument
from .patches import sampled, weighted_products
from .ranges import Range, qparams_of
from .switchable import Observed, observations
from .tentative import tentative

_ROWS = 512  # of each product
_MOST_BATCHES = 32  # on which outputs are compared


def choose_ranges(
    annotated: QnnModule,
    candidates: Mapping[str, Sequence[Range]],
    table: Mapping[str, Range],
    dataset: Any,
    config: QConfig,
) -> dict[str, Range]:
    """Site → the candidate with the smallest Σ ‖(Q(P) − P)·Wᵀ‖² / ‖P·Wᵀ‖², summed over the products that read it.

    P are rows of the site's values, Q quantizes them with the candidate, W are the weights of a product. Sites that no
    product with constant weights reads are left out. table: ranges of all sites. Raises QuantizationError.
    """
    observed = observations(annotated, table, config)
    products = [p for p in weighted_products(annotated, observed) if p.source in candidates]
    if not products:
        return {}
    found = {one.site.name: one.site for one in observed}
    noise: dict[tuple[str, str], np.ndarray] = {}
    signal: dict[tuple[str, str], float] = {}
    counts = {product.site.site.name: _ROWS for product in products}
    for product, rows in sampled(annotated, products, batches(dataset, annotated.inputs), counts):
        assert product.source is not None, "the others are left out"
        site = found[product.source]
        weight = product.weight.matrices.astype(np.float32).transpose(0, 2, 1)
        key = product.source, product.site.site.name
        errors = []
        for candidate in candidates[product.source]:
            qparams = qparams_of(candidate, site.dtype, site.bits, site.symmetric, config.power_of_two, site=site.name)
            simulated = Observed(site, qparams, None).simulate(rows)
            errors.append(_energy(np.matmul(simulated - rows, weight)))
        noise[key] = noise.get(key, 0.0) + np.array(errors)
        signal[key] = signal.get(key, 0.0) + _energy(np.matmul(rows, weight))
    totals: dict[str, np.ndarray] = {}
    for (source, name), errors_of in noise.items():
        totals[source] = totals.get(source, 0.0) + errors_of / max(signal[source, name], np.finfo(np.float64).tiny)
    return {source: candidates[source][int(np.argmin(total))] for source, total in totals.items()}


def _energy(array: np.ndarray) -> float:
    return float(np.square(array, dtype=np.float64).sum())


def comparable(annotated: QnnModule, quantized: Mapping[str, Observed], sites: Collection[str]) -> Instrumented:
    """`annotated` with the sites in `quantized` quantized, in float; its outputs, then the tensors of `sites` as they
    were before. Inside `shared_engines` one program computes it for all `quantized`, also for none."""
    return instrument(tentative(annotated, quantized, marked=True), sites, with_outputs=True)


def choose_table(
    annotated: QnnModule, tables: Sequence[dict[str, Range]], sites: Collection[str], dataset: Any, config: QConfig
) -> dict[str, Range]:
    """The table with the highest SQNR of the model's worst output, on the first batches; of equals, the first.

    What is in loops stays in float while tables are compared: their ranges follow those of the rest of the model.
    sites: of which the caller has asked for the tensors, so that the same program runs. Raises QuantizationError.
    """
    if not observed_sites(annotated.ir):
        return tables[0]
    data = [list(batch) for batch in itertools.islice(batches(dataset, annotated.inputs), _MOST_BATCHES)]
    count = len(annotated.outputs)

    def outputs(quantized: Mapping[str, Observed]) -> Iterator[list[np.ndarray]]:
        engine = engine_of(comparable(annotated, quantized, sites).module)
        for batch in data:
            yield list(engine.run(batch).values())[:count]

    exact = list(outputs({}))
    signal = np.sum([[_energy(x) for x in arrays] for arrays in exact], axis=0)

    def noise(table: Mapping[str, Range]) -> float:
        observed = {one.site.name: one for one in observations(annotated, table, config)}
        pairs = zip(exact, outputs(observed), strict=True)
        with np.errstate(invalid="ignore"):  # a model may return infinities: then no table is better than another
            errors = np.sum(
                [[_energy(x.astype(np.float64) - y) for x, y in zip(*pair, strict=True)] for pair in pairs], 0
            )
            return float((errors / np.maximum(signal, np.finfo(np.float64).tiny)).max())

    return min(tables, key=noise)
