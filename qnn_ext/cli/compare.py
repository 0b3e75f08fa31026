"""`qnn-ext compare`: two builds of a model, or two model files, compared on the same data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..errors import QnnError
from ..quantize.compare import Comparison, Model, compare, random_batches
from ..quantize.dataset import ImageFolder
from ..quantize.report import decibel
from ..running.engine import load
from .common import (
    FILE,
    import_model,
    import_options,
    json_option,
    normalize_option,
    out,
    print_json,
    verify_option,
)
from .formats import ImportOptions, recognize
from .progress import step


@click.command("compare")
@click.argument("one", type=FILE)
@click.argument("two", type=FILE)
@click.option(
    "-d",
    "--data",
    type=FILE,
    help="Real (not quantized) values for the inputs: .npz, .npy, or a folder of these or of images. Default: random "
    "values.",
)
@normalize_option("How pixels of images are converted to input values.")
@click.option("--samples", type=click.IntRange(1), default=64, show_default=True, help="Number of batches to run.")
@verify_option
@import_options
@json_option
def compare_(
    one: Path,
    two: Path,
    data: Path | None,
    normalize: str,
    samples: int,
    verify: Path | None,
    importing: ImportOptions,
    as_json: bool,
) -> None:
    """Run ONE and TWO on the same data and show how far TWO is from ONE, in real values.

    ONE and TWO are .qnn files or model files of any format; with --verify, every .qnn file must be signed. Inner
    tensors are compared if both are model files and use the same names for them.

    \b
    Examples:
      qnn-ext compare model.onnx model.qnn --data held_out.npz
      qnn-ext compare float.onnx quantized.onnx --data photos/
      qnn-ext compare old.qnn new.qnn
    """
    forms = recognize(one), recognize(two)
    if verify is not None and "qnn" not in forms:
        raise QnnError(
            f"neither {one} nor {two} is a compiled .qnn file, and only those are signed: leave out --verify"
        )
    first, second = _open(one, forms[0], verify, importing), _open(two, forms[1], verify, importing)
    source: Any = random_batches(first, samples) if data is None else data
    if data is not None and normalize != "auto":
        source = ImageFolder(data, normalize)
    with step(f"comparing {one.name} and {two.name}"):
        found = compare(first, second, source, samples)
    if as_json:
        print_json({"one": str(one), "two": str(two), "random_data": data is None, **asdict(found)})
        return
    console = out()
    what = "random values" if data is None else str(data)
    console.print(
        f"{two} against {one}: {found.samples} batch{'' if found.samples == 1 else 'es'} of {what}",
        markup=False,
        soft_wrap=True,
    )
    _print(console, found)


def _open(path: Path, form: str, verify: Path | None, importing: ImportOptions) -> Model:
    return load(path, verify=verify) if form == "qnn" else import_model(path, form, importing)


def _print(console: Console, found: Comparison) -> None:
    table = Table()
    table.add_column("output", overflow="fold")
    for header in ("SQNR", "cosine", "largest error", "equal values", "same answer"):
        table.add_column(header, justify="right")
    for name, output in found.outputs.items():
        same = "" if output.same_answer is None else f"{100 * output.same_answer:.2f} %"
        fidelity = output.fidelity
        table.add_row(
            escape(name),
            decibel(fidelity.sqnr),
            f"{fidelity.cosine:.6f}",
            f"{fidelity.largest:.4g}",
            f"{100 * output.equal:.2f} %",
            same,
        )
    console.print(table)
    if not found.tensors:
        return
    inner = Table(title="tensors that both models have", title_justify="left")
    inner.add_column("tensor", overflow="fold")
    for header in ("SQNR", "cosine", "largest error"):
        inner.add_column(header, justify="right")
    for name, fidelity in found.tensors.items():
        inner.add_row(escape(name), decibel(fidelity.sqnr), f"{fidelity.cosine:.6f}", f"{fidelity.largest:.4g}")
    console.print(inner)
