"""`qnn-ext inspect`: what a model or a compiled file holds, what runs in integers, what stays float and why.

A model file is read and imported, not compiled; a `.qnn` file is described without loading its code.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .. import artifact
from ..errors import QnnError
from ..frontends.tflite import from_tflite
from ..frontends.tflite.reader import Model, Operator, Subgraph, Tensor, read_model
from ..frontends.tflite.registry import CONVERTERS
from ..module import QnnModule, TensorSpec
from .common import (
    FILE,
    bytes_text,
    count_text,
    is_compiled,
    json_option,
    note_data,
    out,
    print_json,
    spec_data,
    step,
)


@click.command()
@click.argument("model", type=FILE)
@json_option
def inspect(model: Path, as_json: bool) -> None:
    """Show what MODEL (.tflite or .qnn) holds: inputs, outputs, operators, dtypes, weights, what stays float and why.

    A model with unsupported operators is shown too, with what stops it.

    \b
    Examples:
      qnn-ext inspect mobilenet.tflite
      qnn-ext inspect mobilenet.qnn --json
    """
    data = _compiled_data(model) if is_compiled(model) else _tflite_data(model)
    if as_json:
        print_json(data)
    elif data["format"] == "qnn":
        _print_compiled(out(), data)
    else:
        _print_tflite(out(), data)


# ---- .tflite -----------------------------------------------------------------------------------------------------


def _tflite_data(path: Path) -> dict[str, Any]:
    model = read_model(path)
    graph = model.subgraphs[0]
    module: QnnModule | None = None
    problem = None
    try:
        with step(f"importing {path.name}"):
            module = from_tflite(path)
    except QnnError as error:
        problem = str(error)
    return {
        "model": str(path),
        "format": "tflite",
        "bytes": path.stat().st_size,
        "imports": module is not None,
        "problem": problem,
        "inputs": [_tensor_data(graph.tensors[index]) for index in graph.inputs],
        "outputs": [_tensor_data(graph.tensors[index]) for index in graph.outputs],
        "operators": _operators(graph, module),
        "weights": _weights(model),
        "states": [state.name for state in module.states] if module else [],
        "notes": [note_data(note) for note in module.notes] if module else [],
    }


def _tensor_data(tensor: Tensor) -> dict[str, Any]:
    return spec_data(TensorSpec(tensor.name, tensor.shape, tensor.dtype, tensor.qparams))


def _operators(graph: Subgraph, module: QnnModule | None) -> list[dict[str, Any]]:
    """Operators of the main graph, equal ones counted: name, dtypes, and whether they run in integers."""
    noted = {(note.node, note.operator) for note in module.notes} if module else set()
    kinds = Counter(
        (operator.name, operator.version, _dtypes(operator, graph), _runs_in(operator, graph, noted))
        for operator in graph.operators
    )
    return [
        {"operator": name, "version": version, "count": count, "dtypes": dtypes, "runs_in": runs_in}
        for (name, version, dtypes, runs_in), count in sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    ]


def _dtypes(operator: Operator, graph: Subgraph) -> str:
    """What goes in and out: "int8, int8 → int8"; "/channel" marks one scale per channel."""

    def text(index: int) -> str:
        tensor = graph.tensors[index]
        return tensor.dtype + ("/channel" if tensor.qparams is not None and tensor.qparams.per_channel else "")

    inputs = list(dict.fromkeys(text(index) for index in operator.inputs if index >= 0))
    outputs = list(dict.fromkeys(text(index) for index in operator.outputs))
    return f"{', '.join(inputs)} → {', '.join(outputs)}"


def _runs_in(operator: Operator, graph: Subgraph, noted: set[tuple[str, str]]) -> str:
    entry = CONVERTERS.get(operator.name)
    if entry is None:
        return "unsupported"
    if operator.version > entry.max_version:
        return f"unsupported version, newest known {entry.max_version}"
    if (operator.output_name, operator.name) in noted:
        return "float, see below"
    tensors = [graph.tensors[index] for index in (*operator.inputs, *operator.outputs) if index >= 0]
    in_float = any(tensor.dtype.startswith("float") for tensor in tensors)
    if not in_float:
        return "integer"
    return "float and integer" if any(tensor.qparams is not None for tensor in tensors) else "float, as the model says"


def _weights(model: Model) -> dict[str, int]:
    """Bytes of constants by dtype."""
    sizes: Counter[str] = Counter()
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            if tensor.data is not None and tensor.data.size:
                sizes[tensor.dtype] += tensor.data.nbytes
    return dict(sizes.most_common())


def _print_tflite(console: Console, data: dict[str, Any]) -> None:
    console.print(f"{data['model']}: TFLite model, {bytes_text(data['bytes'])}", markup=False)
    _print_ports(console, data)
    table = Table(title="operators", title_justify="left")
    table.add_column("operator")
    table.add_column("count", justify="right")
    table.add_column("dtypes", overflow="fold")
    table.add_column("runs in")
    for entry in data["operators"]:
        table.add_row(escape(entry["operator"]), str(entry["count"]), escape(entry["dtypes"]), entry["runs_in"])
    console.print(table)
    sizes = ", ".join(f"{dtype} {bytes_text(size)}" for dtype, size in data["weights"].items())
    console.print(f"weights: {sizes or 'none'}", markup=False)
    _print_notes(console, data)
    if not data["imports"]:
        console.print(f"does not import: {data['problem']}", style="bold red", markup=False)


# ---- .qnn --------------------------------------------------------------------------------------------------------


def _compiled_data(path: Path) -> dict[str, Any]:
    description, states, _ = artifact.read(path)
    try:
        return {
            "model": str(path),
            "format": "qnn",
            "bytes": path.stat().st_size,
            "source": description["source"],
            "target": description["target"],
            "features": description["features"],
            "inputs": [spec_data(artifact.spec_from_json(spec)) for spec in description["inputs"]],
            "outputs": [spec_data(artifact.spec_from_json(spec)) for spec in description["outputs"]],
            "kernels": list(description["kernels"]),
            "states": [
                {"name": name, "shape": list(np.shape(value)), "dtype": str(value.dtype)}
                for name, value in zip(description["states"], states, strict=True)
            ],
            "notes": list(description["notes"]),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise artifact.ArtifactError(f"{path}: the description is damaged ({error!r})") from error


def _print_compiled(console: Console, data: dict[str, Any]) -> None:
    cpu = data["target"].get("mcpu", "generic")
    console.print(
        f"{data['model']}: compiled from {data['source']} for {cpu}, {bytes_text(data['bytes'])}", markup=False
    )
    console.print(f"instruction sets: {', '.join(data['features']) or 'baseline'}", markup=False)
    _print_ports(console, data)
    table = Table(title="kernels", title_justify="left")
    table.add_column("layer", overflow="fold", ratio=2)
    table.add_column("operators", ratio=2)
    table.add_column("implementation", ratio=1)
    for name in ("MAC", "weights"):
        table.add_column(name, justify="right", no_wrap=True)
    for kernel in data["kernels"]:
        table.add_row(
            escape(kernel["layer"]),
            escape(kernel["operators"].replace("+", " + ")),
            kernel["implementation"],
            count_text(kernel["macs"]) if kernel["macs"] else "",
            bytes_text(kernel["weight_bytes"]) if kernel["weight_bytes"] else "",
        )
    console.print(table)
    macs = sum(kernel["macs"] for kernel in data["kernels"])
    weights = sum(kernel["weight_bytes"] for kernel in data["kernels"])
    console.print(f"together: {count_text(macs)} MAC, {bytes_text(weights)} of constants", markup=False)
    _print_notes(console, data)


# ---- both --------------------------------------------------------------------------------------------------------


def _print_ports(console: Console, data: dict[str, Any]) -> None:
    table = Table()
    for name in ("", "name", "shape", "dtype"):
        table.add_column(name, overflow="fold")
    for name in ("scale", "zero point"):
        table.add_column(name, justify="right")
    for kind in ("input", "output"):
        for spec in data[f"{kind}s"]:
            qparams = spec["qparams"] or {"scale": "", "zero_point": ""}
            scale = qparams["scale"]
            table.add_row(
                kind,
                escape(spec["name"]),
                "×".join(map(str, spec["shape"])) or "scalar",
                spec["dtype"],
                f"{scale:.6g}" if isinstance(scale, float) else escape(str(scale)),
                escape(str(qparams["zero_point"])),
            )
    console.print(table)


def _print_notes(console: Console, data: dict[str, Any]) -> None:
    if data["states"]:
        console.print(f"states kept between calls: {len(data['states'])}")
    for note in data["notes"]:
        console.print(f"float: {note['operator']} '{note['node']}': {note['reason']}", markup=False)
