"""`qnn-ext run`: photos or arrays in, the best classes or the raw outputs out."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from ..errors import InputError
from ..files.reading import read_text
from ..files.storage import write_bytes
from ..module import TensorSpec
from .common import (
    FILE,
    build_options,
    json_option,
    normalize_option,
    open_engine,
    out,
    print_json,
    verify_option,
)
from .inputs import calls_of, of_samples
from .outputs import STANDARD_OUTPUT, check_output, check_standard_output, destination
from .progress import step

if TYPE_CHECKING:
    from rich.console import Console

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
    help="Image, .npy, .wav, .raw (the input's bytes), .npz with an array per input, or a folder of these. Repeatable: "
    "one run per file or, with NAME=, one file per input. Files of one sample each fill the batch of a model that "
    "takes several.",
)
@click.option("--labels", type=FILE, help="Text file: line i names class i, counted from 0.")
@click.option("--top", type=click.IntRange(1), default=5, show_default=True, help="Number of classes to show.")
@normalize_option(
    "How pixels are converted to input values. auto: by the input's quantization parameters; float inputs: 0..1."
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Write the outputs as the model returns them: .npy for one output, .npz for several. "
    "- writes .npy to the standard output.",
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
    input are quantized with the input's scale and zero point. A sound is taken as −1 … 1, at its own rate.
    Values shown are real ones: scale · (q − zero_point).
    The last batch is filled up with its last sample, and the results of the filling are left out.

    \b
    Examples:
      qnn-ext run mobilenet.qnn --input photo.jpg --labels labels.txt
      qnn-ext run mobilenet.tflite --input a.jpg --input b.jpg --top 1 --json
      qnn-ext run mobilenet.tflite --input photos/ --batch 8
      qnn-ext run model.qnn --input left=l.npy --input right=r.npy --output y.npz
    """
    files = [Path(text.rpartition("=")[2]) for text in inputs]
    if output == STANDARD_OUTPUT:
        check_standard_output(as_json)
    elif output is not None:
        check_output(output, [model, labels, *files], (".npy", ".npz"))
    names = _read_labels(labels) if labels else None
    engine = open_engine(model, **options)
    calls = calls_of(engine, inputs, normalize)
    if output is not None and len(calls) > 1:
        raise InputError(f"--output holds the result of one run, but the input files take {len(calls)}")
    results = []
    for call in calls:
        with step(f"running {call.sources[0]}"):
            engine.reset_state()
            outputs = engine.run(call.values)
        if call.by_sample:
            outputs = of_samples(outputs, engine, len(call.sources))
        for index, source in enumerate(call.sources):
            own = {name: value[index : index + 1] for name, value in outputs.items()} if call.by_sample else outputs
            described = [_describe(spec, own[spec.name], names, top) for spec in engine.outputs]
            results.append({"input": source, "outputs": described})
    if output is not None:
        with destination(output) as place:
            _write_outputs(place, output.suffix == ".npz", outputs)
    if as_json:
        print_json({"model": str(model), "results": results})
        return
    for result in results:
        _print_result(out(aside=output == STANDARD_OUTPUT), result, title=len(results) > 1)


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


def _write_outputs(path: Path, several: bool, outputs: Mapping[str, np.ndarray]) -> None:
    content = io.BytesIO()
    if several:
        np.savez(content, **dict(outputs))  # type: ignore[arg-type]
    elif len(outputs) > 1:
        raise InputError(f"the model has {len(outputs)} outputs: --output must end in .npz")
    else:
        np.save(content, next(iter(outputs.values())), allow_pickle=False)
    write_bytes(path, content.getvalue())


def _print_result(console: Console, result: dict[str, Any], title: bool) -> None:
    from rich.markup import escape
    from rich.table import Table

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
