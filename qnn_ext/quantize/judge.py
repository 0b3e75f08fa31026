"""How good a quantized model is: its outputs against the float model's, and the user's own metric."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import QuantizationError
from ..module import QnnModule
from .analysis import to_decibel
from .dataset import Batches
from .engines import Runner, engine_of
from .shards import batch_named

Metric = Callable[[Runner], float]
DROP_TYPES = ("absolute", "relative")

_SHOWN = 80  # characters of what a metric returned


@dataclass(frozen=True)
class Goal:
    """What is requested: outputs with `min_sqnr` dB, or a metric that drops by at most `max_drop`, or both.

    drop_type: "absolute": max_drop is in the metric's units; "relative": a share of the float model's metric
    """

    min_sqnr: float | None = None
    metric: Metric | None = None
    max_drop: float | None = None
    drop_type: str = "absolute"

    def check(self) -> None:
        """Raises QuantizationError unless something sensible is requested."""
        if self.min_sqnr is None and self.metric is None:
            raise QuantizationError("accuracy control needs a goal: give min_sqnr, or metric with max_drop")
        if (self.metric is None) != (self.max_drop is None):
            raise QuantizationError("metric and max_drop belong together: give both, or neither")
        if self.metric is not None and not callable(self.metric):
            raise QuantizationError(f"metric must be a function of a model, found {type(self.metric).__name__}")
        for name, value in (("min_sqnr", self.min_sqnr), ("max_drop", self.max_drop)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float, np.number))):
                raise QuantizationError(f"{name} must be a number, found {value!r}{self._remedy(name, value)}")
            if value is not None and not np.isfinite(value):
                raise QuantizationError(f"{name} must be finite, found {value!r}")
        if self.max_drop is not None and self.max_drop < 0:
            raise QuantizationError(
                f"max_drop must be at least 0, found {self.max_drop!r}: by how much the metric may fall. If lower is "
                "better, as for an error, let metric return its negative"
            )
        if self.drop_type not in DROP_TYPES:
            raise QuantizationError(f"drop_type must be 'absolute' or 'relative', found {self.drop_type!r}")
        if self.drop_type == "relative" and (self.max_drop is None or self.max_drop > 1):
            raise QuantizationError(
                "drop_type='relative' needs a max_drop between 0 and 1, a share of the float model's metric, found "
                f"{self.max_drop!r}: 0.01 is one percent"
            )

    def _remedy(self, name: str, value: Any) -> str:
        if name != "max_drop" or not isinstance(value, str) or "%" not in value:
            return ""
        return ": for a share of the float model's metric, give drop_type='relative' and max_drop=0.01 for one percent"

    def reached(self, sqnr: float, metric: float | None, reference: float | None) -> bool:
        """Whether these figures are good enough; reference: the float model's metric."""
        if self.min_sqnr is not None and not sqnr >= self.min_sqnr:
            return False
        if self.max_drop is None:
            return True
        if metric is None or reference is None:
            return False
        return bool(metric >= reference - self.max_drop * (abs(reference) if self.drop_type == "relative" else 1))

    def described(self, reference: float | None) -> str:
        """The goal in words."""
        parts = [] if self.min_sqnr is None else [f"SQNR of at least {self.min_sqnr:g} dB"]
        if self.max_drop is not None:
            drop = f"{100 * self.max_drop:g} %" if self.drop_type == "relative" else f"{self.max_drop:g}"
            parts.append(f"metric of at least {reference:.6g} − {drop}")
        return " and ".join(parts)


def digest_of(data: Iterable[Sequence[np.ndarray]]) -> str:
    """What identifies the batches."""
    digest = hashlib.sha256()
    for batch in data:
        for array in batch:
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


class Judge:
    """Compares models with the float one on the first `samples` batches of `data`. States start anew for each pass.

    kept_back: positions of batches that do not calibrate the models
    """

    def __init__(
        self, module: QnnModule, data: Batches, samples: int, goal: Goal, kept_back: Sequence[int] = ()
    ) -> None:
        for spec in module.outputs:
            if spec.bounded:
                raise QuantizationError(
                    f"the size of output {spec.name!r} is known only at run time, so that outputs cannot be compared "
                    "value by value: quantize without min_sqnr and metric, or a model that ends before such operators"
                )
        self._data, self._samples, self._kept_back = data, samples, list(kept_back)
        self.goal = goal
        runner = engine_of(module)
        runner.reset_state()
        self._exact = []
        for index, batch in enumerate(itertools.islice(data, samples)):
            with batch_named(index):
                self._exact.append(list(runner.run(list(batch)).values()))
        self._signal = np.array([[_energy(x) for x in outputs] for outputs in self._exact])
        self._least = np.maximum(1e-15 * self._signal.mean(axis=0), np.finfo(np.float32).tiny)  # noise of a batch
        self.reference: float | None = None
        self.reference = self._metric(runner)
        self.digest = digest_of(itertools.islice(data, samples))

    @property
    def described(self) -> str:
        """The goal in words."""
        goal, kept_back = self.goal.described(self.reference), len(self._kept_back)
        return f"{goal} ({kept_back} of {len(self._exact)} batches do not calibrate)" if kept_back else goal

    def figures(self, runner: Runner) -> dict[str, Any]:
        """JSON values: "sqnr" of the worst output (null: exact) and "metric".

        Where batches are kept back, "sqnr" is what to expect on others: the smaller one of theirs, and of that of all
        batches, whose noise is taken for one standard error more than it is. "noise": of each batch and output
        """
        noise = self._noise(runner, self._samples)
        figures = {"sqnr": _stored(self._sqnr(noise)), "metric": self._metric(runner)}
        return {**figures, "noise": noise.tolist()} if self._kept_back else figures

    def like(self, figures: dict[str, Any], usual: Sequence[Sequence[float]]) -> dict[str, Any]:
        """`figures` with an "sqnr" no better than what most batches say, where some are kept back.

        usual: the noise of another model, whose expected noise is multiplied by how much smaller that of most batches
               is: by the mean ratio in logarithms. A few batches, such as those near a decision, have most of the
               noise; in each model chance makes it large in others, and of several models the luckiest looks best
        """
        if not self._kept_back:
            return figures
        found, others = (np.maximum(noise, self._least) for noise in (figures["noise"], usual))
        sqnr = self._sqnr(others * np.exp(np.log(found / others).mean(axis=0)))
        return figures if figures["sqnr"] is not None and not sqnr < figures["sqnr"] else {**figures, "sqnr": sqnr}

    def _sqnr(self, noise: np.ndarray) -> float:
        parts = [noise.mean(axis=0)]
        if self._kept_back:
            error = np.sqrt(noise.var(axis=0, ddof=1) / len(noise))
            parts = [parts[0] + error, noise[self._kept_back].mean(axis=0)]
        signal = self._signal.mean(axis=0)
        return min(to_decibel(*pair) for part in parts for pair in zip(signal, part, strict=True))

    def noise(self, runner: Runner, samples: int) -> float:
        """Σ over outputs of noise / signal, on fewer batches."""
        noise = self._noise(runner, samples)
        pairs = zip(self._signal[: len(noise)].sum(axis=0), noise.sum(axis=0), strict=True)
        return float(sum(min(10 ** (-to_decibel(*pair) / 10), 1e12) for pair in pairs))

    def _noise(self, runner: Runner, samples: int) -> np.ndarray:
        """Σ (x − y)² of each batch and output."""
        runner.reset_state()
        return np.array(
            [
                [_energy(np.float64(x) - y) for x, y in zip(exact, runner.run(list(batch)).values(), strict=True)]
                for batch, exact in zip(itertools.islice(self._data, samples), self._exact, strict=False)
            ]
        )

    def _metric(self, runner: Runner) -> float | None:
        """The metric of the float model, which is finite, or of one that is tried: NaN, such as the correlation with
        results that are all equal, is worse than any number."""
        if self.goal.metric is None:
            return None
        runner.reset_state()
        value = _number(self.goal.metric(runner))
        if np.isfinite(value):
            return value
        if self.reference is None or value == np.inf:
            which = "the float model" if self.reference is None else "a quantized model"
            raise QuantizationError(
                f"metric returned {'NaN' if np.isnan(value) else value} for {which}: it must return a finite number, "
                "higher for a better model"
            )
        return -np.inf


def _stored(sqnr: float) -> float | None:
    """As a JSON value."""
    return None if sqnr == np.inf else sqnr


def _energy(array: np.ndarray) -> float:
    values = np.asarray(array, np.float64).reshape(-1)
    return float(values @ values)


def _number(found: Any) -> float:
    """What a metric returned as a number. Raises QuantizationError."""
    try:
        if isinstance(found, (str, bytes)):
            raise TypeError
        return float(found.item() if hasattr(found, "item") else found)
    except (TypeError, ValueError, RuntimeError):
        shape = getattr(found, "shape", None)
        shown = repr(found) if shape is None else f"{type(found).__name__} of shape {tuple(shape)}"
        if len(shown) > _SHOWN:
            shown = f"{shown[:_SHOWN]} …"
        raise QuantizationError(
            f"metric must return a number, higher for a better model, found {shown}: return one of its values, or "
            "their mean"
        ) from None
