"""Text to tokens and back, by the libraries that made the tokenizers: `tokenizers` for tokenizer.json, `sentencepiece`
for tokenizer.model. Both come with the extra `llm`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import QnnError

_ENDS = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|im_end|>", "<|end|>", "<eos>", "<end_of_turn>")
_UNFINISHED = "\ufffd"  # what libraries decode the first bytes of a character as


@dataclass(frozen=True)
class Tokenizer:
    """encode: text -> tokens, with the one that begins a text; decode: tokens -> text; ends: tokens that end a text"""

    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    ends: frozenset[int]

    def stream(self, tokens: Sequence[int]) -> Stream:
        """What decodes the tokens that come after these, one by one."""
        return Stream(self, list(tokens))


@dataclass
class Stream:
    """Decodes tokens as they come: a character is shown once all of its bytes are there."""

    tokenizer: Tokenizer
    tokens: list[int]
    _start: int = field(init=False)
    _shown: int = field(init=False)

    def __post_init__(self) -> None:
        self._start, self._shown = max(0, len(self.tokens) - 1), len(self.tokens)

    def add(self, token: int) -> str:
        """The text that another token adds. It is decoded together with those before it, as spaces depend on them."""
        self.tokens.append(token)
        before = self.tokenizer.decode(self.tokens[self._start : self._shown])
        now = self.tokenizer.decode(self.tokens[self._start :])
        if now.endswith(_UNFINISHED):
            return ""
        self._start, self._shown = self._shown, len(self.tokens)
        return now[len(before) :]


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in a file: JSON for the library `tokenizers`, anything else for `sentencepiece`.

    Raises QnnError if the file cannot be read or the library is not installed.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise QnnError(f"{path}: cannot be read: {error.strerror or error}") from error
    load, library = (_of_json, "tokenizers") if content[:1] == b"{" else (_of_pieces, "sentencepiece")
    try:
        module = import_module(library)
    except ImportError:
        raise QnnError(f"{path} is a tokenizer for the library {library}: pip install 'qnn-ext[llm]'") from None
    try:
        return load(module, content)
    except Exception as error:  # what the libraries raise has no common type
        raise QnnError(f"{path}: no tokenizer that {library} can read: {error}") from error


def _of_json(module: Any, content: bytes) -> Tokenizer:
    library = module.Tokenizer.from_str(content.decode())
    ends = frozenset(token for token in map(library.token_to_id, _ENDS) if token is not None)
    return Tokenizer(lambda text: library.encode(text).ids, lambda tokens: library.decode(list(tokens)), ends)


def _of_pieces(module: Any, content: bytes) -> Tokenizer:
    """The token that begins a text ends one, too: models trained on texts in a row write it there."""
    library = module.SentencePieceProcessor(model_proto=content)
    if not library.get_piece_size():
        raise ValueError("it has no pieces")
    begin = library.bos_id()
    ends = frozenset(token for token in (begin, library.eos_id()) if token >= 0)
    first = [begin] if begin >= 0 else []
    return Tokenizer(lambda text: first + library.encode(text), lambda tokens: library.decode(list(tokens)), ends)
