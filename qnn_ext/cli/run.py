"""`qnn-ext run`: photos or arrays in, the best classes or the raw outputs out."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..errors import InputError
from ..files.reading import Npz, read_npy, read_text
from ..files.storage import write_bytes
from ..images import load_image
from ..module import TensorSpec
from ..running.engine import Engine
from .common import (
    FILE,
    build_options,
    json_option,
    normalize_option,
    open_engine,
    out,
    print_json,
    step,
    verify_option,
)
from .outputs import check_output

_NAMELESS = "arr_0"  # numpy.savez's name for an array that was given none
_SHOWN_VALUES = 16  # outputs up to this size are printed in full


@click.command()
@click.argument("model", type=FILE)
@click.option(
    "-i",
    "--input",
    "inputs",
    multiple=True,
    required=True,
    metavar="[NAME=]FILE",
    help="Image, .npy, or .npz with an array per input. Repeatable: one run per file or, with NAME=, one file per "
    "input.",
)
@click.option("--labels", type=FILE, help="Text file: line i names class i, counted from 0.")
@click.option("--top", type=click.IntRange(1), default=5, show_default=True, help="Number of classes to show.")
@normalize_option(
    "How pixels are converted to input values. auto: by the input's quantization parameters; float inputs: 0..1."
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Write the outputs as the model returns them: .npy for one output, .npz for several.",
)
@verify_option
@build_options
@json_option
def run(
    model: Path,
    inputs: tuple[str, ...],
    labels: Path | None,
    top: int,
    normalize: str,
    output: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Run MODEL (.qnn, or a model file, which is compiled first) on images or arrays.

    An image is squeezed to the input's size. Arrays may leave out a batch dimension of 1; floats given for a quantized
    input are quantized with the input's scale and zero point. Values shown are real ones: scale · (q − zero_point).

    \b
    Examples:
      qnn-ext run mobilenet.qnn --input photo.jpg --labels labels.txt
      qnn-ext run mobilenet.tflite --input a.jpg --input b.jpg --top 1 --json
      qnn-ext run model.qnn --input left=l.npy --input right=r.npy --output y.npz
    """
    files = [Path(text.rpartition("=")[2]) for text in inputs]
    if output is not None:
        check_output(output, [model, labels, *files], (".npy", ".npz"))
    names = _read_labels(labels) if labels else None
    engine = open_engine(model, **options)
    calls = _calls(engine, inputs, normalize)
    if output is not None and len(calls) > 1:
        raise InputError(f"--output holds the result of one run, but {len(calls)} input files were given")
    results = []
    for source, values in calls:
        with step(f"running {source}"):
            engine.reset_state()
            outputs = engine.run(values)
        described = [_describe(spec, outputs[spec.name], names, top) for spec in engine.outputs]
        results.append({"input": source, "outputs": described})
    if output is not None:
        _write_outputs(output, outputs)
    if as_json:
        print_json({"model": str(model), "results": results})
        return
    for result in results:
        _print_result(out(), result, title=len(results) > 1)


# ---- inputs ------------------------------------------------------------------------------------------------------


def _calls(engine: Engine, inputs: tuple[str, ...], normalize: str) -> list[tuple[str, dict[str, np.ndarray]]]:
    """The calls to make: (name of the source, input values) for each."""
    specs = {spec.name: spec for spec in engine.inputs}
    named = [(name, file) for name, _, file in (text.rpartition("=") for text in inputs) if name in specs]
    if len(named) == len(inputs):
        values = {name: _value(Path(file), specs[name], normalize) for name, file in named}
        return [(", ".join(file for _, file in named), values)]
    if named:
        raise InputError("give NAME=FILE for every --input or for none")
    for text in inputs:
        name, equals, _ = text.rpartition("=")
        if equals and not Path(text).exists():
            known = ", ".join(map(repr, specs))
            raise InputError(f"--input {text}: there is no input {name!r} and no such file; this model takes {known}")
    return [(text, _values(Path(text), engine.inputs, normalize)) for text in inputs]


def _values(path: Path, specs: tuple[TensorSpec, ...], normalize: str) -> dict[str, np.ndarray]:
    """All inputs of one call from one file."""
    if path.suffix == ".npz":
        with Npz(path, InputError) as stored:
            arrays = {name: stored[name] for name in stored.names()}
        if len(specs) == 1 and list(arrays) == [_NAMELESS]:
            arrays = {specs[0].name: arrays[_NAMELESS]}
        by_name = {spec.name: spec for spec in specs}
        return {name: _fit(value, by_name[name]) if name in by_name else value for name, value in arrays.items()}
    if len(specs) != 1:
        names = ", ".join(repr(spec.name) for spec in specs)
        raise InputError(f"this model takes {len(specs)} inputs ({names}): give --input NAME=FILE for each, or a .npz")
    return {specs[0].name: _value(path, specs[0], normalize)}


def _value(path: Path, spec: TensorSpec, normalize: str) -> np.ndarray:
    """One input from an image or a .npy file."""
    if path.suffix != ".npy":
        return load_image(path, spec, normalize)
    return _fit(read_npy(path, InputError), spec)


def _fit(value: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Add a batch dimension of 1 and convert floats to the input's dtype; the engine checks the rest."""
    if spec.shape[:1] == (1,) and value.shape == spec.shape[1:]:
        value = value[None]
    if value.dtype.kind != "f" or value.shape != spec.shape:
        return value
    if np.isnan(value).any():
        raise InputError(f"the values for input {spec.name!r} contain NaN")
    if spec.qparams is not None:
        return spec.qparams.quantize(value)
    return value.astype(spec.dtype) if spec.dtype.startswith("float") else value


def _read_labels(path: Path) -> list[str]:
    return read_text(path, InputError).splitlines()


# ---- outputs -----------------------------------------------------------------------------------------------------


def _describe(spec: TensorSpec, value: np.ndarray, labels: list[str] | None, top: int) -> dict[str, Any]:
    """One output: the best classes of a vector, all values of a small tensor, the range of a large one."""
    real = spec.qparams.dequantize(value) if spec.qparams is not None else value
    data: dict[str, Any] = {"name": spec.name, "shape": list(value.shape), "dtype": str(value.dtype)}
    is_vector = value.size > 1 and max(value.shape) == value.size and (value.ndim > 1 or labels is not None)
    if is_vector and (spec.qparams is not None or value.dtype.kind == "f"):
        data["top"] = _top(real.reshape(-1), labels, top)
    elif value.size <= _SHOWN_VALUES:
        data["values"] = real.tolist()
    else:
        data.update(min=real.min().item(), max=real.max().item())
    return data


def _top(values: np.ndarray, labels: list[str] | None, count: int) -> list[dict[str, Any]]:
    """The largest values; among equals, the lower index comes first."""
    if labels is not None and len(labels) != len(values):
        raise InputError(
            f"the labels file has {len(labels)} lines, the model {len(values)} classes: line i must name class i "
            "(1001 classes are the 1000 of ImageNet after 'background' in the first line)"
        )
    order = np.argsort(-values.astype(np.float64), kind="stable")[:count]
    entries: list[dict[str, Any]] = [{"index": int(i), "value": float(values[i])} for i in order]
    for entry in entries:
        if labels is not None:
            entry["label"] = labels[entry["index"]]
    return entries


def _write_outputs(path: Path, outputs: Mapping[str, np.ndarray]) -> None:
    content = io.BytesIO()
    if path.suffix == ".npz":
        np.savez(content, **dict(outputs))  # type: ignore[arg-type]
    elif len(outputs) > 1:
        raise InputError(f"the model has {len(outputs)} outputs: --output must end in .npz")
    else:
        np.save(content, next(iter(outputs.values())), allow_pickle=False)
    write_bytes(path, content.getvalue())


def _print_result(console: Console, result: dict[str, Any], title: bool) -> None:
    if title:
        console.print(result["input"], style="bold", markup=False)
    for output in result["outputs"]:
        if "top" not in output:
            shape = "×".join(map(str, output["shape"])) or "scalar"
            text = output.get("values", f"{output.get('min')} … {output.get('max')}")
            console.print(f"{output['name']}: {shape} {output['dtype']}: {text}", markup=False)
            continue
        table = Table(title=output["name"] if len(result["outputs"]) > 1 else None)
        table.add_column("class", justify="right")
        if "label" in output["top"][0]:
            table.add_column("label")
        table.add_column("value", justify="right")
        for entry in output["top"]:
            label = [escape(entry["label"])] if "label" in entry else []
            table.add_row(str(entry["index"]), *label, f"{entry['value']:.4f}")
        console.print(table)
