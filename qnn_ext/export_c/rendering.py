"""Fills the templates of a C library's sources."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from .interface import c_string

_TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, context: Mapping[str, Any]) -> str:
    """The text of a template."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["c"] = c_string
    environment.filters["py"] = repr
    environment.filters["place"] = lambda where: where.place
    return environment.get_template(f"{template}.jinja").render(context)
