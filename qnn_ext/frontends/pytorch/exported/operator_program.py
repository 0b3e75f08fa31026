"""One operator of another importer, converted as torch.export's programs are.

PyTorch traces it on example operands into a program of its own, decomposing what has no converter, and the program is
converted into the other importer's assembly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.export.graph_signature import InputSpec
from tvm import relax

from ....errors import UnsupportedOperatorError
from ....module import TensorSpec
from ...assembly import Assembly
from .importer import ProgramImporter


def convert_operator(
    assembly: Assembly,
    function: Callable[..., Any],
    examples: Sequence[torch.Tensor],
    operands: Sequence[relax.Expr | None],
    label: str,
) -> list[relax.Expr]:
    """The results of `function(*operands)`, each tensor of them.

    examples: a tensor of each operand's shape and dtype; it is the operand itself where that is None
    label:    the operator, for errors. Raises UnsupportedOperatorError
    """
    try:
        program = torch.export.export(_Operator(function).eval(), tuple(examples), strict=False)
    except Exception as error:  # whatever PyTorch raises when it traces
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UnsupportedOperatorError(f"{label}: PyTorch cannot trace this operator ({reason})") from error
    return _Within(assembly, program, examples, operands, label).results()


class _Operator(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *operands: torch.Tensor) -> Any:
        return self._function(*operands)


class _Within(ProgramImporter):
    """The import of a program whose inputs are values of an assembly."""

    def __init__(
        self,
        assembly: Assembly,
        program: Any,
        examples: Sequence[torch.Tensor],
        operands: Sequence[relax.Expr | None],
        label: str,
    ) -> None:
        super().__init__(program, label, {}, assembly=assembly)
        self._given = iter(zip(examples, operands, strict=True))

    def results(self) -> list[relax.Expr]:
        """Convert the program's graph."""
        layer = self.assembly.layer
        self._bind_inputs()
        found = self._converted()
        self.assembly.layer = layer
        return [value for _, value in found]

    def _bind_user_input(self, node: torch.fx.Node, name: str, spec: InputSpec, specs: list[TensorSpec]) -> None:
        example, operand = next(self._given)
        if operand is None:
            self._values.tensors[node] = example
        else:
            self._values[node] = operand
