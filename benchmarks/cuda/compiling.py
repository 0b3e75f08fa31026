"""A model built for the GPU in its own process, with the CPU's results for the same inputs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..compiling import _random_input, import_model
from ..worker import computed_apart
from .plan import Item

if TYPE_CHECKING:
    import qnn_ext

FORMS = ("int8", "int8-graph", "float32", "float16")


@dataclass(frozen=True)
class Built:
    """One form of a model: its .qnn file, and its build time in seconds, including nvcc or NVRTC."""

    path: str
    seconds: float


@dataclass(frozen=True)
class Compiled:
    """The inputs, the CPU build's results for them (int8), multiply-accumulates and the integer share of them."""

    inputs: list[np.ndarray]
    expected: list[np.ndarray]
    macs: int
    integer_share: float
    built: Built


def compile_item(item: Item, form: str, target: str, folder: Path, limit: float) -> Compiled:
    """Build one form of an item. Raises WorkerError if it fails or takes longer than `limit` seconds."""
    result = computed_apart(compile_here, item, form, target, folder, limit=limit)
    assert isinstance(result, Compiled)
    return result


def compile_here(item: Item, form: str, target: str, folder: Path) -> Compiled:
    """The same in this process."""
    import qnn_ext
    from qnn_ext.compiling.coverage import coverage

    path = item.model.path if form.startswith("int8") else item.float_twin
    if path is None:
        raise FileNotFoundError(f"no float32 file beside {item.model.path.name}")
    stored = item.model.stored_inputs()
    module = import_model(path, stored)
    inputs = stored or [_random_input(spec) for spec in module.inputs]
    if form == "float16":
        module = in_float16(module)
    started = time.perf_counter()
    engine = qnn_ext.build(module, target, cuda_graph=form.endswith("-graph"))
    saved = folder / f"{item.model.path.name}.{form}.qnn"
    engine.save(saved)
    seconds = time.perf_counter() - started
    expected = list(qnn_ext.build(module).run(inputs).values()) if form == "int8" else []
    found = coverage(module)
    return Compiled(inputs, expected, found.macs, found.share, Built(str(saved), seconds))


def in_float16(module: qnn_ext.QnnModule) -> qnn_ext.QnnModule:
    """A float32 network with all products on float16 operands: `quantize` with nothing to calibrate."""
    from qnn_ext.quantize import QConfig
    from qnn_ext.quantize.annotate import annotate
    from qnn_ext.quantize.fold import fold

    config = QConfig(overrides={"*": {"precision": "float16"}})
    return annotate(fold(module, config), config)
