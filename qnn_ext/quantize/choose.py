"""Ranges chosen among candidates: for each tensor by the error of the layers that read it, for all of them together by
the error of the model's outputs."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ..compiling.coverage import coverage
from ..errors import QuantizationWarning
from ..module import QnnModule
from ..op.observe import observed_sites
from .alternatives import COMPARED, SEEN, USUAL, Alternatives, Choice, Table, identity
from .config import QConfig
from .dataset import batches
from .engines import shared_engine_of
from .instrument import Instrumented, instrument
from .patches import sampled, weighted_products
from .ranges import Range, qparams_of
from .switchable import Observed, Observers, observations
from .tentative import settings_of, tentative

_ROWS = 512  # of each product
_COMPARED = 32, 256  # batches on which outputs are compared, at most, of large and of small models
_LARGE = 1 << 28  # multiply-accumulates of a batch
_FOLDS = 4
_ENOUGH = 32  # batches that show what clipping costs
_CLEARLY, _SURELY = 0.9, 2.5  # of the other error, and standard errors
_HOPELESS = 1.1  # times the error of another choice on the same folds

Settings: TypeAlias = Callable[[Observed], list[np.ndarray]]
Fold: TypeAlias = Sequence[tuple[int, list[np.ndarray]]]  # batches with their positions


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


def comparable(
    annotated: QnnModule,
    quantized: Mapping[str, Observed],
    sites: Collection[str],
    constants: dict[str, list[Any]] | None = None,
) -> Instrumented:
    """`annotated` with the sites in `quantized` quantized, in float; its outputs, then the tensors of `sites` as they
    were before. Inside `shared_engines` one program computes it for all `quantized`, also for none.

    constants: see `tentative`
    """
    return instrument(tentative(annotated, quantized, marked=True, constants=constants), sites, with_outputs=True)


def choose_alternative(
    annotated: QnnModule,
    recalibrated: Callable[[Sequence[Fold]], Sequence[Alternatives]],
    sites: Collection[str],
    dataset: Any,
    config: QConfig,
) -> Choice:
    """The best way to find ranges, by the error of the model's worst output on data that its ranges do not come from.

    The first batches, 32 or of small models up to 256, are dealt out to four folds. Each choice finds its ranges again
    for each fold, from the batches of the others: on its own data no range looks better than one that clips nothing,
    and none worse than one with room for what other data need. A single batch is judged by itself.

    The choice with the smallest error Σ e_f of all folds takes the place of USUAL, whose errors are E_f, but only if it
    is better by a tenth, and by more than chance makes: if Σ (E_f − e_f) exceeds its standard error, √(folds ·
    variance of E_f − e_f), 2.5 times. How roundings fall changes the error of a few samples by more than most choices
    do, and the best of a dozen choices is often better by twice that error. An outlier that a single fold has seen
    stands out by three times. Of fewer than 32 batches, perhaps none shows any
    fold what clipping costs; that narrower ranges round less is then no sign that they need no room, and a choice must
    be better than SEEN, too, which has none.

    What is in loops stays in float while tables are compared: their ranges follow those of the rest of the model.
    recalibrated: for each fold, the tables from the others, of a single one from itself; sites: of which the caller has
    asked for the tensors, so that the same program runs. Raises QuantizationError.
    """
    if not observed_sites(annotated.ir):
        return USUAL
    data = [
        list(batch) for batch in itertools.islice(batches(dataset, annotated.inputs), affordable(annotated, *_COMPARED))
    ]
    folds = _dealt(data)
    others = recalibrated(folds)
    outputs = _Outputs(annotated, others[0][USUAL], sites, data, config)
    errors: dict[Choice, np.ndarray] = {}
    tried = set()
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):  # infinities: then none is better than another
        warnings.simplefilter("ignore", QuantizationWarning)  # those of the result are shown
        for choice in (USUAL, SEEN, *COMPARED):
            same = identity(others[0][choice])
            if same not in tried:
                tried.add(same)
                parts = ((fold, tables[choice]) for fold, tables in zip(folds, others, strict=True))
                errors[choice] = outputs.errors(parts, errors.get(USUAL, np.full(len(folds), np.inf)))
    rivals = [errors[choice] for choice in (USUAL, SEEN)[: 1 if len(data) >= _ENOUGH else 2] if choice in errors]
    better = [choice for choice, found in errors.items() if all(_is_surely_better(found, other) for other in rivals)]
    return min(better, key=lambda choice: float(errors[choice].sum()), default=USUAL)


def usual_errors(
    annotated: QnnModule,
    recalibrated: Callable[[Sequence[Fold]], Sequence[Alternatives]],
    sites: Collection[str],
    data: list[list[np.ndarray]],
    config: QConfig,
) -> np.ndarray:
    """Σ (x − y)² / Σ x² of the worst output for each of four folds, with the ranges that USUAL finds from the others;
    arguments as of `choose_alternative`."""
    folds = _dealt(data)
    tables = [found[USUAL] for found in recalibrated(folds)]
    outputs = _Outputs(annotated, tables[0], sites, data, config)
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.simplefilter("ignore", QuantizationWarning)
        return outputs.errors(zip(folds, tables, strict=True), np.full(len(folds), np.inf))


def weight_errors(
    modules: Sequence[QnnModule],
    table: Mapping[str, Range],
    sites: Collection[str],
    data: list[list[np.ndarray]],
    config: QConfig,
) -> list[np.ndarray]:
    """Σ (x − y)² / Σ x² of the worst output for each of four folds of the data, of each of these annotated modules,
    which differ in the values of their weights alone, with activations in float: how their roundings fall changes
    outputs by more than those of the weights do. x: of the float model of the first; sites: see
    `choose_alternative`"""
    outputs = _Outputs(modules[0], table, sites, data, config)
    found = [observations(module, table, config) for module in modules]

    def of_weights(one: Observed) -> list[np.ndarray]:
        return settings_of(one, on=one.site.value is not None)

    return [
        np.array([outputs.error(fold, observed, settings=of_weights) for fold in _dealt(data)]) for observed in found
    ]


def _dealt(data: Sequence[list[np.ndarray]]) -> list[Fold]:
    return [list(enumerate(data))[start::_FOLDS] for start in range(min(_FOLDS, len(data)))]


def _is_surely_better(errors: np.ndarray, others: np.ndarray) -> bool:
    """Whether one of several choices is better on the same folds."""
    return bool(errors.sum() < _CLEARLY * others.sum()) and is_better(errors, others, _SURELY)


def is_better(errors: np.ndarray, others: np.ndarray, deviations: float = 2) -> bool:
    """Whether errors on the same folds are smaller by more than so many standard errors."""
    if not (np.isfinite(errors).all() and np.isfinite(others).all()):
        return bool(np.isfinite(errors).all()) and not np.isfinite(others).all()
    gains = others - errors
    return bool(gains.sum() > (deviations * np.sqrt(gains.size * gains.var(ddof=1)) if gains.size > 1 else 0.0))


def affordable(module: QnnModule, fewest: int, most: int) -> int:
    """How many batches a model shall run on: `fewest`, and of small ones, which cost little, up to `most`."""
    return min(most, fewest * max(1, _LARGE // max(1, coverage(module).macs)))


class _Outputs:
    """The model's outputs on some batches, against those of the float model."""

    def __init__(
        self,
        annotated: QnnModule,
        table: Mapping[str, Range],
        sites: Collection[str],
        data: list[list[np.ndarray]],
        config: QConfig,
    ) -> None:
        """table: any ranges; sites: of which the program also computes the tensors."""
        self._annotated, self._config = annotated, config
        self._observers = Observers(annotated)
        observed = {one.site.name: one for one in self._observers.observations(table, config)}
        self._constants: dict[str, list[Any]] = {}
        self._engine = shared_engine_of(comparable(annotated, observed, sites, self._constants).module)
        self._exact = list(self._of(observed, data, partial(settings_of, on=False)))
        signal = np.sum([[_energy(x) for x in arrays] for arrays in self._exact], axis=0)
        self._signal = np.maximum(signal, np.finfo(np.float64).tiny)

    def errors(self, parts: Iterable[tuple[Fold, Table]], others: np.ndarray) -> np.ndarray:
        """Σ (x − y)² / Σ x² of the worst output, for each fold with its table; of all data in the denominator.

        others: the errors of another choice: infinite where so much is worse on the folds so far that the rest does not
                matter
        """
        errors: list[float] = []
        for (fold, table), most in zip(parts, _HOPELESS * np.cumsum(others), strict=True):
            limit = most - sum(errors)
            errors.append(self.error(fold, self._observers.observations(table, self._config), limit))
            if not errors[-1] <= limit:
                return np.full(others.size, np.inf)
        return np.array(errors)

    def error(
        self, fold: Fold, found: Sequence[Observed], limit: float = np.inf, settings: Settings = settings_of
    ) -> float:
        """Of one fold, with sites quantized as these say, or what already exceeds `limit`: further batches only add to
        it. settings: the values of a site's constants"""
        observed = {one.site.name: one for one in found}
        noise, error = np.zeros(len(self._annotated.outputs)), 0.0
        for (index, _), outputs in zip(fold, self._of(observed, [batch for _, batch in fold], settings), strict=True):
            noise += [_energy(x.astype(np.float64) - y) for x, y in zip(self._exact[index], outputs, strict=True)]
            error = float((noise / self._signal).max())
            if not error <= limit:
                break
        return error

    def _of(
        self, observed: Mapping[str, Observed], data: Sequence[list[np.ndarray]], settings: Settings
    ) -> Iterator[list[np.ndarray]]:
        """Of each batch."""
        values = {
            known: value
            for name, constants in self._constants.items()
            if name in observed  # others are in loops
            for known, value in zip(constants, settings(observed[name]), strict=True)
        }
        engine = self._engine.with_constants(values)
        for batch in data:
            yield list(engine.run(batch).values())[: len(self._annotated.outputs)]
