"""Tutorials as notebooks, which the site executes: their comments are the text, and what they print stands below.

A tutorial is a script. Its docstring and the comments that stand by themselves are Markdown; a comment `1. Import. …`
starts a section. Jupytext divides it into cells.
"""

from __future__ import annotations

import ast
import re
import textwrap
from itertools import groupby
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

FOLDER = Path(__file__).parents[2] / "tutorials"
AS_SCRIPT = """\
import asyncio
import concurrent.futures
import os
import sys
from pathlib import Path

os.environ.pop("FORCE_COLOR", None)  # Jupyter asks for colours, which a page would show as escape sequences
os.environ["COLUMNS"] = "100"
__file__ = {path!r}
sys.path.insert(0, str(Path(__file__).parent))
run_loop = asyncio.run  # a notebook has a loop of its own, and asyncio allows one in each thread
asyncio.run = lambda main: concurrent.futures.ThreadPoolExecutor(1).submit(run_loop, main).result()
"""  # what is true for a script


def scripts() -> list[Path]:
    """The tutorials in order."""
    return sorted(FOLDER.glob("[0-9]*.py"))


def notebook(script: Path) -> str:
    """The tutorial as a notebook that has not been executed, in JSON."""
    source = script.read_text(encoding="utf-8")
    docstring = ast.parse(source).body[0]
    assert docstring.end_lineno is not None
    code = jupytext.reads("\n".join(source.splitlines()[docstring.end_lineno :]) + "\n", fmt="py:light")
    text = ast.get_docstring(ast.parse(source)) or ""
    introduction = text.split("\n\n", 2)[2:]  # after the title and the command
    made = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_markdown_cell("\n\n".join([f"# {_title(script, text)}", *introduction])),
            nbformat.v4.new_code_cell(AS_SCRIPT.format(path=str(script)), metadata={"tags": ["remove-cell"]}),
            *(_joined(kind, list(group)) for kind, group in groupby(code.cells, lambda cell: cell.cell_type)),
        ],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )
    for number, cell in enumerate(made.cells):
        cell.id = f"cell-{number}"
    return nbformat.writes(made)


def _title(script: Path, docstring: str) -> str:
    """What the tutorial says it is about: the first sentence of its docstring, without its number."""
    head = " ".join(docstring.split("\n\n")[0].split())
    found = re.match(r"Tutorial \d+: (.+?)\.?$", head)
    if found is None:
        raise ValueError(f"{script.name}: the docstring must start with `Tutorial N: …`, found {head!r}")
    return found[1][0].upper() + found[1][1:]


def _joined(kind: str, group: list[NotebookNode]) -> NotebookNode:
    """Cells that follow each other as one: Jupytext starts a new one at each empty line."""
    if kind == "code":
        return nbformat.v4.new_code_cell("\n\n".join(cell.source for cell in group))
    return nbformat.v4.new_markdown_cell("\n\n".join(_section(cell.source) for cell in group))


def _section(text: str) -> str:
    """`1. Import. The file …` as a heading and a paragraph."""
    numbered = re.match(r"(\d+)\. (.+?)[.:](?:\s+(.*))?$", text, re.DOTALL)
    if numbered is None:
        return text
    number, head, rest = numbered[1], " ".join(numbered[2].split()), textwrap.dedent("   " + (numbered[3] or ""))
    return f"## {number}. {head}\n\n{rest[:1].upper()}{rest[1:]}"
