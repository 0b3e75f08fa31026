"""`qnn-ext report`: one page about a model, or about several side by side, in a single HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..errors import QnnError
from ..module import QnnModule
from ..report import Request, model_report, write_page
from ..running.engine import Engine, load
from .common import (
    FILE,
    build_options,
    bytes_text,
    float_option,
    float_version,
    import_model,
    normalize_option,
    out,
    refuse_import_options,
    refuse_target,
    refuse_verify,
    target_names,
    verify_option,
)
from .formats import ImportOptions, recognize
from .outputs import STANDARD_OUTPUT, check_output, check_standard_output, destination
from .progress import step
from .settings import quantize_settings, settings_option


@click.command("report")
@click.argument("models", type=FILE, nargs=-1, required=True, metavar="MODEL...")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default="report.html",
    show_default=True,
    help="The page: one HTML file that needs no network.",
)
@click.option(
    "--profile", is_flag=True, help="Time the model and its kernels here, and measure what this machine can reach."
)
@click.option(
    "-d",
    "--data",
    type=FILE,
    help="Real (not quantized) values: .npz with an array per input, and `labels` for accuracy, .npy, or a folder of "
    "such files or of images. A float MODEL is quantized with them.",
)
@click.option("--labels", type=FILE, help="The right answers, as for `qnn-ext accuracy`. Default: those of the data.")
@click.option("--classes", type=FILE, help="Text file: line i names class i, for labels that are names.")
@click.option("--label-offset", type=int, default=0, show_default=True, help="Added to labels that are numbers.")
@float_option
@normalize_option("How pixels of images are converted to input values.")
@click.option("--samples", type=click.IntRange(1), default=32, show_default=True, help="Batches to measure errors on.")
@settings_option
@verify_option
@build_options
def report(
    models: tuple[Path, ...],
    output: Path,
    float_file: Path | None,
    settings: tuple[str, ...],
    target: str,
    threads: int | None,
    importing: ImportOptions,
    verify: Path | None,
    **measuring: Any,
) -> None:
    """Write a page about each MODEL: its graph, the time and memory of its kernels, and what quantization costs.

    MODEL is a .qnn file or a model file of any format; several are shown side by side. Only a model file has operators
    to show; a .qnn file has the kernels that they became.

    \b
    Examples:
      qnn-ext report mobilenet.tflite --profile -o mobilenet.html
      qnn-ext report float.onnx --data calibration.npz -o errors.html
      qnn-ext report quantized.onnx --float float.onnx --data test.npz
      qnn-ext report before.qnn after.qnn --profile
      qnn-ext report mobilenet.tflite --target avx512_vnni,rpi4
    """
    data, labels, classes = (measuring[name] for name in ("data", "labels", "classes"))
    if output == STANDARD_OUTPUT:
        check_standard_output()
    else:
        check_output(output, [*models, data, labels, classes, float_file, importing.params], [".html", ".htm"])
    if data is None and (labels is not None or float_file is not None):
        raise QnnError("--labels and --float are for errors on data: give --data")
    floating = float_version(float_file, models, importing)
    names = target_names(target)
    request = Request(config=quantize_settings(settings, names[0]), floating=floating, **measuring)
    reports = []
    for path, name in zip(models, _distinct(models), strict=True):
        model = _open(path, target, threads, importing, verify)
        with step(f"describing {path.name}"):
            reports.append(model_report(model, request, name, names if len(names) > 1 else names[0], threads))
    with destination(output) as place:
        write_page(place, reports, ", ".join(one["name"] for one in reports))
        size = place.stat().st_size
    out(aside=output == STANDARD_OUTPUT).print(f"{output}: {bytes_text(size)}", markup=False)


def _open(
    path: Path, target: str, threads: int | None, importing: ImportOptions, verify: Path | None
) -> QnnModule | Engine:
    form = recognize(path)
    if form != "qnn":
        refuse_verify(path, verify)
        return import_model(path, form, importing)
    refuse_import_options(path, importing)
    refuse_target(path, None if target == "native" else target)
    return load(path, num_threads=threads, verify=verify)


def _distinct(paths: tuple[Path, ...]) -> list[str]:
    """The names of files, with their folders where two have the same name."""
    names = [path.name for path in paths]
    return [str(path) if names.count(path.name) > 1 else path.name for path in paths]
