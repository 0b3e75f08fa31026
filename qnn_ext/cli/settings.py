"""The option --set: any field of a QConfig."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import click

from ..quantize.config import QConfig, replace_fields
from .common import target_names

settings_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Set any field of QConfig, with the value as JSON or text: --set nbit_weight=4, --set skip_conv_layers=[0].",
)


def parse_settings(texts: tuple[str, ...]) -> dict[str, Any]:
    """The values of --set FIELD=VALUE by field. Raises click.BadParameter."""
    return dict(map(_setting, texts))


def quantize_settings(texts: tuple[str, ...], target: str) -> QConfig:
    """The configuration for a target, with the values of --set. Raises QuantizationError, click.BadParameter."""
    return replace_fields(QConfig(), {"target": target_names(target)[0], **parse_settings(texts)})


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is not FIELD=VALUE", param_hint="--set")
    if name not in {item.name for item in fields(QConfig)}:
        known = ", ".join(item.name for item in fields(QConfig))
        raise click.BadParameter(f"there is no field {name!r}; the fields are {known}", param_hint="--set")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
