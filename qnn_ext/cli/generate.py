"""`qnn-ext generate`: a prompt in, text out, as it is generated."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ..errors import InputError
from ..generation import Generated, LanguageModel, Sampling, Tokenizer, generate, load_tokenizer
from .common import (
    FILE,
    build_options,
    bytes_text,
    cache_dtype_option,
    json_option,
    memory_text,
    open_engine,
    out,
    print_json,
    verify_option,
)

_BESIDE = ("tokenizer.json", "tokenizer.model")


@click.command("generate")
@click.argument("model", type=FILE)
@click.option("-p", "--prompt", required=True, help="The text to continue; without a tokenizer, tokens: '1 403 407'.")
@click.option(
    "--tokenizer",
    type=FILE,
    help="tokenizer.json, or a file of SentencePiece. Default: tokenizer.json or tokenizer.model beside MODEL.",
)
@click.option(
    "--prefill",
    "chunks",
    type=FILE,
    multiple=True,
    metavar="MODEL",
    help="The same model for several tokens at once, which takes the prompt, if MODEL does not have that beside it "
    "(`qnn-ext compile --also`). Repeatable.",
)
@click.option("-n", "--tokens", "most", type=click.IntRange(1), default=200, show_default=True, help="Most tokens.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 takes the likeliest token.")
@click.option("--top-k", type=int, default=0, help="Draw among so many of the likeliest tokens. Default: all.")
@click.option("--top-p", type=float, default=1.0, help="Draw among the likeliest with this probability. Default: 1.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the draws.")
@cache_dtype_option
@verify_option
@build_options
@json_option
def generate_(
    model: Path,
    prompt: str,
    tokenizer: Path | None,
    chunks: tuple[Path, ...],
    most: int,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Continue a text with MODEL (.qnn, or a model file, which is compiled first), and show how fast that is.

    The model takes tokens, and may take their positions and a mask; it returns logits and keeps its cache in states: a
    program of torch.export in its buffers, an ONNX model in inputs given by --state.

    \b
    Examples:
      qnn-ext generate stories.qnn --tokenizer tokenizer.model --prompt 'Once upon a time'
      qnn-ext generate stories.qnn -p 'Lily went' --temperature 0.8 --top-p 0.9
    """
    sampling = Sampling(temperature, top_k, top_p, seed)
    known = _tokenizer(model, tokenizer)
    tokens = known.encode(prompt) if known else _numbers(prompt)
    engines = [open_engine(path, **options) for path in (model, *chunks)]
    language_model = LanguageModel(engines)
    for engine in language_model.engines:
        engine.prepare()
    progress = Generated()
    text = "" if as_json else _shown(prompt)
    stream = known.stream(tokens) if known else None
    try:
        for token in generate(language_model, tokens, most, sampling, known.ends if known else (), progress):
            piece = stream.add(token) if stream else f" {token}"
            text = f"{text}{piece}" if as_json else _shown(piece)
    finally:  # what follows, an error too, has lines of its own
        if not as_json:
            click.echo()
    states = sum(state.initial.nbytes for state in engines[0].states)
    if as_json:
        memory = [asdict(engine.memory) for engine in engines]
        rates = {"prefill_rate": progress.prefill_rate, "decode_rate": progress.decode_rate}
        print_json({"model": str(model), "text": text, **asdict(progress), **rates, "states": states, "memory": memory})
        return
    console = out(aside=True)
    console.print(
        f"prefill {progress.prompt} tokens, {progress.prefill_rate:.1f} a second; first token after "
        f"{progress.first * 1e3:.1f} ms"
    )
    console.print(f"decode {len(progress.tokens)} tokens, {progress.decode_rate:.1f} a second")
    for engine in engines:
        console.print(f"{memory_text(engine.memory)}, of them states {bytes_text(states)}")


def _shown(text: str) -> str:
    click.echo(text, nl=False)
    return text


def _tokenizer(model: Path, path: Path | None) -> Tokenizer | None:
    if path is None:
        path = next((beside for name in _BESIDE if (beside := model.parent / name).is_file()), None)
    return None if path is None else load_tokenizer(path)


def _numbers(prompt: str) -> list[int]:
    try:
        return [int(word) for word in prompt.replace(",", " ").split()]
    except ValueError:
        raise InputError(
            "without a tokenizer the prompt must be tokens, such as '1 403 407': give --tokenizer FILE, tokenizer.json "
            "or a file of SentencePiece"
        ) from None
