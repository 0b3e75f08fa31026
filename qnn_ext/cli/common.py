"""What the commands share: options, consoles, progress, opening a model, describing tensors."""

from __future__ import annotations

import functools
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..errors import QnnError
from ..limits import using
from ..module import FloatNote, QnnModule, TensorSpec
from ..processes.cores import kept_to
from ..qparams import CACHE_DTYPES
from ..running.kernels import Kernel
from ..running.model import Memory
from .formats import (
    TITLES,
    ImportOptions,
    parse_constants,
    parse_largest,
    parse_limits,
    parse_shapes,
    parse_states,
    read_module,
    recognize,
)
from .progress import Detail, stages, step

if TYPE_CHECKING:
    from rich.console import Console

    from ..running.engine import Engine

Command = TypeVar("Command", bound=Callable[..., Any])

FILE = click.Path(path_type=Path)  # readers report a missing file, with our own error

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
float_option = click.option(
    "--float", "float_file", type=FILE, metavar="MODEL", help="The float version of the one quantized MODEL given."
)
threads_option = click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    help="Threads the kernels may use. Default: all cores; one for a small model.",
)
verify_option = click.option(
    "--verify",
    type=FILE,
    metavar="PUBLIC_KEY",
    help="Refuse a .qnn file unless it is signed with this key (Ed25519, PEM).",
)


def cache_dtype_option(command: Command) -> Command:
    """The option --cache-dtype of commands that build a language model."""
    return click.option(
        "--cache-dtype",
        type=click.Choice(CACHE_DTYPES),
        default="model",
        show_default=True,
        help="Of a language model's key-value cache: int8 has a scale for each row, found when it is written.",
    )(command)


def normalize_option(text: str) -> Callable[[Command], Command]:
    """The option --normalize with its help."""
    from ..images import NORMALIZATIONS  # only here: it takes NumPy

    return click.option("--normalize", type=click.Choice(NORMALIZATIONS), default="auto", show_default=True, help=text)


def import_options(command: Command) -> Command:
    """The options for reading a model file, passed on as one ImportOptions named `importing`."""

    @functools.wraps(command)
    def wrapped(
        shapes: tuple[str, ...],
        constants: tuple[str, ...],
        states: tuple[str, ...],
        largest: tuple[str, ...],
        limits: tuple[str, ...],
        **options: Any,
    ) -> Any:
        given = {field.name: options.pop(field.name) for field in fields(ImportOptions) if field.name in options}
        importing = ImportOptions(
            shapes=parse_shapes(shapes),
            constants=parse_constants(constants),
            states=parse_states(states),
            largest=parse_largest(largest),
            limits=parse_limits(limits),
            **given,
        )
        with using(importing.limits):  # for all that the command builds, calibration's float model included
            return command(importing=importing, **options)

    for option in reversed(
        [
            click.option("--batch", type=click.IntRange(1), help="Batch size: the first dimension of every input."),
            click.option(
                "--shape", "shapes", multiple=True, metavar="NAME=1,224,224,3", help="Shape of one input. Repeatable."
            ),
            click.option(
                "--constant",
                "constants",
                multiple=True,
                metavar="NAME=NUMBER",
                help="Value of an input that never changes: the compiled model does not have it. Repeatable.",
            ),
            click.option(
                "--state",
                "states",
                multiple=True,
                metavar="INPUT=OUTPUT",
                help="An input whose next value is an output: the compiled model keeps it between calls. Repeatable; a "
                "* in both stands for the same text: 'past.*=present.*'.",
            ),
            click.option(
                "--largest",
                multiple=True,
                metavar="NAME=NUMBER",
                help="The largest value of an integer that an ONNX model computes from data and that becomes a size. "
                "Repeatable.",
            ),
            click.option(
                "--numerics",
                type=click.Choice(["float32", "tflite"]),
                help="Rounding of TFLite models: float32 rounds as XNNPACK does (default), tflite as TFLite's "
                "reference kernels do, bit for bit.",
            ),
            click.option(
                "--signature",
                metavar="NAME",
                help="Entry point of a TFLite model that has several, such as prefill. Default: its main graph.",
            ),
            click.option("--params", type=FILE, help="MXNet's .params file. Default: the one beside the -symbol.json."),
            click.option(
                "--sum-mode",
                type=click.Choice(["intended", "mxnet"]),
                help="Residual sums of MXNet models: intended (default) keeps the full range of the result, mxnet "
                "clips as MXNet does, bit for bit.",
            ),
            click.option(
                "--engine",
                type=click.Choice(["fbgemm", "x86", "onednn", "qnnpack"]),
                help="PyTorch engine whose arithmetic TorchScript models follow. Default: the one PyTorch uses here.",
            ),
            click.option(
                "--limit",
                "limits",
                multiple=True,
                metavar="NAME=NUMBER",
                help="Change a limit on the import and the build; the error for an exceeded limit names it. "
                "Repeatable.",
            ),
        ]
    ):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


def build_options(command: Command) -> Command:
    """The options for building a model: `target`, `threads`, `importing`."""
    target = click.option(
        "--target",
        default="native",
        show_default=True,
        help="native, a family of x86 CPUs (amx_int8, avx512_vnni, avx_vnni, avx512, avx2, x86-64), an ARM board or "
        "CPU (rpi3, rpi4, rpi5, graviton2, graviton3, graviton4, aarch64, armv7), riscv64, an LLVM CPU name "
        "(cortex-a72), cuda or a GPU's architecture (sm_80). Several, separated by commas, go into one file, which "
        "uses the fastest that its machine supports.",
    )
    return target(threads_option(import_options(command)))


def cores_option(command: Command) -> Command:
    """The option --cores: the command runs on these cores, which it is given as a tuple, empty for all."""

    @functools.wraps(command)
    def wrapped(cores: str | None, **options: Any) -> Any:
        chosen = () if cores is None else _parse_cores(cores)
        with kept_to(chosen):
            return command(cores=chosen, **options)

    return click.option(  # type: ignore[return-value]
        "--cores",
        metavar="0,2-3",
        help="Run on these cores only, by the system's numbers. Default: all that this process may use.",
    )(wrapped)


def _parse_cores(text: str) -> tuple[int, ...]:
    """The numbers that commas separate, or ranges of them. Raises click.BadParameter."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise click.BadParameter(
                f"{part.strip()!r} is neither a core, as 2, nor a range, as 0-3", param_hint="--cores"
            )
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(found))


# ---- output ------------------------------------------------------------------------------------------------------


def out(aside: bool = False) -> Console:
    """The console for results. Without a terminal, lines are wrapped at COLUMNS, or at 160 columns, not at 80.

    aside: whether it is stderr, as stdout has the content of a file
    """
    from rich.console import Console  # only here: JSON needs none

    console = Console(highlight=False, stderr=aside)
    fits = console.is_terminal or "COLUMNS" in os.environ
    return console if fits else Console(highlight=False, stderr=aside, width=160)


def print_json(data: Any) -> None:
    """One JSON document on stdout. Infinities and NaN, which JSON lacks, become null."""
    click.echo(json.dumps(_finite(data), indent=2, ensure_ascii=False, allow_nan=False))


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def bytes_text(count: int) -> str:
    """12 B, 3.4 kB, 5.6 MB."""
    if count < 1000:
        return f"{count} B"
    return f"{count / 1e3:.1f} kB" if count < 1_000_000 else f"{count / 1e6:.2f} MB"


def memory_text(memory: Memory) -> str:
    """weights 3.4 MB, feature maps 1.2 MB."""
    return f"weights {bytes_text(memory.weights)}, feature maps {bytes_text(memory.feature_maps)}"


def code_text(code: Mapping[str, Any], memory: Memory) -> str:
    """flash 21 kB (code 12 kB, weights 9 kB), RAM 4 kB, stack about 300 B (run → dense); largest kernel 4 kB, dense."""
    flash = code["flash"] + memory.weights
    parts = f"code {bytes_text(code['flash'])}, weights {bytes_text(memory.weights)}"
    chain = " → ".join(map(_shortened, code["chain"]))
    stack = f", stack about {bytes_text(code['stack'])} ({chain})" if code["stack"] else ""
    ram = f"RAM {bytes_text(memory.feature_maps)}{stack}"
    largest = f"; largest kernel {bytes_text(code['largest'])}, {_shortened(code['kernel'])}" if code["kernel"] else ""
    return f"flash {bytes_text(flash)} ({parts}), {ram}{largest}"


def _shortened(name: str) -> str:
    """A layer's name, of which converters make long ones."""
    return name if len(name) <= 40 else f"{name[:20]}…{name[-19:]}"


def count_text(count: int) -> str:
    """A number of operations with its prefix: 12, 3.40 k, 5.60 M, 7.80 G."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= factor:
            return f"{count / factor:.2f} {prefix}"
    return str(count)


def counted(count: int, thing: str) -> str:
    """1 kernel, 2 kernels."""
    return f"{count} {thing}{'' if count == 1 else 's'}"


def print_reasons(console: Console, fallback: str, kernels: Iterable[Kernel]) -> None:
    """Print why a compiled model runs slower than it could; nothing for one that runs as intended."""
    if fallback:
        console.print(f"runs on TVM's virtual machine, kernel by kernel: {fallback}", markup=False)
    for kernel in kernels:
        if kernel.reason:
            console.print(f"{kernel.implementation}: '{kernel.layer}': {kernel.reason}", markup=False)


def spec_data(spec: TensorSpec) -> dict[str, Any]:
    """An input or output for JSON; "bounded" are the axes with sizes known only at run time, at most the shape's."""
    qparams = spec.qparams and {
        "scale": spec.qparams.scale.astype("float64").tolist(),
        "zero_point": spec.qparams.zero_point.tolist(),
        "axis": spec.qparams.axis,
    }
    bounded = {"bounded": list(spec.bounded)} if spec.bounded else {}
    return {"name": spec.name, "shape": list(spec.shape), **bounded, "dtype": spec.dtype, "qparams": qparams}


def shape_text(spec: Mapping[str, Any]) -> str:
    """The shape in `spec_data`, as TensorSpec's `dims` show it."""
    bounded = spec.get("bounded", ())
    dims = (f"≤{size}" if axis in bounded else str(size) for axis, size in enumerate(spec["shape"]))
    return "×".join(dims) or "scalar"


def note_data(note: FloatNote) -> dict[str, str]:
    """A float note for JSON."""
    return {"node": note.node, "operator": note.operator, "reason": note.reason}


# ---- models ------------------------------------------------------------------------------------------------------


def import_model(path: Path, form: str, importing: ImportOptions) -> QnnModule:
    """Read a model file of format `form` into the QNN dialect."""
    with step(f"importing {path.name}"):
        return read_module(path, form, importing)


def float_version(path: Path | None, models: Sequence[Path], importing: ImportOptions) -> QnnModule | None:
    """The model of --float, if it is given. Raises QnnError if it could be the version of several models."""
    if path is None:
        return None
    if len(models) > 1:
        raise QnnError(f"--float is the float version of one model, but {len(models)} models were given")
    return import_model(path, recognize(path), importing)


def target_names(text: str) -> list[str]:
    """The targets of --target, which commas separate."""
    return [name.strip() for name in text.split(",")]


def compile_model(
    module: QnnModule | Sequence[QnnModule],
    target: str,
    threads: int | None,
    output: Callable[[Engine], None] | None = None,
    detail: Detail | None = None,
    **options: Any,
) -> Engine:
    """Build an imported model, or one for several shapes.

    output:  what is then done with the engine, and may be when machine code is generated
    detail:  what to find out about the passes, for which they must run: no build from the cache is used then
    options: further ones of `build`
    """
    from ..building import build  # only here: compiled models run without TVM's compiler
    from ..compiling.watch import watching
    from .passes import Passes

    names = target_names(target)
    if detail is not None:
        options["cache"] = False
    source = (module if isinstance(module, QnnModule) else module[0]).source
    shown = nullcontext() if options.get("measure") else stages(f"compiling {Path(source).name}")
    with shown as tell, watching(Passes(tell, len(names), detail)):
        engine = build(module, names if len(names) > 1 else names[0], num_threads=threads, **options)
        if output is not None:
            output(engine)
    return engine


def open_engine(
    path: Path,
    target: str,
    threads: int | None,
    importing: ImportOptions,
    verify: Path | None = None,
    cache_dtype: str = "model",
) -> Engine:
    """The engine of a `.qnn` file, verified if a key is given, or of a model file, which is compiled."""
    form = recognize(path)
    if form != "qnn":
        refuse_verify(path, verify)
        return compile_model(import_model(path, form, importing), target, threads, cache_dtype=cache_dtype)
    if cache_dtype != "model":
        raise QnnError(
            f"{path} is already compiled, and so is its cache: give --cache-dtype to `qnn-ext compile`, or leave it out"
        )
    refuse_import_options(path, importing)
    refuse_target(path, None if target == "native" else target)
    from ..running.engine import load  # only here: `inspect` runs nothing

    return load(path, num_threads=threads, verify=verify)


def refuse_verify(path: Path, verify: Path | None) -> None:
    """Raise QnnError if verification is requested for a file that cannot be signed."""
    if verify is not None:
        raise QnnError(f"{path} is not a compiled .qnn file, and only those are signed: leave out --verify")


def refuse_target(path: Path, target: str | None) -> None:
    """Raise QnnError if a target is given for a compiled file."""
    if target is not None:
        raise QnnError(f"{path} is already compiled, for the targets that `qnn-ext inspect` shows: leave out --target")


def refuse_import_options(path: Path, importing: ImportOptions) -> None:
    """Raise QnnError if import options are given for a compiled file."""
    if importing != ImportOptions():
        raise QnnError(
            f"{path} is {TITLES['qnn']}: its shapes and numerics are fixed; give these options to `qnn-ext compile`"
        )
