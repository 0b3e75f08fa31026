"""The files of a network, each made in a process of its own: ONNX, GGUF, torchao's weights, and `.qnn` compiled from
the ONNX model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..memory import peak_bytes, reset_peak
from ..worker import WorkerError, computed_apart
from .networks import MASK, TOKENS, Network, onnx_model, write_gguf

TORCHAO = "torchao."
"""What the kinds of torchao's files begin with; a scheme follows."""
_LIMIT = 600.0


@dataclass(frozen=True)
class File:
    """A model for one runtime, and what making it took.

    seconds:    for importing, building and saving
    peak_bytes: of the process that built it
    """

    path: str
    bytes: int
    seconds: float = 0.0
    peak_bytes: int | None = None


def write_files(
    network: Network, bits: int, lengths: Sequence[int], kinds: set[str], threads: int, folder: Path, verbose: bool
) -> dict[str, File | WorkerError]:
    """A file of each kind that is wanted, or why there is none. lengths: numbers of tokens that ours takes at once."""
    further = {"qnn": (tuple(lengths), threads)}
    makers = {"onnx": _write_onnx, "gguf": _write_gguf, "qnn": _build}
    for kind in sorted(kinds):
        if kind.startswith(TORCHAO):
            makers[kind], further[kind] = _write_torchao, (kind,)
    files: dict[str, File | WorkerError] = {}
    for kind, make in makers.items():
        if kind not in kinds and kind != "onnx":
            continue
        arguments = (network, bits, folder, *further.get(kind, ()))
        try:
            files[kind] = computed_apart(make, *arguments, limit=_LIMIT, verbose=verbose)
        except WorkerError as error:
            files[kind] = error
    return files


def _path(network: Network, bits: int, folder: Path, kind: str) -> Path:
    return folder / f"{network.name}.{bits}bit.{kind}"


def _write_onnx(network: Network, bits: int, folder: Path) -> File:
    import onnx

    path = _path(network, bits, folder, "onnx")
    onnx.save(onnx_model(network, bits), path)
    return File(str(path), path.stat().st_size)


def _write_gguf(network: Network, bits: int, folder: Path) -> File:
    path = _path(network, bits, folder, "gguf")
    write_gguf(path, network, bits)
    return File(str(path), path.stat().st_size)


def _write_torchao(network: Network, bits: int, folder: Path, kind: str) -> File:
    from .torch_network import write_torchao

    path = _path(network, bits, folder, kind)
    write_torchao(path, network, bits, kind.removeprefix(TORCHAO))
    return File(str(path), path.stat().st_size)


def _build(network: Network, bits: int, folder: Path, lengths: Sequence[int], threads: int) -> File:
    import qnn_ext

    source = _path(network, bits, folder, "onnx")
    reset_peak()
    started = time.perf_counter()
    modules = []
    for length in lengths:
        shapes = {TOKENS: (1, length), MASK: (1, network.length), **dict.fromkeys(network.states, network.cache_shape)}
        modules.append(qnn_ext.from_onnx(source, shapes=shapes, states=network.states))
    path = _path(network, bits, folder, f"{threads}.qnn")
    qnn_ext.build(modules, num_threads=threads, cache=False).save(path)
    return File(str(path), path.stat().st_size, time.perf_counter() - started, peak_bytes())
