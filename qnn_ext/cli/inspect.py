"""`qnn-ext inspect`: what a model or a compiled file holds, what runs in integers, what stays float and why.

A model file is read and imported, and compiled only for a target that is asked for; a `.qnn` file is described without
loading its code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tvm import relax

from ..compiling.coverage import coverage
from ..errors import QnnError
from ..frontends.tflite.reader import Model, Operator, Subgraph, read_model
from ..frontends.tflite.registry import CONVERTERS
from ..module import QnnModule, TensorSpec
from ..op.base import constant_value
from ..passes.bodies import every_binding
from ..passes.rewrite import op_name, operands
from ..running import artifact
from ..running.kernels import Kernel
from ..running.model import Memory, Variant, target_name
from .common import (
    FILE,
    bytes_text,
    compile_model,
    count_text,
    import_model,
    import_options,
    json_option,
    memory_text,
    note_data,
    out,
    print_json,
    print_reasons,
    refuse_import_options,
    refuse_verify,
    spec_data,
    verify_option,
)
from .formats import TITLES, ImportOptions, check_options, recognize


@click.command()
@click.argument("model", type=FILE)
@click.option(
    "--target",
    help="Compile a model file for a target, named as for compile, and show its kernels: which of them are generic and "
    "why, and whether TVM's virtual machine runs them.",
)
@verify_option
@import_options
@json_option
def inspect(model: Path, target: str | None, verify: Path | None, importing: ImportOptions, as_json: bool) -> None:
    """Show what MODEL holds: inputs, outputs, operators, dtypes, weights, what stays float and why.

    MODEL is a .qnn file, or a model file of any format. A TFLite model with unsupported operators is shown too, with
    the reason why it cannot be imported. Integer coverage: the share of multiply-accumulates (MAC) that run as
    integers.

    \b
    Examples:
      qnn-ext inspect mobilenet.tflite
      qnn-ext inspect resnet50.onnx
      qnn-ext inspect resnet50.onnx --target rpi4
      qnn-ext inspect mobilenet.qnn --json
    """
    form = recognize(model)
    if form == "qnn":
        refuse_import_options(model, importing)
        _refuse_target(model, target)
        data = _compiled_data(model, verify)
    else:
        refuse_verify(model, verify)
        check_options(form, importing)
        describe = _tflite_data if form == "tflite" else _model_data
        data = describe(model, form, importing, target)
    if as_json:
        print_json(data)
    elif form == "qnn":
        _print_compiled(out(), data)
    else:
        _print_model(out(), data)


# ---- model files -------------------------------------------------------------------------------------------------


def _refuse_target(path: Path, target: str | None) -> None:
    """Raise QnnError if a target is given for a compiled file."""
    if target is not None:
        raise QnnError(f"{path} is already compiled, for the targets that inspect shows without --target: leave it out")


def _model_data(path: Path, form: str, importing: ImportOptions, target: str | None) -> dict[str, Any]:
    """A model, described by its imported module."""
    module = import_model(path, form, importing)
    return {
        "model": str(path),
        "format": form,
        "bytes": path.stat().st_size,
        "imports": True,
        "problem": None,
        "inputs": [spec_data(spec) for spec in module.inputs],
        "outputs": [spec_data(spec) for spec in module.outputs],
        "operators": _module_operators(module),
        "weights": _module_weights(module),
        **_module_data(module),
        **_target_data(module, target),
    }


def _module_data(module: QnnModule | None) -> dict[str, Any]:
    """What the import provides: states, notes, integer coverage. Empty if it failed."""
    if module is None:
        return {"states": [], "notes": [], "coverage": None}
    found = coverage(module)
    return {
        "states": [state.name for state in module.states],
        "notes": [note_data(note) for note in module.notes],
        "coverage": {
            "macs": found.macs,
            "integer_macs": found.integer_macs,
            "share": found.share,
            "in_float": [
                {"layer": product.layer, "operator": product.operator, "macs": product.macs}
                for product in found.in_float
            ],
        },
    }


def _target_data(module: QnnModule | None, target: str | None) -> dict[str, Any]:
    """What the module compiles to, as of a compiled file. Empty without a target, or if the import failed."""
    if module is None or target is None:
        return {}
    return {"variants": _variants_data(compile_model(module, target, None).compiled)}


def _module_operators(module: QnnModule) -> list[dict[str, Any]]:
    """The operators of the imported module, equal ones counted."""
    kinds: Counter[tuple[str, str, str]] = Counter()
    for binding, _ in every_binding(module.ir):
        name = op_name(binding.value)
        if name:
            tensors = [operand for operand in operands(binding.value) if _is_data(operand)]
            inputs = list(dict.fromkeys(str(tensor.ty.dtype) for tensor in tensors))
            output = str(getattr(binding.var.ty, "dtype", "tuple"))
            in_float = ["float" in dtype for dtype in (*inputs, output)]
            runs_in = "float" if all(in_float) else "float and integer" if any(in_float) else "integer"
            kinds[name, f"{', '.join(inputs)} → {output}", runs_in] += 1
    return [
        {"operator": name, "count": count, "dtypes": dtypes, "runs_in": runs_in}
        for (name, dtypes, runs_in), count in sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    ]


def _is_data(operand: Any) -> bool:
    """Whether an operand is an activation or an integer weight, and not its scale or zero point."""
    if not isinstance(getattr(operand, "ty", None), relax.TensorType):
        return False
    value = constant_value(operand)
    return value is None or value.ndim > 1


def _module_weights(module: QnnModule) -> dict[str, int]:
    """Bytes of constants by dtype, each constant once."""
    sizes: Counter[str] = Counter()
    seen = set()
    for binding, _ in every_binding(module.ir):
        for operand in operands(binding.value):
            value = constant_value(operand)
            if value is not None and operand not in seen:
                seen.add(operand)
                sizes[str(value.dtype)] += value.nbytes
    return dict(sizes.most_common())


# ---- .tflite -----------------------------------------------------------------------------------------------------


def _tflite_data(path: Path, form: str, importing: ImportOptions, target: str | None) -> dict[str, Any]:
    """A model, described by its file's operators, which are available even if the import fails."""
    model = read_model(path)
    graph = model.subgraphs[0]
    module: QnnModule | None = None
    problem = None
    try:
        module = import_model(path, form, importing)
    except QnnError as error:
        problem = str(error)
    return {
        "model": str(path),
        "format": form,
        "bytes": path.stat().st_size,
        "imports": module is not None,
        "problem": problem,
        "inputs": [spec_data(spec) for spec in (module.inputs if module else _specs(graph, graph.inputs))],
        "outputs": [spec_data(spec) for spec in (module.outputs if module else _specs(graph, graph.outputs))],
        "operators": _operators(graph, module),
        "weights": _weights(model),
        **_module_data(module),
        **_target_data(module, target),
    }


def _specs(graph: Subgraph, indices: Sequence[int]) -> list[TensorSpec]:
    """Inputs or outputs as the file declares them."""
    tensors = [graph.tensors[index] for index in indices]
    return [TensorSpec(tensor.name, tensor.shape, tensor.dtype, tensor.qparams) for tensor in tensors]


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
    """The dtypes of operands and results: "int8, int8 → int8"; "/channel" marks per-channel scales."""

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
        return f"unsupported version, newest supported {entry.max_version}"
    if (operator.output_name, operator.name) in noted:
        return "float, see below"
    tensors = [graph.tensors[index] for index in (*operator.inputs, *operator.outputs) if index >= 0]
    in_float = any(tensor.dtype.startswith("float") for tensor in tensors)
    if not in_float:
        return "integer"
    return "float and integer" if any(tensor.qparams is not None for tensor in tensors) else "float, as in the model"


def _weights(model: Model) -> dict[str, int]:
    """Bytes of constants by dtype."""
    sizes: Counter[str] = Counter()
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            if tensor.data is not None and tensor.data.size:
                sizes[tensor.dtype] += tensor.data.nbytes
    return dict(sizes.most_common())


def _print_model(console: Console, data: dict[str, Any]) -> None:
    console.print(f"{data['model']}: {TITLES[data['format']]}, {bytes_text(data['bytes'])}", markup=False)
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
    if data["coverage"] and data["coverage"]["macs"]:
        _print_coverage(console, data["coverage"])
    _print_notes(console, data)
    if not data["imports"]:
        console.print(f"cannot be imported: {data['problem']}", style="bold red", markup=False)
    for variant in data.get("variants", ()):
        _print_variant(console, variant, "runs here" if variant["runs_here"] else "does not run here")
        _print_kernels(console, variant)


def _print_coverage(console: Console, data: dict[str, Any]) -> None:
    share = f"{100 * data['share']:.2f}".rstrip("0").rstrip(".")
    console.print(f"integer coverage: {share} % of {count_text(data['macs'])} MAC", markup=False)
    for layer in data["in_float"]:
        console.print(f"float: {layer['operator']} '{layer['layer']}': {count_text(layer['macs'])} MAC", markup=False)


# ---- .qnn --------------------------------------------------------------------------------------------------------


def _compiled_data(path: Path, verify: Path | None) -> dict[str, Any]:
    with artifact.opened(path, verify) as file:
        description, model, compiled = file.description, file.model(), file.variants
    return {
        "model": str(path),
        "format": "qnn",
        "bytes": path.stat().st_size,
        "source": description["source"],
        "signed": file.is_signed,
        "verified": verify is not None,
        "inputs": [spec_data(spec) for spec in model.inputs],
        "outputs": [spec_data(spec) for spec in model.outputs],
        "variants": _variants_data(compiled),
        "states": description["states"],
        "notes": description["notes"],
    }


def _print_compiled(console: Console, data: dict[str, Any]) -> None:
    targets = ", ".join(target_name(variant["target"]) for variant in data["variants"])
    title = f"{data['model']}: compiled from {data['source']} for {targets}, {bytes_text(data['bytes'])}"
    console.print(title, markup=False, soft_wrap=True)  # unwrapped, however long the paths are
    console.print(_signature(data), markup=False)
    _print_ports(console, data)
    chosen = next((variant for variant in data["variants"] if variant["runs_here"]), data["variants"][0])
    for variant in data["variants"]:
        here = "does not run here" if not variant["runs_here"] else "used here" if variant is chosen else "runs here"
        _print_variant(console, variant, here)
    _print_kernels(console, chosen)
    _print_notes(console, data)


def _signature(data: dict[str, Any]) -> str:
    if data["verified"]:
        return "signature: valid for the given key"
    return "signature: present, not checked; check it with --verify PUBLIC_KEY" if data["signed"] else "signature: none"


# ---- both --------------------------------------------------------------------------------------------------------


def _variants_data(variants: Iterable[Variant]) -> list[dict[str, Any]]:
    """What a model was compiled to, on each target."""
    return [
        {
            "target": variant.target,
            "architecture": variant.architecture,
            "features": variant.features,
            "runs_here": variant.runs_here(),
            "memory": asdict(variant.memory),
            "fallback": variant.fallback,
            "kernels": [asdict(kernel) for kernel in variant.kernels],
        }
        for variant in variants
    ]


def _print_variant(console: Console, variant: dict[str, Any], here: str) -> None:
    sets = ", ".join(variant["features"]) or "baseline"
    memory = memory_text(Memory(**variant["memory"]))
    console.print(f"{target_name(variant['target'])}: {here}; {memory}; instruction sets: {sets}", markup=False)


def _print_kernels(console: Console, variant: dict[str, Any]) -> None:
    """The kernels of a target, and why it runs slower than it could."""
    table = Table(title=f"kernels for {target_name(variant['target'])}", title_justify="left")
    table.add_column("layer", overflow="fold", ratio=2)
    table.add_column("operators", ratio=2)
    table.add_column("implementation", ratio=1)
    for name in ("MAC", "weights"):
        table.add_column(name, justify="right", no_wrap=True)
    for kernel in variant["kernels"]:
        table.add_row(
            escape(kernel["layer"]),
            escape(kernel["operators"].replace("+", " + ")),
            kernel["implementation"],
            count_text(kernel["macs"]) if kernel["macs"] else "",
            bytes_text(kernel["weight_bytes"]) if kernel["weight_bytes"] else "",
        )
    console.print(table)
    macs = sum(kernel["macs"] for kernel in variant["kernels"])
    weights = sum(kernel["weight_bytes"] for kernel in variant["kernels"])
    console.print(f"total: {count_text(macs)} MAC, {bytes_text(weights)} of constants", markup=False)
    print_reasons(console, variant["fallback"], [Kernel(**kernel) for kernel in variant["kernels"]])


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
