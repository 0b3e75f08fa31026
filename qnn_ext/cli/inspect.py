"""`qnn-ext inspect`: what a model or a compiled file holds, what runs in integers, what stays float and why.

A model file is read and imported, and compiled only for a target that is asked for; a `.qnn` file is described without
loading its code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import ArtifactError, QnnError
from ..files.container import FORMAT
from ..module import QnnModule
from ..running import artifact
from ..running.kernels import Kernel
from ..running.model import Memory, Variant, target_name
from .c_library import c_manifest, describe_c_library
from .common import (
    FILE,
    bytes_text,
    code_text,
    compile_model,
    count_text,
    counted,
    import_options,
    json_option,
    memory_text,
    out,
    print_json,
    print_reasons,
    refuse_import_options,
    refuse_target,
    refuse_verify,
    shape_text,
    verify_option,
)
from .formats import TITLES, ImportOptions, check_options, recognize
from .tables import Column, layers_text, print_table

if TYPE_CHECKING:
    from rich.console import Console

    from ..running.engine import Engine


@click.command()
@click.argument("model", type=FILE)
@click.option(
    "--target",
    help="Compile a model file for a target, named as for compile, and show its kernels: which of them are generic and "
    "why, and whether TVM's virtual machine runs them.",
)
@click.option(
    "--layer",
    metavar="TEXT",
    help="Show only kernels of layers with this in their names, or that match it (`*conv_9*`), in any case.",
)
@verify_option
@import_options
@json_option
def inspect(
    model: Path,
    target: str | None,
    layer: str | None,
    verify: Path | None,
    importing: ImportOptions,
    as_json: bool,
) -> None:
    """Show what MODEL holds: inputs, outputs, operators, dtypes, weights, what stays float and why.

    MODEL is a .qnn file, the folder of a C library, or a model file of any format. A TFLite model with unsupported
    operators is shown too, with the reason why it cannot be imported. Integer coverage: the share of
    multiply-accumulates (MAC) that run as integers.

    \b
    Examples:
      qnn-ext inspect mobilenet.tflite
      qnn-ext inspect resnet50.onnx
      qnn-ext inspect resnet50.onnx --target rpi4
      qnn-ext inspect mobilenet.qnn --layer expanded_conv_9
      qnn-ext inspect mobilenet.qnn --json
    """
    if c_manifest(model) is not None:
        refuse_import_options(model, importing)
        refuse_target(model, target)
        refuse_verify(model, verify)
        describe_c_library(model, as_json)
        return
    form = recognize(model)
    if form == "qnn":
        refuse_import_options(model, importing)
        refuse_target(model, target)
        data = _compiled_data(model, verify)
    else:
        refuse_verify(model, verify)
        check_options(form, importing)
        from .describe import describe  # only here: it imports TVM's compiler

        data, module = describe(model, form, importing)
        if layer is not None and target is None:
            raise QnnError(f"--layer shows kernels, and {model} is not compiled: give a --target too, such as native")
        data |= _target_data(module, target)
    if layer is not None:
        _select(data, layer)
    if as_json:
        print_json(data)
    elif form == "qnn":
        _print_compiled(out(), data)
    else:
        _print_model(out(), data)


def _select(data: dict[str, Any], text: str) -> None:
    """Keep only the kernels of layers with this in their names, or that match it. Raises QnnError if there are none."""
    wanted = text.lower() if set(text) & set("*?[") else f"*{text.lower()}*"
    for variant in data.get("variants", ()):
        variant["kernels"] = [
            kernel
            for kernel in variant["kernels"]
            if any(fnmatchcase(name.lower(), wanted) for name in (kernel["layer"], *kernel["sources"]))
        ]
    if not any(variant["kernels"] for variant in data.get("variants", ())):
        raise QnnError(f"--layer {text}: no kernel computes such a layer")


# ---- model files -------------------------------------------------------------------------------------------------


def _target_data(module: QnnModule | None, target: str | None) -> dict[str, Any]:
    """What the module compiles to, as of a compiled file. Empty without a target, or if the import failed."""
    if module is None or target is None:
        return {}
    return {"variants": _variants_data(compile_model(module, target, None, _linked).compiled)}


def _linked(engine: Engine) -> None:
    """Have an engine know what its code takes, where there is a linker for it."""
    with suppress(ArtifactError):
        engine.link()


def _print_model(console: Console, data: dict[str, Any]) -> None:
    console.print(f"{data['model']}: {TITLES[data['format']]}, {bytes_text(data['bytes'])}", markup=False)
    if len(data["signatures"]) > 1:
        console.print(f"signatures: {', '.join(data['signatures'])}: --signature takes one", markup=False)
    _print_ports(console, data)
    sizes = ", ".join(f"{dtype} {bytes_text(size)}" for dtype, size in data["weights"].items())
    console.print(f"weights: {sizes or 'none'}", markup=False)
    if data["coverage"] and data["coverage"]["macs"]:
        _print_coverage(console, data["coverage"])
    _print_notes(console, data)
    if not data["imports"]:
        console.print(f"cannot be imported: {data['problem']}", style="bold red", markup=False)
    rows = [(entry["operator"], str(entry["count"]), entry["dtypes"], entry["runs_in"]) for entry in data["operators"]]
    print_table(console, _OPERATORS, rows, "operators")
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
        description, compiled = file.description, file.variants
    return {
        "model": str(path),
        "format": "qnn",
        "bytes": path.stat().st_size,
        "source": description["source"],
        "container_format": FORMAT,
        "checksum": sha256(file.manifest).hexdigest(),
        "signed": file.is_signed,
        "verified": verify is not None,
        "inputs": [_described(spec) for spec in description["inputs"]],
        "outputs": [_described(spec) for spec in description["outputs"]],
        "others": [
            {kind: [_described(spec) for spec in other[kind]] for kind in ("inputs", "outputs")}
            for other in description.get("others", ())
        ],
        "variants": _variants_data(compiled),
        "states": description["states"],
        "notes": description["notes"],
    }


def _described(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What `spec_data` says of an input or output, of its description: that takes no NumPy."""
    qparams = spec["qparams"] and {name: spec["qparams"][name] for name in ("scale", "zero_point", "axis")}
    names = ("name", "shape", *(["bounded"] if spec.get("bounded") else []), "dtype")
    return {**{name: spec[name] for name in names}, "qparams": qparams}


def _print_compiled(console: Console, data: dict[str, Any]) -> None:
    targets = ", ".join(target_name(variant["target"]) for variant in data["variants"])
    title = f"{data['model']}: compiled from {data['source']} for {targets}, {bytes_text(data['bytes'])}"
    console.print(title, markup=False, soft_wrap=True)  # unwrapped, however long the paths are
    console.print(f"format {data['container_format']}, checksum {data['checksum']}", markup=False)
    console.print(_signature(data), markup=False)
    _print_ports(console, data)
    for other in data["others"]:
        pairs = zip(other["inputs"], data["inputs"], strict=True)
        shapes = [f"{spec['name']} {shape_text(spec)}" for spec, first in pairs if spec["shape"] != first["shape"]]
        console.print(f"also takes {', '.join(shapes)}, with the same weights and states", markup=False)
    chosen = next((variant for variant in data["variants"] if variant["runs_here"]), data["variants"][0])
    for variant in data["variants"]:
        here = "does not run here" if not variant["runs_here"] else "used here" if variant is chosen else "runs here"
        _print_variant(console, variant, here)
    _print_notes(console, data)
    _print_kernels(console, chosen)


def _signature(data: dict[str, Any]) -> str:
    if data["verified"]:
        return "signature: valid for the given key"
    return "signature: present, not checked; check it with --verify PUBLIC_KEY" if data["signed"] else "signature: none"


# ---- both --------------------------------------------------------------------------------------------------------


_SHOWN_NODES = 4  # of those that are float for the same reason
_PORTS = (
    Column(""),
    Column("name"),
    Column("shape"),
    Column("dtype"),
    Column("scale", drop=2),
    Column("zero point", drop=1),
)
_OPERATORS = (Column("operator"), Column("count", number=True), Column("dtypes", drop=1), Column("runs in"))
_KERNELS = (
    Column("layer"),
    Column("operators", drop=1),
    Column("implementation", drop=3),
    Column("MAC", number=True),
    Column("weights", number=True, drop=2),
)


def _variants_data(variants: Iterable[Variant]) -> list[dict[str, Any]]:
    """What a model was compiled to, on each target."""
    return [
        {
            "target": variant.target,
            "architecture": variant.architecture,
            "features": variant.features,
            "runs_here": variant.runs_here(),
            "memory": asdict(variant.memory),
            "code": variant.code and asdict(variant.code),
            "fallback": variant.fallback,
            "kernels": [asdict(kernel) for kernel in variant.kernels],
        }
        for variant in variants
    ]


def _print_variant(console: Console, variant: dict[str, Any], here: str) -> None:
    sets = ", ".join(variant["features"]) or "baseline"
    memory = memory_text(Memory(**variant["memory"]))
    console.print(f"{target_name(variant['target'])}: {here}; {memory}; instruction sets: {sets}", markup=False)
    if variant["code"] is not None:
        console.print(f"  {code_text(variant['code'], Memory(**variant['memory']))}", markup=False)


def _print_kernels(console: Console, variant: dict[str, Any]) -> None:
    """The kernels of a target, and why it runs slower than it could."""
    kernels = [Kernel(**kernel) for kernel in variant["kernels"]]
    rows = [
        (
            layers_text(kernel),
            kernel.operators.replace("+", " + "),
            kernel.implementation,
            count_text(kernel.macs) if kernel.macs else "",
            bytes_text(kernel.weight_bytes) if kernel.weight_bytes else "",
        )
        for kernel in kernels
    ]
    macs = sum(kernel.macs for kernel in kernels)
    weights = sum(kernel.weight_bytes for kernel in kernels)
    total = f"{counted(len(kernels), 'kernel')}: {count_text(macs)} MAC, {bytes_text(weights)} of constants"
    console.print(total, markup=False)
    print_reasons(console, variant["fallback"], kernels)
    print_table(console, _KERNELS, rows, f"kernels for {target_name(variant['target'])}")


def _print_ports(console: Console, data: dict[str, Any]) -> None:
    rows = []
    for kind in ("input", "output"):
        for spec in data[f"{kind}s"]:
            qparams = spec["qparams"] or {"scale": "", "zero_point": ""}
            scale = qparams["scale"]
            rows.append(
                (
                    kind,
                    spec["name"],
                    shape_text(spec),
                    spec["dtype"],
                    f"{scale:.6g}" if isinstance(scale, float) else str(scale),
                    str(qparams["zero_point"]),
                )
            )
    print_table(console, _PORTS, rows)


def _print_notes(console: Console, data: dict[str, Any]) -> None:
    if data["states"]:
        console.print(f"states kept between calls: {len(data['states'])}")
    nodes: dict[tuple[str, str], list[str]] = {}
    for note in data["notes"]:
        nodes.setdefault((note["operator"], note["reason"]), []).append(note["node"])
    for (operator, reason), names in nodes.items():
        more = f" and {len(names) - _SHOWN_NODES} more" if len(names) > _SHOWN_NODES else ""
        shown = ", ".join(f"'{name}'" for name in names[:_SHOWN_NODES])
        console.print(f"float: {operator} {shown}{more}: {reason}", markup=False)
