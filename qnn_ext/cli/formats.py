"""Which format a model file has, by its content and never by its name; and the frontend that reads it.

Formats, by the names they have in --json: qnn, tflite, onnx, pt2, torchscript, mxnet.
"""

from __future__ import annotations

import glob
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, BinaryIO

import click

from ..errors import ModelFormatError, OpenShapeError, QnnError, ShapeError
from ..files.container import XZ
from ..files.reading import open_file
from ..limits import Limits
from ..module import QnnModule

TITLES = {
    "qnn": "compiled by qnn-ext (.qnn)",
    "tflite": "TFLite (.tflite)",
    "onnx": "ONNX (.onnx)",
    "pt2": "PyTorch exported program (.pt2)",
    "torchscript": "TorchScript (.pt)",
    "mxnet": "MXNet (-symbol.json)",
}

_MXNET_PARAMS = (0x112).to_bytes(8, "little")
_PICKLE = b"\x80"
_FIELDS_OF_A_MODEL = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}
# onnx.ModelProto: field number -> wire type (0 a number, 2 anything with a length)


@dataclass(frozen=True)
class ImportOptions:
    """The command line's options for reading a model, None or empty if not given."""

    numerics: str | None = None
    signature: str | None = None
    batch: int | None = None
    shapes: Mapping[str, tuple[int, ...]] | None = None
    constants: Mapping[str, Any] | None = None
    states: Mapping[str, str] | None = None
    largest: Mapping[str, int] | None = None
    params: Path | None = None
    sum_mode: str | None = None
    engine: str | None = None
    limits: Limits | None = None


# ---- recognition -------------------------------------------------------------------------------------------------


def recognize(path: Path) -> str:
    """The format of a file: a key of TITLES. Raises ModelFormatError if there is no file or it has none of the
    formats."""
    with open_file(path, ModelFormatError) as file:
        try:
            head = file.read(16)
            found = _format_of(file, head)
        except OSError as error:
            raise ModelFormatError(f"{path}: cannot be read: {error.strerror}") from error
    if found is None:
        raise ModelFormatError(f"{path}: {_problem(head)}; the supported formats are {', '.join(TITLES.values())}")
    return found


def _format_of(file: BinaryIO, head: bytes) -> str | None:
    if head[4:8] == b"TFL3":
        return "tflite"
    if head[:4] == b"PK\x03\x04":
        return _format_of_zip(file)
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        return _format_of_json(file)
    return "onnx" if _is_onnx(file) else None


def _format_of_zip(file: BinaryIO) -> str | None:
    try:
        names = zipfile.ZipFile(file).namelist()
    except Exception:  # zipfile raises a dozen types on damaged archives
        return None
    members = {name.split("/", 1)[-1] for name in names}  # PyTorch puts everything into one folder
    if "qnn.json" in {name.removesuffix(XZ) for name in names}:  # packed since format 3
        return "qnn"
    if any(name.startswith("models/") for name in members) or "serialized_exported_program.json" in names:
        return "pt2"
    return "torchscript" if {"data.pkl", "constants.pkl"} <= members else None


def _format_of_json(file: BinaryIO) -> str | None:
    file.seek(0)
    try:
        content = json.loads(file.read())
    except (ValueError, RecursionError):
        return None
    return "mxnet" if isinstance(content, dict) and {"nodes", "heads"} <= set(content) else None


def _is_onnx(file: BinaryIO) -> bool:
    """Whether the file is a sequence of a ModelProto's fields, including its IR version and something to run.

    Protobuf has no magic number. A truncated file still counts: its reader will say what is missing.
    """
    seen = set()
    for number, wire_type in _fields(file):
        if _FIELDS_OF_A_MODEL.get(number) != wire_type:
            return False
        seen.add(number)
    return 1 in seen and bool(seen & {2, 7, 8})


def _fields(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """(field number, wire type) of a protobuf message's own fields, at most 64. (0, 0) for anything that is no
    field."""
    file.seek(0)
    for _ in range(64):
        key = _varint(file)
        if key is None:
            return
        yield key >> 3, key & 7
        value = _varint(file)
        if key & 7 not in (0, 2) or value is None:
            return
        if key & 7 == 2:
            file.seek(value, 1)


def _varint(file: BinaryIO) -> int | None:
    """A number of up to ten bytes, seven bits each; None at the end of the file."""
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            return None
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return min(value, 1 << 62)
    return 1 << 62


def _problem(head: bytes) -> str:
    """What kind of file it is, if not a model."""
    if not head:
        return "the file is empty"
    if head.startswith(_MXNET_PARAMS):
        return "these are the parameters of an MXNet model: give its -symbol.json, with this file as --params"
    if head.startswith(_PICKLE):
        return "this is a pickle, which is not read as it can run any code: save the model with torch.export.save"
    if head.startswith(b"PK\x03\x04"):
        return "neither a .qnn file nor a PyTorch program, or damaged (weights saved by torch.save are not a model)"
    if head.startswith(b"{"):
        return "this JSON is not an MXNet symbol, or it is damaged"
    return "its content is in no known format"


# ---- reading -----------------------------------------------------------------------------------------------------


def read_module(path: Path, form: str, options: ImportOptions) -> QnnModule:
    """The model in the QNN dialect. Raises what the frontend raises, and QnnError for an option it does not take."""
    check_options(form, options)
    if options.batch is None:
        return _read(path, form, options, options.shapes)
    shapes: dict[str, Sequence[int]] = {}
    declared = None
    while declared is None:
        try:
            declared = _read(path, form, replace(options, states=None), {**shapes, **(options.shapes or {})})
        except OpenShapeError as error:
            if not all(isinstance(size, int) for size in error.dims[1:]):
                raise
            shapes[error.name] = (options.batch, *map(int, error.dims[1:]))
    for spec in declared.inputs:
        if not spec.shape:
            raise ShapeError(f"input '{spec.name}' is a scalar and has no batch dimension")
        shapes[spec.name] = (options.batch, *spec.shape[1:])
    return _read(path, form, options, {**shapes, **(options.shapes or {})})


def check_options(form: str, options: ImportOptions) -> None:
    """Raise QnnError for an option of another format."""
    takers = {
        "numerics": "tflite",
        "signature": "tflite",
        "params": "mxnet",
        "sum_mode": "mxnet",
        "engine": "torchscript",
        "largest": "onnx",
    }
    for name, taker in takers.items():
        if getattr(options, name) is not None and form != taker:
            raise QnnError(f"--{name.replace('_', '-')} is for {TITLES[taker]} models; this one is {TITLES[form]}")
    if options.constants and form == "mxnet":
        raise QnnError("--constant is not for MXNet models: add the value to the parameters")


def _read(path: Path, form: str, options: ImportOptions, shapes: Mapping[str, Any] | None) -> QnnModule:
    """Read the model. Frontends are imported here: each needs its framework, but only to read such a model."""
    if form == "tflite":
        from ..frontends.tflite import from_tflite

        return from_tflite(
            path,
            numerics=options.numerics or "float32",
            shapes=shapes,
            limits=options.limits,
            constants=options.constants,
            states=options.states,
            signature=options.signature,
        )
    if form == "onnx":
        from ..frontends.onnx import from_onnx

        return from_onnx(
            path,
            shapes=shapes,
            limits=options.limits,
            constants=options.constants,
            states=options.states,
            largest=options.largest,
        )
    if form in ("pt2", "torchscript"):
        from ..frontends.pytorch import from_pytorch

        return from_pytorch(
            path,
            shapes=shapes,
            engine=options.engine,
            limits=options.limits,
            constants=options.constants,
            states=options.states,
        )
    if form == "mxnet":
        from ..frontends.mxnet import from_mxnet

        params = options.params or find_params(path)
        sum_mode = options.sum_mode or "intended"
        return from_mxnet(path, params, shapes=shapes, sum_mode=sum_mode, limits=options.limits, states=options.states)
    raise QnnError(f"{path} is already compiled")


def find_params(symbol: Path) -> Path:
    """The .params file beside a symbol: NAME-0000.params, or another epoch's, for NAME-symbol.json.

    Raises QnnError if there is none or more than one.
    """
    name = symbol.name.removesuffix(".json").removesuffix("-symbol")
    stem = glob.escape(name)
    found = sorted(symbol.parent.glob(f"{stem}-[0-9][0-9][0-9][0-9].params"))
    found = found or sorted(symbol.parent.glob(f"{stem}.params"))
    if len(found) != 1:
        what = f"lie several: {', '.join(path.name for path in found)}" if found else f"is no {name}-0000.params"
        raise QnnError(f"{symbol} needs its parameters, but beside it {what}; give the file with --params")
    return found[0]


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]] | None:
    """--shape NAME=1,224,224,3, repeated. Raises click.BadParameter."""
    return dict(map(_parse_shape, texts)) or None


def _parse_shape(text: str, option: str = "--shape") -> tuple[str, tuple[int, ...]]:
    name, _, dims = text.rpartition("=")
    try:
        shape = tuple(int(dim) for dim in dims.split(","))
    except ValueError:
        shape = ()
    if not name or not shape:
        raise click.BadParameter(f"{text!r} is not NAME=1,224,224,3", param_hint=option)
    return name, shape


def parse_also(texts: Sequence[str], signatures: bool) -> list[dict[str, tuple[int, ...]] | Path | str]:
    """--also NAME=1,128, with a ; between several inputs, or the file of a model, or with `signatures` the name of one.
    Raises click.BadParameter."""
    return [_parse_also(text, signatures) for text in texts]


def _parse_also(text: str, signatures: bool) -> dict[str, tuple[int, ...]] | Path | str:
    if Path(text).is_file():
        return Path(text)
    if signatures and "=" not in text:
        return text
    return dict(_parse_shape(one, "--also") for one in text.split(";"))


def parse_constants(texts: Sequence[str]) -> dict[str, Any] | None:
    """--constant NAME=16000 or NAME=0.5,1,2, repeated. Raises click.BadParameter."""
    return dict(map(_parse_constant, texts)) or None


def _parse_constant(text: str) -> tuple[str, Any]:
    name, _, values = text.rpartition("=")
    try:
        parsed = json.loads(f"[{values}]")
    except (ValueError, RecursionError):
        parsed = []
    if not name or not parsed or not all(isinstance(value, (bool, int, float)) for value in parsed):
        raise click.BadParameter(f"{text!r} is not NAME=NUMBER or NAME=NUMBER,NUMBER,…", param_hint="--constant")
    return name, parsed if len(parsed) > 1 else parsed[0]


def parse_states(texts: Sequence[str]) -> dict[str, str] | None:
    """--state INPUT=OUTPUT, repeated. Raises click.BadParameter."""
    pairs = [text.partition("=") for text in texts]
    for text, (before, _, after) in zip(texts, pairs, strict=True):
        if not before or not after:
            raise click.BadParameter(f"{text!r} is not INPUT=OUTPUT", param_hint="--state")
    return {before: after for before, _, after in pairs} or None


def parse_largest(texts: Sequence[str]) -> dict[str, int] | None:
    """--largest NAME=400, repeated. Raises click.BadParameter."""
    pairs = [text.rpartition("=") for text in texts]
    for text, (name, _, number) in zip(texts, pairs, strict=True):
        if not name or not number.isdecimal():
            raise click.BadParameter(f"{text!r} is not NAME=NUMBER", param_hint="--largest")
    return {name: int(number) for name, _, number in pairs} or None


def parse_limits(texts: Sequence[str]) -> Limits | None:
    """--limit unrolled=4096, repeated. Raises click.BadParameter."""
    known = [limit.name for limit in fields(Limits)]
    given: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in known:
            raise click.BadParameter(
                f"{text!r} is not NAME=NUMBER with a NAME out of {', '.join(known)}", param_hint="--limit"
            )
        try:
            given[name] = float(value) if name == "seconds" else int(value)
        except ValueError:
            raise click.BadParameter(f"{value!r} in {text!r} is not a number", param_hint="--limit") from None
    return Limits(**given) if given else None
