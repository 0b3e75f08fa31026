"""`qnn-ext cache`: the builds that are kept on disk."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ..errors import QnnError
from ..files.cache import FOLDER, OFF, Cache, Entry, default_folder
from .common import bytes_text, json_option, out, print_json


@click.group()
def cache() -> None:
    """Show or clear the cache, which makes the second build of a model quick.

    It is in the folder that the environment variable QNN_EXT_CACHE names, otherwise in ~/.cache/qnn_ext. With
    QNN_EXT_CACHE=off nothing is kept.
    """


@cache.command()
@json_option
def info(as_json: bool) -> None:
    """Show its folder and how much space it takes."""
    kept = _cache()
    entries = kept.entries()
    if as_json:
        total = sum(entry.bytes for entry in entries)
        print_json({"folder": str(kept.folder), "entries": len(entries), "bytes": total, "most": kept.most})
        return
    out().print(f"{kept.folder}: {_summary(entries)} of at most {bytes_text(kept.most)}", markup=False)


@cache.command()
def clear() -> None:
    """Remove all that is kept."""
    kept = _cache()
    out().print(f"{kept.folder}: removed {_summary(kept.clear())}", markup=False)


@cache.command()
def path() -> None:
    """Print its folder."""
    click.echo(_cache().folder)


def _cache() -> Cache:
    folder = default_folder()
    if folder is None:
        raise QnnError(f"there is no cache: the environment variable {FOLDER} is {OFF!r}, or there is no home folder")
    return Cache(folder)


def _summary(entries: Sequence[Entry]) -> str:
    total = sum(entry.bytes for entry in entries)
    return f"{len(entries)} {'entry' if len(entries) == 1 else 'entries'}, {bytes_text(total)}"
