"""from_pytorch: TorchScript models and torch.export programs, as objects or files, to the QNN dialect.

PyTorch itself is only imported when a model is read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ...entry_points import load_plugins
from ...errors import ModelFormatError, QnnError
from ...limits import Limits, limited
from ...module import QnnModule

__all__ = ["from_pytorch"]


def from_pytorch(
    source: Any,
    example_inputs: Any = None,
    shapes: Mapping[str, Sequence[int]] | Sequence[Sequence[int]] | None = None,
    engine: str | None = None,
    limits: Limits | None = None,
    constants: Mapping[str, Any] | None = None,
    states: Mapping[str, str] | None = None,
) -> QnnModule:
    """Import a quantized (or float) PyTorch model.

    source:         path of a TorchScript archive or a `.pt2` program, its bytes, a `torch.jit.ScriptModule`, or a
                    `torch.export.ExportedProgram`; the kind is told from the content, not the file name
    example_inputs: arrays or tensors, in order or by name. TorchScript files carry no input shapes, so they need these
                    or `shapes`; the values do not enter the module. A program has its own inputs
    shapes:         input name -> shape: float32 inputs of TorchScript, symbolic dimensions of a program
    engine:         TorchScript only: the engine whose arithmetic to follow: fbgemm, x86, onednn or qnnpack. The file
                    does not say; by default `torch.backends.quantized.engine`, which PyTorch itself would use
    limits:         the limits of the import, by default `qnn_ext.Limits()`
    constants:      input name -> value of an input that never changes: the module does not have this input, and
                    control flow that depends only on such inputs is decided now. It needs no example
    states:         input name -> name of the output that is its next value, such as a recurrent network's hidden state:
                    the module has neither, the engine keeps the value between calls, from zeros on
                    (`Engine.reset_state`)

    Tensors that the model keeps and changes, buffers of a program and attributes of a script, are states too: they
    begin with the values that they have at import.

    Sequences that TorchScript packs (`pack_padded_sequence`) are computed padded: any lengths may be given at run time,
    and where PyTorch's result would end with the longest sequence, it has as many steps as the input. The example's
    longest sequence must take all of them.

    Files are read and imported in a separate process, which costs the first import a few seconds: PyTorch's readers
    crash on some damaged files, and TorchScript is a program that the import evaluates. That process does not know
    operators that extensions register in this one: load a file that needs them with `torch.jit.load` and pass the
    object.

    Raises ModelFormatError (damaged file, one that crashes PyTorch, pickled module, state dictionary), LimitError
    (beyond the limits), UnsupportedOperatorError, ShapeError, and QnnError when PyTorch is missing.
    """
    from ..feedback import with_states
    from .common import import_torch

    torch = import_torch()
    load_plugins()
    with limited(limits):
        module = _import(torch, source, (example_inputs, shapes, constants or {}), engine)
        return with_states(module, states)


def _import(torch: Any, source: Any, values: tuple[Any, Any, Any], engine: str | None) -> QnnModule:
    """values: example inputs, shapes, constants"""
    example_inputs, shapes, constants = values
    if isinstance(source, torch.export.ExportedProgram):
        from .exported import from_exported_program

        return from_exported_program(source, "model", shapes, example_inputs, constants)
    if isinstance(source, torch.jit.ScriptModule):
        from .torchscript import from_script_module

        return from_script_module(source, example_inputs, shapes, engine, "model", constants=constants)
    if isinstance(source, torch.nn.Module):
        raise ModelFormatError(
            f"a {type(source).__name__} is Python code, not a graph; pass torch.jit.trace(model.eval(), example) for "
            "eager and FX models, or torch.export.export(model, (example,)) for PT2E models"
        )
    if not isinstance(source, (str, os.PathLike, bytes, bytearray, memoryview)):
        raise QnnError(f"from_pytorch takes a path, bytes, a ScriptModule or an ExportedProgram, found {type(source)}")
    return _from_file(source, values, engine)


def _from_file(source: Any, values: tuple[Any, Any, Any], engine: str | None) -> QnnModule:
    from .isolated import import_file
    from .reader import PROGRAM, read_archive
    from .torchscript.engines import resolve_engine

    archive = read_archive(source)
    return import_file(archive, values, None if archive.kind == PROGRAM else resolve_engine(engine))
