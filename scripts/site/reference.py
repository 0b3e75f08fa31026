"""Public names as entries of Sphinx's Python domain, with their docstrings as Markdown.

Docstrings of this project are plain text: paragraphs, and lines `name: what it is` whose continuations are indented,
which become a list here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

_ARGUMENT = re.compile(r"^((?:\*{0,2}\w+)(?:, (?:\*{0,2}\w+))*):\s+(\S.*)$")


def module_page(name: str, title: str) -> str:
    """The public names of a module, in alphabetical order."""
    module = import_module(name)
    public = getattr(module, "__all__", None) or [
        key for key, value in vars(module).items() if getattr(value, "__module__", "") == name and key[0] != "_"
    ]
    head = [f"# {title}", f"```{{py:currentmodule}} {name}\n```", _about(module)]
    entries = [
        entry(key, getattr(module, key))
        for key in sorted(public, key=str.lower)
        if not isinstance(getattr(module, key), ModuleType)
    ]
    return "\n\n".join(head + entries) + "\n"


def _about(module: ModuleType) -> str:
    """A module's docstring without the name that it starts with."""
    text = re.sub(r"^[\w., ]+: ", "", inspect.getdoc(module) or "")
    return markdown(text[:1].upper() + text[1:])


def entry(name: str, value: Any) -> str:
    """A heading and the entry below it."""
    body = _class(name, value) if inspect.isclass(value) else _function("py:function", name, value)
    return f"## {name}\n\n{body}\n"


def _function(directive: str, name: str, value: Any) -> str:
    if not callable(value):
        return _directive("py:data", name, f"`{type(value).__name__}`", [])
    return _directive(directive, f"{name}{signature(value)}", inspect.getdoc(value) or "", [])


def _class(name: str, value: type) -> str:
    """A class with what it defines in public."""
    members = []
    for key, member in vars(value).items():
        if key.startswith("_"):
            continue
        if isinstance(member, property):
            members.append(_directive("py:property", key, inspect.getdoc(member) or "", []))
        elif isinstance(member, classmethod | staticmethod):
            kind = f":{type(member).__name__}:"
            members.append(
                _directive("py:method", f"{key}{signature(getattr(value, key))}", inspect.getdoc(member) or "", [kind])
            )
        elif inspect.isfunction(member):
            members.append(_function("py:method", key, member))
    head = name if issubclass(value, Exception) else f"{name}{signature(value)}"
    kind = "py:exception" if issubclass(value, Exception) else "py:class"
    text = inspect.getdoc(value) or ""
    if text.startswith(f"{name}("):  # made by `dataclass`
        text = ""
    return _directive(kind, head, "\n\n".join([markdown(text), *members]), [], made=True)


def _directive(kind: str, head: str, text: str, options: list[str], made: bool = False) -> str:
    """A directive whose fence is longer than those within it."""
    body = text if made else markdown(text)
    fence = ":" * max(3, *(len(found) + 1 for found in re.findall(r"^:{3,}", body, re.MULTILINE)), 3)
    return "\n".join([f"{fence}{{{kind}}} {head}", *options, "", body, fence])


def signature(value: Callable[..., Any]) -> str:
    """`(a: int, b=1) -> str`, without `self`; defaults that are objects are left out as `...`."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):  # built in
        return "()"
    parameters = [
        parameter.replace(annotation=_shown(parameter.annotation), default=_default(parameter.default))
        for name, parameter in found.parameters.items()
        if name not in ("self", "cls")
    ]
    return str(found.replace(parameters=parameters, return_annotation=_shown(found.return_annotation)))


class _Verbatim:
    """Text that `repr` shows without quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _shown(annotation: Any) -> Any:
    return _Verbatim(annotation) if isinstance(annotation, str) else annotation


def _default(value: Any) -> Any:
    plain = value is inspect.Parameter.empty or isinstance(value, bool | int | float | str | tuple | None)
    return value if plain else _Verbatim("...")


def markdown(text: str) -> str:
    """A docstring with its lines of arguments as a list."""
    lines: list[str] = []
    listed = False
    for line in text.splitlines():
        if argument := _ARGUMENT.match(line):
            if not listed:
                lines.append("")
            names = ", ".join(f"`{name.strip()}`" for name in argument[1].split(","))
            lines.append(f"- {names}: {argument[2]}")
            listed = True
        elif listed and line.startswith(" "):
            lines.append(f"  {line.strip()}")
        else:
            block = line.startswith("    ") and lines and lines[-1] and not lines[-1].startswith("    ")
            if line and (listed or block):  # an indented block after a line of text is code only behind an empty line
                lines.append("")
            listed = listed and not line
            lines.append(line)
    return "\n".join(lines)
