"""What the commands share: options, consoles, progress, opening a model, describing tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ..build import build
from ..errors import ShapeError
from ..frontends.tflite import from_tflite
from ..frontends.tflite.reader import read_model
from ..module import FloatNote, QnnModule, TensorSpec
from ..runtime import Engine, load

Command = TypeVar("Command", bound=Callable[..., Any])

FILE = click.Path(path_type=Path)  # that it exists is told by who reads it, as an error of ours

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
threads_option = click.option(
    "--threads", type=click.IntRange(1, 1024), help="Threads the kernels may use. Default: all cores."
)


def build_options(command: Command) -> Command:
    """The options that say how a model becomes an executable."""
    for option in reversed(
        [
            click.option(
                "--target",
                default="native",
                show_default=True,
                help="native, or an LLVM CPU name: skylake-avx512, haswell, x86-64, ...",
            ),
            click.option(
                "--numerics",
                type=click.Choice(["float32", "tflite"]),
                default="float32",
                show_default=True,
                help="Rounding: float32 as XNNPACK rounds, tflite as TFLite's reference kernels, bit for bit.",
            ),
            threads_option,
            click.option("--batch", type=click.IntRange(1), help="Batch size: the first dimension of every input."),
            click.option(
                "--shape", "shapes", multiple=True, metavar="NAME=1,224,224,3", help="Shape of one input. Repeatable."
            ),
        ]
    ):
        command = option(command)
    return command


# ---- output ------------------------------------------------------------------------------------------------------


def out() -> Console:
    """The console for results. Where no terminal is there, lines are not broken at 80 columns."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=160)


def print_json(data: Any) -> None:
    """One JSON document on stdout. Infinities and NaN, which JSON lacks, become null."""
    click.echo(json.dumps(_finite(data), indent=2, ensure_ascii=False, allow_nan=False))


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not np.isfinite(data) else data


@contextmanager
def step(text: str) -> Iterator[None]:
    """A spinner with a clock on stderr while the body works; silent where no terminal is there."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(text, total=None)
        yield


def bytes_text(count: int) -> str:
    """12 B, 3.4 kB, 5.6 MB."""
    if count < 1000:
        return f"{count} B"
    return f"{count / 1e3:.1f} kB" if count < 1_000_000 else f"{count / 1e6:.2f} MB"


def count_text(count: int) -> str:
    """Operations with their prefix: 12, 3.40 k, 5.60 M, 7.80 G."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= factor:
            return f"{count / factor:.2f} {prefix}"
    return str(count)


def spec_data(spec: TensorSpec) -> dict[str, Any]:
    """An input or output for JSON."""
    qparams = spec.qparams and {
        "scale": np.asarray(spec.qparams.scale, np.float64).tolist(),
        "zero_point": spec.qparams.zero_point.tolist(),
        "axis": spec.qparams.axis,
    }
    return {"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype, "qparams": qparams}


def note_data(note: FloatNote) -> dict[str, str]:
    """A float note for JSON."""
    return {"node": note.node, "operator": note.operator, "reason": note.reason}


# ---- models ------------------------------------------------------------------------------------------------------


def is_compiled(path: Path) -> bool:
    """Whether the file is a `.qnn` file: by its name, or because it starts as a zip archive does."""
    if path.suffix == ".qnn" or not path.is_file():
        return path.suffix == ".qnn"
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def import_model(path: Path, numerics: str, batch: int | None, shapes: Sequence[str]) -> QnnModule:
    """Read a model file into the QNN dialect."""
    with step(f"importing {path.name}"):
        return from_tflite(path, numerics=numerics, shapes=_shapes(path, batch, shapes))


def compile_model(module: QnnModule, target: str, threads: int | None) -> Engine:
    """Build an imported model."""
    with step(f"compiling {Path(module.source).name}"):
        return build(module, target, num_threads=threads)


def open_engine(
    path: Path, target: str, numerics: str, threads: int | None, batch: int | None, shapes: Sequence[str]
) -> Engine:
    """The engine of a `.qnn` file, or of a model file compiled now."""
    if not is_compiled(path):
        return compile_model(import_model(path, numerics, batch, shapes), target, threads)
    if batch is not None or shapes:
        raise ShapeError(f"{path} is compiled: its shapes are fixed; give --batch and --shape to `qnn-ext compile`")
    return load(path, num_threads=threads)


def _shapes(path: Path, batch: int | None, shapes: Sequence[str]) -> Mapping[str, Sequence[int]] | None:
    """--batch and --shape as `from_tflite` takes them."""
    found: dict[str, Sequence[int]] = {}
    if batch is not None:
        graph = read_model(path).subgraphs[0]
        for tensor in (graph.tensors[index] for index in graph.inputs):
            if not tensor.shape:
                raise ShapeError(f"input '{tensor.name}' is a scalar and has no batch dimension")
            found[tensor.name] = (batch, *tensor.shape[1:])
    found.update(map(_parse_shape, shapes))
    return found or None


def _parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, dims = text.rpartition("=")
    try:
        shape = tuple(int(dim) for dim in dims.split(","))
    except ValueError:
        shape = ()
    if not name or not shape:
        raise click.BadParameter(f"{text!r} is not NAME=1,224,224,3", param_hint="--shape")
    return name, shape
