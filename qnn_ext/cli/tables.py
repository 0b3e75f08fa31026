"""Tables that fit the terminal: columns that matter least are left out, names lose what they have in common, and long
texts are shortened in the middle."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..running.kernels import Kernel
from ..running.names import short_names

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Column:
    """number: aligned to the right and never shortened; drop: the order in which columns are left out, 0 for never."""

    title: str
    number: bool = False
    drop: int = 0


_READABLE = 20  # columns are left out until texts have this many characters
_AND = " + "
_FRAME = 3  # what a column's border and padding take


def print_table(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print rows of plain text, each on one line. Where the output is no terminal and COLUMNS is not set, everything is
    printed in full, so that programs find it."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    limited = console.is_terminal or "COLUMNS" in os.environ
    widths = full = _widths(columns, rows)
    if limited:
        widths = _fitted(columns, full, console.width)
        if 0 < widths[0] < full[0]:
            rows = _briefer(rows)
            widths = _fitted(columns, _widths(columns, rows), console.width)
    table = Table(title=title or None, title_justify="left")
    for column, width in zip(columns, widths, strict=True):
        if width:
            table.add_column(shortened(column.title, width), justify="right" if column.number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(escape(shortened(text, width)) for text, width in zip(row, widths, strict=True) if width))
    wide = console if limited else Console(highlight=False, width=sum(widths) + _FRAME * len(widths) + 1)
    wide.print(table)


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, (column.title, *texts))) for column, *texts in zip(columns, *rows, strict=True)]


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


def _briefer(rows: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Rows whose first texts, names with " + " between, are only as long as it takes to tell the names apart."""
    short = short_names(name for first, *_ in rows for name in first.split(_AND))
    return [(_AND.join(short[name] for name in first.split(_AND)), *others) for first, *others in rows]


def shortened(text: str, width: int) -> str:
    """The beginning and the end of a text that is longer than `width`: both distinguish layers, the beginning more."""
    if len(text) <= width:
        return text
    end = width // 3
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def layers_text(kernel: Kernel) -> str:
    """The model's names for all that a kernel computes; the kernel's own if it computes nothing of the model."""
    return _AND.join(kernel.sources or [kernel.layer])
