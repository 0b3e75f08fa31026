"""Generating: a prompt through the model, then one token after another."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from ..errors import InputError
from .language_model import LanguageModel, check_model, whole_tokens
from .sampling import Sampling


@dataclass
class Generated:
    """How generating went so far.

    prompt:  how many tokens the prompt has
    tokens:  those generated, without one that ends the text
    prefill: seconds for the prompt
    first:   seconds until the first token was there
    decode:  seconds for the tokens after the first, without what the caller does with them
    """

    prompt: int = 0
    tokens: list[int] = field(default_factory=list)
    prefill: float = 0.0
    first: float = 0.0
    decode: float = 0.0

    @property
    def prefill_rate(self) -> float:
        """Tokens of the prompt a second."""
        return self.prompt / self.prefill if self.prefill else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens generated a second, after the first."""
        return (len(self.tokens) - 1) / self.decode if self.decode and len(self.tokens) > 1 else 0.0


def generate(
    model: LanguageModel,
    prompt: Sequence[int],
    most: int,
    sampling: Sampling | None = None,
    ends: Collection[int] = (),
    progress: Generated | None = None,
) -> Iterator[int]:
    """The tokens that continue a prompt, as they are generated.

    model:    goes on from the tokens that its cache holds; call `reset` first for a new text
    most:     how many at most
    sampling: greedy unless given
    ends:     tokens that end the text and are not part of it
    progress: is kept up to date

    Raises InputError for an empty prompt, a token beyond the vocabulary or a position beyond the cache, for `most` and
    `ends` that are no whole numbers, and for a model, sampling or progress of another type.
    """
    check_model(model)
    if progress is not None and not isinstance(progress, Generated):
        raise InputError(f"progress must be a Generated, found {type(progress).__name__}")
    if isinstance(most, bool) or not hasattr(most, "__index__"):
        raise InputError(f"most must be a whole number of tokens, found {most!r}")
    if sampling is not None and not isinstance(sampling, Sampling):
        raise InputError(f"sampling must be a Sampling, found {type(sampling).__name__}: use Sampling(temperature=…)")
    prompt, ends = whole_tokens(prompt), set(whole_tokens(ends))
    progress = Generated() if progress is None else progress
    chooser = (sampling or Sampling()).chooser()
    started = time.perf_counter()
    logits = model.logits(prompt)
    progress.prompt, progress.prefill = len(prompt), time.perf_counter() - started
    for index in range(most):
        token = chooser.choose(logits)
        seconds = time.perf_counter() - started
        if index == 0:
            progress.first = seconds
        else:
            progress.decode += seconds
        if token in ends:
            return
        progress.tokens.append(token)
        yield token
        if index + 1 < most:
            started = time.perf_counter()
            logits = model.logits([token])
