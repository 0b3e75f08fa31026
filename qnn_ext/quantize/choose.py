"""A range for each tensor, chosen among candidates by the error of the layers that read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..module import QnnModule
from .config import QConfig
from .dataset import batches
from .patches import sampled, weighted_products
from .ranges import Range, qparams_of
from .switchable import Observed, observations

_ROWS = 512  # of each product


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
