"""Ranges chosen among candidates: for each tensor by the error of the layers that read it, for all of them together by
the error of the model's outputs."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..compiling.coverage import macs_of
from ..errors import QuantizationWarning
from ..module import QnnModule
from ..op.observe import observed_sites
from ..passes.rewrite import bindings_of
from .alternatives import USUAL, Choice, Table, distinct
from .config import QConfig
from .dataset import batches
from .engines import engine_of
from .instrument import Instrumented, instrument
from .patches import sampled, weighted_products
from .ranges import Range, qparams_of
from .switchable import Observed, observations
from .tentative import tentative

_ROWS = 512  # of each product
_COMPARED = 32, 256  # batches on which outputs are compared, at most, of large and of small models
_LARGE = 1 << 28  # multiply-accumulates of a batch


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
    annotated: QnnModule,
    tables: Mapping[Choice, Table],
    recalibrated: Callable[[list[list[np.ndarray]]], Mapping[Choice, Table]],
    sites: Collection[str],
    dataset: Any,
    config: QConfig,
) -> Table:
    """The best table, by the error of the model's worst output on the first batches.

    1. None whose error is larger than that of any usual choice.
    2. If several are left, each choice is made again, from the even batches for the odd ones and from the odd for the
       even: on its own data no range looks better than one that clips nothing. The smallest error counts; of equals,
       the first.

    What is in loops stays in float while tables are compared: their ranges follow those of the rest of the model.
    tables: usual choices first; recalibrated: the tables that are found from these batches alone; sites: of which the
    caller has asked for the tensors, so that the same program runs. Raises QuantizationError.
    """
    tables = distinct(tables)
    if not observed_sites(annotated.ir) or len(tables) == 1:
        return next(iter(tables.values()))
    data = [list(batch) for batch in itertools.islice(batches(dataset, annotated.inputs), _most(annotated))]
    outputs = _Outputs(annotated, sites, data, config)
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):  # infinities: then none is better than another
        warnings.simplefilter("ignore", QuantizationWarning)  # those of the result are shown
        errors: dict[Choice, float] = {}
        limit = np.inf
        for choice, table in tables.items():
            errors[choice] = outputs.error([(table, slice(None))], limit)
            limit = min(limit, errors[choice]) if choice in USUAL else limit
        left = [choice for choice, error in errors.items() if error <= limit] or list(tables)[:1]
        best, least = left[0], np.inf
        if len(left) > 1 and len(data) > 1:
            even, odd = recalibrated(data[::2]), recalibrated(data[1::2])
            for choice in left:
                error = outputs.error([(odd[choice], slice(0, None, 2)), (even[choice], slice(1, None, 2))], least)
                if error < least:
                    best, least = choice, error
    return tables[best]


def _most(annotated: QnnModule) -> int:
    """How many batches are compared: of small models more, since they cost little."""
    macs = sum(macs_of(binding.value) or 0 for binding in bindings_of(annotated.ir["main"]))
    fewest, most = _COMPARED
    return min(most, fewest * max(1, _LARGE // max(1, macs)))


class _Outputs:
    """The model's outputs on some batches, against those of the float model."""

    def __init__(
        self, annotated: QnnModule, sites: Collection[str], data: list[list[np.ndarray]], config: QConfig
    ) -> None:
        self._annotated, self._sites, self._data, self._config = annotated, sites, data, config
        self._exact = list(self._of({}, data))
        signal = np.sum([[_energy(x) for x in arrays] for arrays in self._exact], axis=0)
        self._signal = np.maximum(signal, np.finfo(np.float64).tiny)

    def error(self, parts: Sequence[tuple[Mapping[str, Range], slice]], limit: float) -> float:
        """Σ (x − y)² / Σ x² of the worst output, with the ranges of a table on these batches, of another on those; or
        what already exceeds `limit`: further batches only add to it."""
        noise = np.zeros(len(self._annotated.outputs))
        for table, kept in parts:
            observed = {one.site.name: one for one in observations(self._annotated, table, self._config)}
            for exact, found in zip(self._exact[kept], self._of(observed, self._data[kept]), strict=True):
                noise += [_energy(x.astype(np.float64) - y) for x, y in zip(exact, found, strict=True)]
                if (noise / self._signal).max() > limit:
                    return float((noise / self._signal).max())
        return float((noise / self._signal).max())

    def _of(self, quantized: Mapping[str, Observed], data: Sequence[list[np.ndarray]]) -> Iterator[list[np.ndarray]]:
        engine = engine_of(comparable(self._annotated, quantized, self._sites).module)
        for batch in data:
            yield list(engine.run(batch).values())[: len(self._annotated.outputs)]
