"""The page: one HTML file with everything in it, so that it can be opened without a network and sent to somebody."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from .. import __version__
from ..files.storage import write_text
from .graph import Json

_TEMPLATES = Path(__file__).parent / "templates"
_SCRIPTS = ("dagre.min.js", "tools.js", "layout.js", "overview.js", "graph.js", "charts.js", "page.js")


def render(reports: Sequence[Json], title: str) -> str:
    """The page of one or more models side by side, as `collect.model_report` describes them."""
    environment = Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("page.html").render(
        title=title,
        version=__version__,
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        css=_read("page.css"),
        data=embedded({"models": list(reports)}),
        scripts=[_read(name) for name in _SCRIPTS],
    )


def write_page(path: str | os.PathLike, reports: Sequence[Json], title: str) -> None:
    """Write the page. Raises QnnError if the file cannot be written."""
    write_text(path, render(reports, title))


def embedded(data: Any) -> str:
    """JSON that may stand inside a <script> element, whatever names a model's tensors have. Infinities and NaN become
    null."""
    text = json.dumps(_finite(data), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def _read(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")
