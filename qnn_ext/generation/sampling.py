"""The next token from logits: the likeliest one, or one drawn from the likeliest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import QnnError

_WHOLE = (int, np.integer)
_NUMBER = (int, float, np.integer, np.floating)


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    temperature: 0 takes the likeliest token, of equal ones the first; otherwise tokens are drawn with the probabilities
                 softmax(logits / temperature)
    top_k:       draw among so many of the likeliest; 0 for all
    top_p:       draw among the fewest of the likeliest that together have this probability (nucleus sampling, Holtzman
                 et al., 2020); 1 for all. Applied after top_k
    seed:        of the draws

    Raises QnnError for values out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, kinds in (("temperature", _NUMBER), ("top_k", _WHOLE), ("top_p", _NUMBER), ("seed", _WHOLE)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kinds):
                what = "a whole number" if kinds is _WHOLE else "a number"
                raise QnnError(f"{name} must be {what}, found {value!r}")
        if self.seed < 0:
            raise QnnError(f"seed must be from 0 on, found {self.seed}")
        if not 0 <= self.temperature < np.inf:
            raise QnnError(f"temperature must be a number from 0 on, found {self.temperature}")
        if self.top_k < 0:
            raise QnnError(f"top_k must be from 0 on, found {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise QnnError(f"top_p must be above 0 and at most 1, found {self.top_p}")

    def chooser(self) -> Chooser:
        """What chooses the tokens of one text."""
        return Chooser(self)


class Chooser:
    """Chooses one token after another; two of the same Sampling choose the same."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def choose(self, logits: np.ndarray) -> int:
        """The next token, for logits of shape (vocabulary,). Raises QnnError if they contain NaN."""
        if np.isnan(logits).any():
            raise QnnError("the model's logits contain NaN: its weights or a quantized layer overflow")
        if self._sampling.temperature == 0:
            return int(logits.argmax())
        tokens, probabilities = self.candidates(logits)
        return int(self._random.choice(tokens, p=probabilities))

    def candidates(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The tokens that may be drawn, likeliest first, and their probabilities."""
        sampling = self._sampling
        order = np.argsort(-logits.astype(np.float64), kind="stable")[: sampling.top_k or None]
        values = logits[order].astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):  # ∞ − ∞; low temperatures
            below = np.where(values == values[0], 0.0, values - values[0]) / np.float64(sampling.temperature)
        weights = np.exp(below)
        probabilities = weights / weights.sum()
        if sampling.top_p < 1:
            # a token belongs to them if those before it have less than top_p together
            count = int((np.cumsum(probabilities) - probabilities < sampling.top_p).sum())
            order, probabilities = order[:count], probabilities[:count]
            probabilities = probabilities / probabilities.sum()
        return order, probabilities
