"""Perplexity: how well a language model predicts texts, for comparing quantized models with the float one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from ..errors import InputError
from .language_model import LanguageModel, check_model, whole_tokens


def perplexity(model: LanguageModel, texts: Sequence[Sequence[int]]) -> float:
    """exp(−mean log p(token | tokens before it)) over all tokens but the first of each text; inf if the model gives one
    of them no probability, nan if its logits are.

    texts: tokens; each text begins with an empty cache, and has to fit it

    Raises InputError if no text has two tokens, for a token beyond the vocabulary or a position beyond the cache, and
    for what is no model or no list of texts.
    """
    check_model(model)
    if not isinstance(texts, Iterable):
        raise InputError(f"texts must be lists of tokens in a list, found {type(texts).__name__}")
    losses = [loss for text in texts for loss in _losses(model, whole_tokens(text))]
    if not losses:
        raise InputError("perplexity needs a text of at least two tokens: each is predicted from those before it")
    with np.errstate(over="ignore"):
        return float(np.exp(np.mean(losses)))


def _losses(model: LanguageModel, text: Sequence[int]) -> list[float]:
    """−log p of each token but the first."""
    model.reset()
    return [_loss(model.logits([before]), token) for before, token in pairwise(text)]


def _loss(logits: np.ndarray, token: int) -> float:
    if not 0 <= token < logits.size:
        raise InputError(f"token {token} is beyond the vocabulary of {logits.size} tokens")
    values = logits.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        shifted = values - values.max()
        return float(np.log(np.exp(shifted).sum()) - shifted[token])
