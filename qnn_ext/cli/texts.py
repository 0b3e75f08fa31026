"""Texts that a language model is measured on: a file with one on each line, as words for a tokenizer or as tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import InputError
from ..generation import LanguageModel, load_tokenizer, perplexity
from ..quantize.judge import Metric
from ..running.engine import Engine


def read_texts(path: Path, tokenizer: Path | None) -> list[list[int]]:
    """The tokens of each line that is not empty.

    tokenizer: as `load_tokenizer` takes it; None: lines are tokens, such as '1 403 407'

    Raises QnnError if a file cannot be read, InputError for lines that are no tokens, and if there is no line.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: no text in UTF-8: {error}") from error
    if not lines:
        raise InputError(f"{path} has no text: write one on each line")
    if tokenizer is not None:
        return list(map(load_tokenizer(tokenizer).encode, lines))
    try:
        return [[int(word) for word in line.replace(",", " ").split()] for line in lines]
    except ValueError:
        raise InputError(
            f"{path}: without a tokenizer each line must be tokens, such as '1 403 407': give --tokenizer FILE"
        ) from None


def perplexities(texts: list[list[int]], before: Engine, after: Engine) -> dict[str, float]:
    """Of a float model, and of what it was quantized to. Raises QnnError if they are no language models, InputError for
    texts that do not fit them."""
    return {"before": perplexity(LanguageModel(before), texts), "after": perplexity(LanguageModel(after), texts)}


def fluency(texts: list[list[int]]) -> Metric:
    """Minus the perplexity on these texts, as a metric: higher for a better model."""

    def metric(model: Any) -> float:
        if not isinstance(model, Engine):
            raise InputError(
                "--perplexity measures models that take tokens one by one and keep their cache in states; this model "
                "has no states"
            )
        return -perplexity(LanguageModel(model), texts)

    return metric
