"""`qnn-ext memory`: weights and feature maps of models in float32 and in 8 bits, for each target."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from ..errors import QnnError
from ..evaluation.memory import MemorySplit, memory_split
from .common import (
    FILE,
    build_options,
    bytes_text,
    float_option,
    float_version,
    import_model,
    json_option,
    out,
    print_json,
    target_names,
)
from .formats import ImportOptions, recognize
from .progress import step
from .settings import quantize_settings, settings_option


@click.command("memory")
@click.argument("models", type=FILE, nargs=-1, required=True, metavar="MODEL...")
@float_option
@settings_option
@build_options
@json_option
def memory_(
    models: tuple[Path, ...],
    float_file: Path | None,
    settings: tuple[str, ...],
    target: str,
    threads: int | None,
    importing: ImportOptions,
    as_json: bool,
) -> None:
    """Show what weights and feature maps of each MODEL take in float32 and in 8 bits, for each target.

    A float MODEL is quantized with random data, on which no size depends. For a quantized one without --float, the
    figures in float32 are computed: 4 bytes for each weight, and for each value of the tensors between its kernels.

    \b
    Examples:
      qnn-ext memory float.onnx
      qnn-ext memory mobilenet.tflite --target avx512_vnni,rpi4 --threads 1
      qnn-ext memory quantized.onnx --float float.onnx --json
    """
    floating = float_version(float_file, models, importing)
    splits = []
    for path in models:
        form = recognize(path)
        if form == "qnn":
            raise QnnError(f"{path} is already compiled: `qnn-ext inspect` shows its memory")
        module = import_model(path, form, importing)
        for one in target_names(target):
            with step(f"compiling {path.name} for {one}"):
                split = memory_split(module, one, threads, floating, quantize_settings(settings, one))
            splits.append(replace(split, model=str(path)))
    if as_json:
        print_json({"memory": list(map(split_data, splits))})
    else:
        out().print(memory_table(splits))


def split_data(split: MemorySplit) -> dict[str, Any]:
    """For JSON, in bytes."""
    return asdict(split)


def memory_table(splits: Iterable[MemorySplit]) -> Table:
    """A row for each model and target, and a note if figures are computed."""
    splits = list(splits)
    computed = any(split.computed for split in splits)
    caption = "≈ computed: 4 bytes for each weight and each value of the 8-bit build's tensors" if computed else None
    table = Table(title="memory", title_justify="left", caption=caption, caption_justify="left")
    table.add_column("model", overflow="fold")
    table.add_column("target")
    for what in ("weights", "feature maps, peak", "feature maps, sum"):
        for kind in ("float32", "int8", "×"):
            table.add_column(f"{what}\n{kind}" if kind == "float32" else f"\n{kind}", justify="right")
    for split in splits:
        cells = []
        for name in ("weights", "feature_maps", "all_feature_maps"):
            before, after = getattr(split.float32, name), getattr(split.int8, name)
            mark = "≈ " if split.computed else ""
            cells += [mark + bytes_text(before), bytes_text(after), f"{before / after:.2f}" if after else ""]
        table.add_row(escape(Path(split.model).name), split.target, *cells)
    return table
