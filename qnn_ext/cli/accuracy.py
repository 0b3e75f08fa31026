"""`qnn-ext accuracy`: models in their frameworks, as float builds and as integer builds, on the same labelled data."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..errors import QnnError
from ..evaluation import frameworks
from ..evaluation.comparison import CALIBRATE, SHARES, Accuracy, accuracy
from ..evaluation.memory import split_of
from ..evaluation.metrics import load_metric
from ..module import QnnModule
from ..running.engine import load
from .common import (
    FILE,
    build_options,
    float_option,
    float_version,
    import_model,
    json_option,
    normalize_option,
    out,
    print_json,
    refuse_import_options,
)
from .formats import ImportOptions, find_params, recognize
from .memory import memory_table, split_data
from .settings import quantize_settings, settings_option


@click.command("accuracy")
@click.argument("models", type=FILE, nargs=-1, required=True, metavar="MODEL...")
@click.option(
    "-d",
    "--data",
    type=FILE,
    required=True,
    help="Real (not quantized) values: .npz with an array per input and `labels`, .npy, or a folder of these or of "
    "images, with a sub-folder for each class.",
)
@click.option(
    "--labels",
    type=FILE,
    help="The right answers: a text file with lines `FILE LABEL`, or one LABEL for each sample in order; .npy; .npz. "
    "Default: those of the data.",
)
@click.option(
    "--classes",
    type=FILE,
    help="Text file: line i names class i, counted from 0, for labels that are names or synsets.",
)
@click.option(
    "--label-offset",
    type=int,
    default=0,
    show_default=True,
    help="Added to labels that are numbers: 1 for models whose class 0 is the background.",
)
@click.option(
    "--metric",
    metavar="MODULE:FUNCTION",
    help="Measure with this function instead of top-1 and top-5, or FILE.py:FUNCTION: it gets all outputs and all "
    "labels as arrays and returns a number, or a dict of them. Runs the file.",
)
@float_option
@click.option("--calibration", type=FILE, help="Data to calibrate float models on. Default: the first of --data.")
@click.option(
    "--calibrate",
    type=click.IntRange(1),
    default=CALIBRATE,
    show_default=True,
    help="Number of samples to calibrate on.",
)
@settings_option
@click.option(
    "--framework/--no-framework",
    "with_framework",
    default=True,
    show_default=True,
    help="Run the model files in their own runtimes too: only files you trust.",
)
@click.option("--samples", type=click.IntRange(1), help="Number of samples to run. Default: all.")
@normalize_option("How pixels of images are converted to input values.")
@build_options
@json_option
def accuracy_(
    models: tuple[Path, ...],
    float_file: Path | None,
    metric: str | None,
    settings: tuple[str, ...],
    with_framework: bool,
    samples: int | None,
    target: str,
    threads: int | None,
    importing: ImportOptions,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure top-1 and top-5 of each MODEL in its framework, as a float build and as an 8-bit build, side by side.

    A float MODEL is built as it is and quantized; a quantized one is built as it is, and --float names its float
    version. Below that: on how many samples a build agrees with the framework, and the memory that weights and feature
    maps take in float32 and in 8 bits. A .qnn file is run as it is.

    \b
    Examples:
      qnn-ext accuracy float.onnx --data photos/
      qnn-ext accuracy mobilenet.tflite --data photos/ --classes synsets.txt --label-offset 1
      qnn-ext accuracy quantized.onnx --float float.onnx --data test.npz
      qnn-ext accuracy a.onnx b.onnx --data test.npz --calibration training.npz --samples 1000
      qnn-ext accuracy segmentation.onnx --data test/ --metric metrics.py:mean_iou
    """
    if "," in target:
        raise QnnError(f"accuracy takes one target, this machine's, found {target!r}; `qnn-ext memory` takes several")
    function = None if metric is None else load_metric(metric)
    floating = float_version(float_file, models, importing)
    config = quantize_settings(settings, target)
    results = []
    for path in models:
        form = recognize(path)
        if form == "qnn":
            refuse_import_options(path, importing)
        model = load(path, num_threads=threads) if form == "qnn" else import_model(path, form, importing)
        found = accuracy(
            model,
            metric=function,
            framework=_framework(path, form, importing) if with_framework else None,
            float_model=floating,
            qconfig=config,
            target=target,
            num_threads=threads,
            limit=samples,
            progress=not as_json and Console(stderr=True).is_terminal,
            **options,
        )
        found = replace(found, model=str(path))
        engines = found.engines
        split = split_of(model, engines["int8"], engines.get("float")) if isinstance(model, QnnModule) else None
        results.append((found, split))
    splits = [split for _, split in results if split is not None]
    if as_json:
        print_json({"models": [_data(found) for found, _ in results], "memory": list(map(split_data, splits))})
        return
    for found, _ in results:
        _print(out(), found)
    if splits:
        out().print(memory_table(splits))


def _framework(path: Path, form: str, importing: ImportOptions) -> frameworks.Framework | None:
    """The runtime of a file; None for a compiled one."""
    if form == "tflite":
        return frameworks.litert(path, importing.numerics == "tflite", importing.signature)
    if form == "onnx":
        return frameworks.onnx_runtime(path)
    if form in ("pt2", "torchscript"):
        return frameworks.pytorch(path, importing.engine, exported=form == "pt2")
    if form == "mxnet":
        return frameworks.mxnet(path, importing.params or find_params(path))
    return None


def _data(found: Accuracy) -> dict[str, Any]:
    columns = [{**asdict(column), "missing": column.missing or None} for column in found.columns]
    return {
        "model": found.model,
        "samples": found.samples,
        "calibrated": found.calibrated or None,
        "columns": columns,
    }


def _print(console: Console, found: Accuracy) -> None:
    title = f"{Path(found.model).name}: {found.samples} samples"
    if found.calibrated:
        title += f", calibrated on {found.calibrated}"
    table = Table(title=escape(title), title_justify="left")
    table.add_column("")
    for column in found.columns:
        table.add_column(column.title, justify="right")
    for name, values in found.rows():
        table.add_row(escape(name), *("" if value is None else _figure(name, value) for value in values))
    console.print(table)
    for column in found.columns:
        if column.missing:
            console.print(f"{column.title}: {column.missing}", markup=False)


def _figure(name: str, value: float) -> str:
    """Shares as percentages, a metric of the user's own as it is."""
    return f"{100 * value:.2f} %" if name in SHARES else f"{value:.6g}"
