"""Tables that fit the terminal: columns that matter least are left out, and long texts are shortened in the middle."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..running.kernels import Kernel


@dataclass(frozen=True)
class Column:
    """number: aligned to the right and never shortened; drop: the order in which columns are left out, 0 for never."""

    title: str
    number: bool = False
    drop: int = 0


_READABLE = 20  # columns are left out until texts have this many characters
_MOST = 0.5  # the share of texts that must begin with a word for it to be left out
_FRAME = 3  # what a column's border and padding take


def print_table(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print rows of plain text, each on one line. Where the output is no terminal and COLUMNS is not set, everything is
    printed in full, so that programs find it."""
    limited = console.is_terminal or "COLUMNS" in os.environ
    full = [max(map(len, (column.title, *texts))) for column, *texts in zip(columns, *rows, strict=True)]
    widths = _fitted(columns, full, console.width) if limited else full
    if 0 < widths[0] < full[0]:
        rows = [
            (first, *others) for first, (_, *others) in zip(without_beginning([r[0] for r in rows]), rows, strict=True)
        ]
    table = Table(title=title or None, title_justify="left")
    for column, width in zip(columns, widths, strict=True):
        if width:
            table.add_column(shortened(column.title, width), justify="right" if column.number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(escape(shortened(text, width)) for text, width in zip(row, widths, strict=True) if width))
    wide = console if limited else Console(highlight=False, width=sum(widths) + _FRAME * len(widths) + 1)
    wide.print(table)


def _fitted(columns: Sequence[Column], widths: Sequence[int], limit: int) -> list[int]:
    """The width of each column in a table of `limit` characters, 0 for those that are left out."""
    kept = list(range(len(columns)))
    while True:
        texts = sorted((index for index in kept if not columns[index].number), key=lambda index: widths[index])
        room = limit - 1 - _FRAME * len(kept) - sum(widths[index] for index in kept if columns[index].number)
        droppable = [index for index in kept if columns[index].drop]
        if room >= sum(min(widths[index], _READABLE) for index in texts) or not droppable:
            break
        kept.remove(min(droppable, key=lambda index: columns[index].drop))
    found = [widths[index] if index in kept else 0 for index in range(len(columns))]
    for position, index in enumerate(texts):  # the shorter ones first: what they leave goes to the longer ones
        found[index] = max(1, min(widths[index], room // (len(texts) - position)))
        room -= found[index]
    return found


def without_beginning(texts: Sequence[str]) -> Sequence[str]:
    """Texts without the word that most of them begin with, such as the name of the network: it distinguishes none."""
    words = Counter(found[0] for text in texts if (found := re.match(r"[^_/.]{2,}[_/.]", text)))
    if not words:
        return texts
    word, count = words.most_common(1)[0]
    if count < max(3, _MOST * len(texts)):
        return texts
    return [f"…{text.removeprefix(word)}" if text.startswith(word) else text for text in texts]


def shortened(text: str, width: int) -> str:
    """The beginning and the end of a text that is longer than `width`: both distinguish layers, the beginning more."""
    if len(text) <= width:
        return text
    end = width // 3
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def layers_text(kernel: Kernel) -> str:
    """The model's names for all that a kernel computes; the kernel's own if it computes nothing of the model."""
    return " + ".join(kernel.sources or [kernel.layer])
