"""`qnn-ext run`: photos or arrays in, the best classes or the raw outputs out."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..errors import InputError
from ..files.reading import Npz, read_bytes, read_npy, read_text
from ..files.storage import write_bytes
from ..images import load_image
from ..module import TensorSpec, check_inputs, quantized
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
_FILES = {".bmp", ".gif", ".jpeg", ".jpg", ".npy", ".npz", ".png", ".ppm", ".raw", ".tif", ".tiff", ".webp"}
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
    help="Image, .npy, .raw (the input's bytes), .npz with an array per input, or a folder of these. Repeatable: one "
    "run per file or, with NAME=, one file per input. Files of one sample each fill the batch of a model that takes "
    "several.",
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
    The last batch is filled up with its last sample, and the results of the filling are left out.

    \b
    Examples:
      qnn-ext run mobilenet.qnn --input photo.jpg --labels labels.txt
      qnn-ext run mobilenet.tflite --input a.jpg --input b.jpg --top 1 --json
      qnn-ext run mobilenet.tflite --input photos/ --batch 8
      qnn-ext run model.qnn --input left=l.npy --input right=r.npy --output y.npz
    """
    files = [Path(text.rpartition("=")[2]) for text in inputs]
    if output is not None:
        check_output(output, [model, labels, *files], (".npy", ".npz"))
    names = _read_labels(labels) if labels else None
    engine = open_engine(model, **options)
    calls = _calls(engine, inputs, normalize)
    if output is not None and len(calls) > 1:
        raise InputError(f"--output holds the result of one run, but the input files take {len(calls)}")
    results = []
    for call in calls:
        with step(f"running {call.sources[0]}"):
            engine.reset_state()
            outputs = engine.run(call.values)
        if call.by_sample:
            outputs = _of_samples(outputs, engine, len(call.sources))
        for index, source in enumerate(call.sources):
            own = {name: value[index : index + 1] for name, value in outputs.items()} if call.by_sample else outputs
            described = [_describe(spec, own[spec.name], names, top) for spec in engine.outputs]
            results.append({"input": source, "outputs": described})
    if output is not None:
        _write_outputs(output, outputs)
    if as_json:
        print_json({"model": str(model), "results": results})
        return
    for result in results:
        _print_result(out(), result, title=len(results) > 1)


# ---- inputs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Call:
    """One call of the engine. by_sample: whether sample i of its batch is that of sources[i]."""

    sources: list[str]
    values: dict[str, np.ndarray]
    by_sample: bool = False


def _calls(engine: Engine, inputs: tuple[str, ...], normalize: str) -> list[_Call]:
    """The calls to make."""
    specs = {spec.name: spec for spec in engine.inputs}
    named = [(name, file) for name, _, file in (text.rpartition("=") for text in inputs) if name in specs]
    if len(named) == len(inputs):
        values = {name: _value(Path(file), specs[name], normalize) for name, file in named}
        return [_Call([", ".join(file for _, file in named)], values)]
    if named:
        raise InputError("give NAME=FILE for every --input or for none")
    for text in inputs:
        name, equals, _ = text.rpartition("=")
        if equals and not Path(text).exists():
            known = ", ".join(map(repr, specs))
            raise InputError(f"--input {text}: there is no input {name!r} and no such file; this model takes {known}")
    files = [file for text in inputs for file in _files(Path(text))]
    if len(engine.inputs) == 1 and engine.inputs[0].shape and engine.inputs[0].shape[0] > 1:
        return _batches(files, engine.inputs[0], normalize)
    return [_Call([str(file)], _values(file, engine.inputs, normalize)) for file in files]


def _files(path: Path) -> list[Path]:
    """A file itself; of a folder, what can be an input, by name."""
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.suffix.lower() in _FILES and file.is_file())
    if not found:
        raise InputError(f"{path}: in this folder are neither images nor .npy, .npz or .raw files")
    return found


def _batches(files: list[Path], spec: TensorSpec, normalize: str) -> list[_Call]:
    """Calls of a model with one input for several samples: a file holds a whole batch, or one sample of it."""
    size = spec.shape[0]
    one = replace(spec, shape=(1, *spec.shape[1:]))
    calls: list[_Call] = []
    samples: list[tuple[str, np.ndarray]] = []
    for file in files:
        values = _values(file, (one,), normalize, spec)
        if list(values) != [spec.name] or values[spec.name].shape == spec.shape:
            calls.append(_Call([str(file)], values))
        else:
            samples += [(str(file), value) for value in check_inputs(values, [one])]
    for start in range(0, len(samples), size):
        group = samples[start : start + size]
        arrays = [value for _, value in group]
        filled = np.concatenate(arrays + arrays[-1:] * (size - len(arrays)))
        calls.append(_Call([source for source, _ in group], {spec.name: filled}, by_sample=True))
    return calls


def _of_samples(outputs: dict[str, np.ndarray], engine: Engine, count: int) -> dict[str, np.ndarray]:
    """The outputs of the first samples of a batch. Raises InputError if an output is not made of samples."""
    size = engine.inputs[0].shape[0]
    for name, value in outputs.items():
        if value.shape[:1] != (size,):
            raise InputError(
                f"output {name!r} of shape {value.shape} is not one result for each of the {size} samples: give the "
                "whole batch as one .npy array"
            )
    return {name: value[:count] for name, value in outputs.items()}


def _values(
    path: Path, specs: tuple[TensorSpec, ...], normalize: str, batch: TensorSpec | None = None
) -> dict[str, np.ndarray]:
    """All inputs of one call from one file. batch: what an array may hold instead of the input."""
    if path.suffix == ".npz":
        with Npz(path, InputError) as stored:
            arrays = {name: stored[name] for name in stored.names()}
        if len(specs) == 1 and list(arrays) == [_NAMELESS]:
            arrays = {specs[0].name: arrays[_NAMELESS]}
        by_name = {spec.name: spec for spec in specs}
        return {name: _fit(value, by_name[name], batch) if name in by_name else value for name, value in arrays.items()}
    if len(specs) != 1:
        names = ", ".join(repr(spec.name) for spec in specs)
        raise InputError(f"this model takes {len(specs)} inputs ({names}): give --input NAME=FILE for each, or a .npz")
    return {specs[0].name: _value(path, specs[0], normalize, batch)}


def _value(path: Path, spec: TensorSpec, normalize: str, batch: TensorSpec | None = None) -> np.ndarray:
    """One input from an image, a .npy or a .raw file."""
    if path.suffix == ".npy":
        return _fit(read_npy(path, InputError), spec, batch)
    if path.suffix == ".raw":
        return _raw(path, spec, batch)
    return load_image(path, spec, normalize)


def _raw(path: Path, spec: TensorSpec, batch: TensorSpec | None) -> np.ndarray:
    """The bytes of a file as the input's values, row by row."""
    content = read_bytes(path, InputError)
    for one in (spec, batch):
        if one is not None and len(content) == np.dtype(one.dtype).itemsize * math.prod(one.shape):
            return np.frombuffer(content, one.dtype).reshape(one.shape)
    wanted = np.dtype(spec.dtype).itemsize * math.prod(spec.shape)
    raise InputError(f"{path}: {len(content)} bytes, but input {spec.name!r} of {spec.dtype} has {wanted}")


def _fit(value: np.ndarray, spec: TensorSpec, batch: TensorSpec | None = None) -> np.ndarray:
    """An array as the input or as a whole batch: with a batch dimension of 1 where it has none, floats quantized."""
    if spec.shape[:1] == (1,) and value.shape == spec.shape[1:]:
        value = value[None]
    whole = spec if batch is None or value.shape != batch.shape else batch
    return quantized([value], [whole])[0]


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
