"""Pages that are made of other files: the reference, the tutorials, and the documents at the root of the repository."""

from __future__ import annotations

import inspect
import os
import re
import textwrap
from pathlib import Path

import click

from qnn_ext import op
from qnn_ext.cli.commands import COMMANDS, cli
from qnn_ext.files.storage import write_text

from . import reference, tutorials

ROOT = Path(__file__).parents[2]

DOCUMENTS = {  # a file of the repository -> its page
    "ARCHITECTURE.md": "architecture",
    "CHANGELOG.md": "changelog",
    "CONTRIBUTING.md": "contributing",
    "MIGRATION.md": "migration",
    "OPERATORS.md": "reference/converters",
    "SECURITY.md": "security",
    "benchmarks/RESULTS.md": "measurements",
    "tests/conformance/RESULTS.md": "reference/conformance",
}

MODULES = {  # a public module -> the title of its page
    "qnn_ext": "qnn_ext",
    "qnn_ext.quantize": "qnn_ext.quantize: post-training quantization",
    "qnn_ext.autotune": "qnn_ext.autotune: tuning",
    "qnn_ext.evaluation": "qnn_ext.evaluation: accuracy and memory",
    "qnn_ext.report": "qnn_ext.report: one page per model",
    "qnn_ext.qat": "qnn_ext.qat: quantization-aware training",
    "qnn_ext.plugins": "qnn_ext.plugins",
    "qnn_ext.images": "qnn_ext.images",
}


def write_pages(folder: Path) -> None:
    """Write all of them into `folder`, a copy of docs/."""
    for script in tutorials.scripts():
        _write(folder / "tutorials" / f"{script.stem}.ipynb", tutorials.notebook(script))
    for source, page in DOCUMENTS.items():
        _write(folder / f"{page}.md", relinked((ROOT / source).read_text(encoding="utf-8"), source, page))
    for module, title in MODULES.items():
        _write(folder / "reference" / "api" / f"{module}.md", reference.module_page(module, title))
    _write(folder / "reference" / "dialect.md", _dialect())
    _write(folder / "reference" / "cli.md", _commands())


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


def relinked(text: str, source: str, page: str) -> str:
    """`text` of the file `source` with its links turned to pages; links to files that have none become their names."""

    def replace(found: re.Match[str]) -> str:
        label, link, anchor = found.groups()
        target = Path(os.path.normpath(Path(source).parent / link))
        if str(target) in DOCUMENTS:
            goal = f"{DOCUMENTS[str(target)]}.md"
        elif ROOT / target in tutorials.scripts():
            goal = f"tutorials/{target.stem}.ipynb"
        else:
            return f"`{target}`"
        return f"[{label}]({os.path.relpath(goal, Path(page).parent)}{anchor or ''})"

    return re.sub(r"\[([^\]\n]+)\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)", replace, text)


def _dialect() -> str:
    """The operators of R.qnn."""
    head = """# Operators of the dialect

Each is written `R.qnn.<name>(…)` in TVMScript, and built in Python by `qnn_ext.op.<name>(…)`. A quantized value q with
scale s and zero point z stands for s · (q − z).
"""
    return head + "\n".join(reference.entry(name, getattr(op, name)) for name in op.__all__ if name in op.OPS)


def _commands() -> str:
    """Every command with its options."""
    blocks = [f"# Command line\n\n{cli.help and cli.help.split(chr(10))[0]} Exit codes: {EXIT_CODES}"]
    context = click.Context(cli, info_name="qnn-ext")
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        blocks.append(_command(command, click.Context(command, parent=context, info_name=name)))
    return "\n\n".join(blocks) + "\n"


EXIT_CODES = (
    "0 done, 1 an error (one line on stderr), 2 wrong usage, 128 + a signal's number: 130 interrupted, 143 terminated, "
    "141 the reader of the output is gone."
)


def _command(command: click.Command, context: click.Context) -> str:
    """One command: its usage, its help, its options as a table; sub-commands below."""
    text, _, examples = inspect.cleandoc(command.help or "").partition("\b\nExamples:\n")
    if examples:
        text += f"```text\n{textwrap.dedent(examples)}\n```"
    parts = [f"## {context.command_path}", f"```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```", text]
    options = [parameter for parameter in command.get_params(context) if isinstance(parameter, click.Option)]
    records = [record for option in options if (record := option.get_help_record(context))]
    rows = [f"| `{_cell(names)}` | {_cell(meaning)} |" for names, meaning in records]
    parts.append("\n".join(["| option | meaning |", "|---|---|", *rows]))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            parts.append(_command(below, click.Context(below, parent=context, info_name=name)))
    return "\n\n".join(parts)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
