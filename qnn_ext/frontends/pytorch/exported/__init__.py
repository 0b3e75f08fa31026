"""Programs of `torch.export`: PT2E, reference and torchao quantized models, as objects or `.pt2` files.

PyTorch is only imported when a program is loaded or converted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ....errors import QnnError
from ....module import QnnModule


def load_program(source: str | os.PathLike | bytes, name: str | None = None) -> Any:
    """The `torch.export.ExportedProgram` in a `.pt2` file, or in the bytes of one. Nothing in the file is executed: no
    pickles beyond plain tensors, no expressions.

    name: where the bytes came from, for messages

    Raises ModelFormatError (corrupt file), UnsupportedOperatorError (the program holds more than tensors).
    """
    from .archive import read_program

    return read_program(source, name)


def from_exported_program(
    program: Any,
    source: str = "model",
    shapes: Mapping[str, Sequence[int]] | None = None,
    example_inputs: Any = None,
    constants: Mapping[str, Any] | None = None,
) -> QnnModule:
    """Import a `torch.export.ExportedProgram`.

    source: where the program came from, for messages
    shapes: input name -> shape, which fixes the program's symbolic dimensions
    example_inputs: arrays or tensors, in order or by name, whose shapes fix them as well
    constants: input name -> value of an input that never changes: the module does not have this input

    Quantize and dequantize operators become R.qnn.quantize and R.qnn.dequantize with PyTorch's rounding, rint(x · f32(1
    / scale)) + zero_point; `qnn_ext.passes.qdq_to_integer` turns what lies between them into integer operators. Raises
    UnsupportedOperatorError, ShapeError, ModelFormatError.
    """
    from .operator_program import ProgramImporter  # complete only with that module

    if shapes is not None and not isinstance(shapes, Mapping):
        raise QnnError("for a torch.export program, shapes must be a mapping from input name to shape")
    return ProgramImporter(program, source, shapes or {}, example_inputs, constants).run()
