"""from_pytorch: TorchScript models and torch.export programs, as objects or files, to the QNN dialect.

PyTorch itself is imported when a model is read, not before.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import ModelFormatError, QnnError
from ...module import QnnModule
from ..limits import Limits, importing

__all__ = ["from_pytorch"]


def from_pytorch(
    source: Any,
    example_inputs: Any = None,
    shapes: Mapping[str, Sequence[int]] | Sequence[Sequence[int]] | None = None,
    engine: str | None = None,
    limits: Limits | None = None,
) -> QnnModule:
    """Import a quantized (or float) PyTorch model.

    source:         path of a TorchScript archive or a `.pt2` program, its bytes, a `torch.jit.ScriptModule`, or a
                    `torch.export.ExportedProgram`; the content decides, not the file's name
    example_inputs: arrays or tensors, in order or by name. TorchScript files carry no input shapes, so they need these
                    or `shapes`; the values do not enter the module. A program has its own inputs
    shapes:         input name -> shape: float32 inputs of TorchScript, symbolic dimensions of a program
    engine:         TorchScript only: fbgemm, x86, onednn or qnnpack, whose arithmetic to follow. The file does not say;
                    by default `torch.backends.quantized.engine`, which PyTorch would use itself
    limits:         what the import may take, by default `qnn_ext.Limits()`

    Raises ModelFormatError (damaged file, pickled module, state dictionary), LimitError (beyond the limits),
    UnsupportedOperatorError, ShapeError, and QnnError where PyTorch is missing.
    """
    from .common import import_torch

    torch = import_torch()
    with importing(limits):
        return _import(torch, source, example_inputs, shapes, engine)


def _import(torch: Any, source: Any, example_inputs: Any, shapes: Any, engine: str | None) -> QnnModule:
    if isinstance(source, torch.export.ExportedProgram):
        return _from_program(source, example_inputs, shapes, "model")
    if isinstance(source, torch.jit.ScriptModule):
        return _from_script(source, example_inputs, shapes, engine, "model")
    if isinstance(source, torch.nn.Module):
        raise ModelFormatError(
            f"a {type(source).__name__} is Python code, no graph; pass torch.jit.trace(model.eval(), example) for "
            "eager and FX models, or torch.export.export(model, (example,)) for PT2E models"
        )
    if not isinstance(source, (str, os.PathLike, bytes, bytearray, memoryview)):
        raise QnnError(f"from_pytorch takes a path, bytes, a ScriptModule or an ExportedProgram, found {type(source)}")
    return _from_archive(source, example_inputs, shapes, engine)


def _from_archive(source: Any, example_inputs: Any, shapes: Any, engine: str | None) -> QnnModule:
    from .reader import PROGRAM, load_script, read_archive
    from .torchscript.importer import quantized_engine, resolve_engine

    archive = read_archive(source)
    if archive.kind == PROGRAM:
        from .exported import load_program

        return _from_program(load_program(source), example_inputs, shapes, archive.name)
    resolved = resolve_engine(engine)
    with quantized_engine(resolved):
        module = load_script(archive)
    return _from_script(module, example_inputs, shapes, resolved, archive.name)


def _from_script(module: Any, example_inputs: Any, shapes: Any, engine: str | None, source: str) -> QnnModule:
    from .torchscript import from_script_module

    return from_script_module(module, example_inputs, shapes, engine, source)


def _from_program(program: Any, example_inputs: Any, shapes: Any, source: str) -> QnnModule:
    from .exported import from_exported_program

    if shapes is not None and not isinstance(shapes, Mapping):
        raise QnnError("shapes of a torch.export program is a mapping from input name to shape")
    return from_exported_program(program, source, shapes, example_inputs)
