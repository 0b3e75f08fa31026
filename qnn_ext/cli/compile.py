"""`qnn-ext compile`: a model file in, one `.qnn` file out."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import QnnError
from ..files.signing import PASSPHRASE, private_key
from ..module import QnnModule
from ..qparams import PRECISIONS
from ..running.engine import Engine
from ..running.model import target_name
from .c_library import CNames, c_library, emit_options
from .common import (
    FILE,
    build_options,
    bytes_text,
    cache_dtype_option,
    compile_model,
    counted,
    import_model,
    json_option,
    memory_text,
    note_data,
    out,
    print_json,
    spec_data,
)
from .formats import ImportOptions, parse_also, recognize
from .outputs import check_compiled, check_new_folder, destination
from .progress import Detail

if TYPE_CHECKING:
    from ..autotune.measured import Measure


@click.command("compile")
@click.argument("model", type=FILE)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Default: MODEL's name with .qnn, in the current folder; - is the standard output. With --emit c, the folder "
    "of the C library.",
)
@emit_options
@click.option(
    "--also",
    multiple=True,
    metavar="NAME=1,128|MODEL|SIGNATURE",
    help="Another shape that the .qnn file takes, over the same weights and states: of an input, or of several, with ; "
    "between them; or a file of the same model for another shape; or, with --signature, another one. Repeatable.",
)
@click.option("--tuning", type=FILE, help="Log of `qnn-ext tune`: use the best configurations recorded for the target.")
@click.option(
    "--measure",
    is_flag=True,
    help="Time the best few configurations of each kernel on this machine and use the fastest; what is known from "
    "earlier builds is not timed again.",
)
@click.option(
    "--workspace-limit", type=click.IntRange(1), metavar="BYTES", help="The most memory that feature maps may take."
)
@click.option(
    "--jobs", type=click.IntRange(1, 1024), help="The most threads that generate machine code. Default: all cores."
)
@click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default="float32",
    show_default=True,
    help="Of the products that are not quantized: their operands are rounded to it, sums stay float32.",
)
@click.option(
    "--io",
    type=click.Choice(("model", "float32")),
    default="model",
    show_default=True,
    help="Inputs and outputs: float32 ones take and return real values where the model's are quantized.",
)
@cache_dtype_option
@click.option("--verbose", is_flag=True, help="Show each pass: its time, and what it changed.")
@click.option(
    "--dump-ir", type=click.Path(path_type=Path), metavar="DIR", help="Write the module after each pass, as TVMScript."
)
@click.option("--sign", type=FILE, metavar="KEY", help="Sign the file with this private key (Ed25519, PEM).")
@build_options
@json_option
def compile_(
    model: Path,
    output: Path | None,
    emit: str,
    also: tuple[str, ...],
    name: str | None,
    weights: str | None,
    shared: bool,
    tuning: Path | None,
    measure: bool,
    workspace_limit: int | None,
    jobs: int | None,
    precision: str,
    io: str,
    cache_dtype: str,
    verbose: bool,
    dump_ir: Path | None,
    sign: Path | None,
    target: str,
    threads: int | None,
    importing: ImportOptions,
    as_json: bool,
) -> None:
    """Compile MODEL to one .qnn file, which runs without the frontend and its framework, or to a C library.

    MODEL: .tflite, .onnx, PyTorch .pt2, TorchScript .pt, or MXNet -symbol.json with its .params beside it.

    \b
    Examples:
      qnn-ext compile mobilenet.tflite -o mobilenet.qnn
      qnn-ext compile mobilenet.tflite --target x86-64 --threads 1
      qnn-ext compile mobilenet.tflite --target avx512_vnni,avx2,x86-64
      qnn-ext compile mobilenet.tflite --target rpi4
      qnn-ext compile mobilenet.tflite --tuning tuning.jsonl
      qnn-ext compile mobilenet.tflite --measure
      qnn-ext compile mobilenet.tflite --verbose --dump-ir modules/
      qnn-ext compile resnet50.onnx --precision bfloat16
      qnn-ext compile mobilenet.tflite --sign private.pem
      qnn-ext compile mobilenet.tflite --emit c -o mobilenet/ --target rpi3,rpi5
      qnn-ext compile mobilenet.tflite --batch 8 --numerics tflite
      qnn-ext compile bert.onnx --shape input_ids=1,128
      qnn-ext compile llama1.pt2 --also llama128.pt2 --cache-dtype int8
      qnn-ext compile gemma.tflite --signature decode --also prefill
      qnn-ext compile resnet18-symbol.json --shape data=1,3,224,224
    """
    form = recognize(model)
    if form == "qnn":
        raise QnnError(f"{model} is already compiled")
    if measure and tuning:
        raise QnnError("--measure and --tuning both choose the kernels' configurations: give one of them")
    shapes = parse_also(also, importing.signature is not None)
    if shapes and (measure or emit == "c"):
        raise QnnError(
            f"--also is for .qnn files, without --measure: leave out {'--measure' if measure else '--emit c'}"
        )
    library = c_library(emit, output, model, CNames(name, weights, shared), threads or 1, sign)
    output = output or Path(model.with_suffix(".qnn").name)
    if library is None:
        check_compiled(output, [model, tuning, sign, importing.params], as_json)
    if dump_ir is not None:
        check_new_folder("--dump-ir", dump_ir)
    detail = Detail(dump_ir) if verbose or dump_ir is not None else None
    key = None if sign is None else private_key(sign, _ask_passphrase)  # before any long-running work
    started = time.perf_counter()
    module = import_model(model, form, importing)
    modules = [module, *(_other_shape(shape, model, form, importing) for shape in shapes)]
    imported = {"pass": "import", "seconds": time.perf_counter() - started, "changed": None}
    settings: dict[str, Any] = {
        "workspace_limit": workspace_limit,
        "jobs": jobs,
        "precision": precision,
        "io": io,
        "cache_dtype": cache_dtype,
        "measure": _measuring(as_json) if measure else False,
    }
    if library is not None:
        with _tuned(tuning):
            engine = compile_model(module, target, threads or 1, library.write, detail, code=False, **settings)
        library.report(engine, model, time.perf_counter() - started, as_json)
        return
    with destination(output) as place, _tuned(tuning):
        save = partial(Engine.save, path=place, sign=key)
        engine = compile_model(modules if shapes else module, target, threads, save, detail, **settings)
        size = place.stat().st_size
    passes = [] if detail is None else [imported, *detail.rows]
    seconds = time.perf_counter() - started
    if as_json:
        print_json(_summary(engine, model, output, size, seconds) | ({"passes": passes} if passes else {}))
        return
    console = out(aside=str(output) == "-")
    if verbose:
        from .passes import print_passes

        print_passes(console, passes)
    console.print(
        f"{model} → {output}: {bytes_text(size)}, {counted(len(engine.kernels), 'kernel')}, {seconds:.1f} s",
        markup=False,
    )
    for one, memory in zip(engine.variants, engine.memories, strict=True):
        console.print(f"{target_name(one)}: {memory_text(memory)}", markup=False)
    if engine.notes:
        many = f"{counted(len(engine.notes), 'operator')} in float"
        console.print(f"{many}: `qnn-ext inspect {output}` says which, and why", markup=False)


def _other_shape(
    shape: dict[str, tuple[int, ...]] | Path | str, model: Path, form: str, importing: ImportOptions
) -> QnnModule:
    """The model for the shape of --also."""
    if isinstance(shape, Path):
        return import_model(shape, recognize(shape), importing)
    if isinstance(shape, str):
        return import_model(model, form, replace(importing, signature=shape))
    return import_model(model, form, replace(importing, shapes={**(importing.shapes or {}), **shape}))


def _tuned(log: Path | None) -> AbstractContextManager:
    """A context in which kernels have the configurations of --tuning."""
    if log is None:
        return nullcontext()
    from ..autotune.records import apply_history_best  # only here and below: they import TVM

    return apply_history_best(log)


def _measuring(quiet: bool) -> Measure:
    from ..autotune.measured import Measure

    return Measure(progress=not quiet)


def _ask_passphrase() -> str:
    if not sys.stdin.isatty():
        raise QnnError(f"the key is encrypted: set the environment variable {PASSPHRASE} to its passphrase")
    passphrase: str = click.prompt("Passphrase of the key", hide_input=True, err=True)
    return passphrase


def _summary(engine: Engine, model: Path, output: Path, size: int, seconds: float) -> dict[str, Any]:
    return {
        "model": str(model),
        "output": str(output),
        "bytes": size,
        "seconds": round(seconds, 3),
        "target": engine.target,
        "targets": engine.variants,
        "memory": [
            {"target": target_name(one), **asdict(memory)}
            for one, memory in zip(engine.variants, engine.memories, strict=True)
        ],
        "features": engine.features,
        "kernels": len(engine.kernels),
        "inputs": [spec_data(spec) for spec in engine.inputs],
        "outputs": [spec_data(spec) for spec in engine.outputs],
        "notes": [note_data(note) for note in engine.notes],
    }
