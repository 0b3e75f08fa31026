"""The formats: how files of each are read, run and damaged."""

from __future__ import annotations

import importlib
import io
import json
import random
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import qnn_ext

Mutator = Callable[[bytes, random.Random], bytes]

NAMES = ("tflite", "onnx", "pt2", "torchscript", "mxnet", "qnn")
INSIDE = "-inside"
"""Suffix to "pt2" and "torchscript": files are imported in the fuzzer's child itself, not in the process that
`from_pytorch` starts for each. That is many times as fast, and finds what that process must withstand; checking such a
file in the format itself shows whether it does."""
TORCHSCRIPT_INPUT = (1, 1, 8, 8)
"""The shape of the one input of all TorchScript seeds: such files do not record it."""


@dataclass(frozen=True)
class Format:
    """A kind of file.

    read:     bytes → a QnnModule, or an Engine where the file holds one
    mutators: with their names, which cases record; a repeated name is drawn more often
    suffix:   file name suffix
    run_every: build and run every Nth file, unless told otherwise
    """

    read: Callable[[bytes], Any]
    mutators: tuple[tuple[str, Mutator], ...]
    suffix: str
    run_every: int = 10


@cache
def find(name: str) -> Format:
    """One of NAMES, or "module:attribute" of a Format elsewhere."""
    if ":" in name:
        module, _, attribute = name.partition(":")
        return getattr(importlib.import_module(module), attribute)
    if name in (f"pt2{INSIDE}", f"torchscript{INSIDE}"):
        return replace(find(name.removesuffix(INSIDE)), read=_read_inside)
    if name not in NAMES:
        raise ValueError(f"unknown format {name!r}: {', '.join(NAMES)}")
    return globals()[f"_{name}"]()


def named(*groups: tuple[Mutator, ...]) -> tuple[tuple[str, Mutator], ...]:
    """Mutators with the names that cases record."""
    return tuple((mutator.__name__, mutator) for group in groups for mutator in group)


def _tflite() -> Format:
    from .mutators import flatbuffer, raw

    def read(data: bytes) -> Any:
        # the content decides between the two numerics, so that a file alone repeats what happened
        return qnn_ext.from_tflite(data, numerics=("float32", "tflite")[zlib.crc32(data) % 2])

    return Format(read, named(flatbuffer.MUTATORS, raw.MUTATORS), ".tflite")


def _onnx() -> Format:
    from .mutators import protobuf, raw

    return Format(qnn_ext.from_onnx, named(protobuf.MUTATORS, raw.MUTATORS[:3]), ".onnx")


def _pt2() -> Format:
    from .mutators import archive, program, raw

    rules = archive.Rules(
        (
            (r"models/model\.json$", program.change_program),
            (r"\.json$", archive.JSON),
            (r"\.data/|byteorder$|sample_inputs", None),  # nobody reads them
            (r"weight_\d|tensor_\d|data/constants", raw.anything),
        )
    )
    return Format(qnn_ext.from_pytorch, named(archive.archive_mutators(rules), raw.MUTATORS[:1]), ".pt2")


def _example() -> tuple[np.ndarray]:
    return (np.zeros(TORCHSCRIPT_INPUT, np.float32),)


def _read_inside(data: bytes) -> Any:
    from qnn_ext.frontends.pytorch.child import import_archive
    from qnn_ext.frontends.pytorch.reader import TORCHSCRIPT, read_archive
    from qnn_ext.limits import limited

    archive = read_archive(data)
    with limited(None):
        return import_archive(archive, _example() if archive.kind == TORCHSCRIPT else None, None, None)


def _torchscript() -> Format:
    from .mutators import archive, code, pickled, raw

    rules = archive.Rules(
        (
            (r"\.py$", code.change_code),
            (r"debug_pkl$|\.data/|traced_inputs", None),  # nobody reads them
            (r"\.pkl$", pickled.change_pickle),
            (r"data/|constants/", raw.anything),
        )
    )

    def read(data: bytes) -> Any:
        return qnn_ext.from_pytorch(data, example_inputs=_example())

    return Format(read, named(archive.archive_mutators(rules), raw.MUTATORS[:1]), ".pt")


def pack_mxnet(symbol: str, params: bytes, shapes: dict[str, tuple[int, ...]]) -> bytes:
    """An MXNet model, two files and the shapes of its inputs, packed as one file."""
    from .mutators import archive

    parts = {"symbol.json": symbol.encode(), "model.params": params, "shapes.json": json.dumps(shapes).encode()}
    return archive.packed([archive.Member(name, content, zipfile.ZIP_DEFLATED) for name, content in parts.items()])


def _mxnet() -> Format:
    from .mutators import archive

    rules = archive.Rules(((r"^symbol", archive.JSON), (r"^shapes", None)))

    def read(data: bytes) -> Any:
        with zipfile.ZipFile(io.BytesIO(data)) as parts:
            symbol, params, shapes = map(parts.read, ("symbol.json", "model.params", "shapes.json"))
        return qnn_ext.from_mxnet(symbol, params, json.loads(shapes))

    change_member = archive.archive_mutators(rules)[0]  # the container is our own and is not damaged
    return Format(read, named((change_member,)), ".zip")


def _qnn() -> Format:
    from .mutators import qnn

    def read(data: bytes) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.qnn")
            path.write_bytes(data)
            return qnn_ext.load(path, num_threads=1)

    return Format(read, named(qnn.MUTATORS), ".qnn", run_every=2)
