"""One operator of another importer, converted as torch.export's programs are.

PyTorch traces it on example operands into a program of its own, decomposing what has no converter, and the program is
converted into the other importer's assembly.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.export.graph_signature import InputSpec
from tvm import relax

from ....errors import UnsupportedOperatorError
from ....module import TensorSpec
from ...assembly import Assembly
from .importer import ProgramImporter
from .nodes import target_name


class _Operator(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *operands: torch.Tensor) -> Any:
        return self._function(*operands)


class OperatorProgram(ProgramImporter):
    """The import of an operator's program, whose inputs are values of an assembly."""

    def __init__(
        self,
        assembly: Assembly,
        function: Callable[..., Any],
        examples: Sequence[tuple[torch.Tensor, Collection[int]]],
        label: str,
    ) -> None:
        """function, examples: the operator, and for each operand a tensor of its shape and dtype, and its axes whose
        sizes are known only at run time
        label:    the operator, for errors. Raises UnsupportedOperatorError, before anything is computed
        """
        tensors = tuple(tensor for tensor, _ in examples)
        free = tuple(dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for _, axes in examples)
        shapes = (free,) if any(free) else None
        try:
            program = torch.export.export(_Operator(function).eval(), tensors, dynamic_shapes=shapes, strict=False)
        except Exception as error:  # whatever PyTorch raises when it traces
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UnsupportedOperatorError(f"{label}: PyTorch cannot trace this operator ({reason})") from error
        super().__init__(program, label, {}, assembly=assembly)
        for node in self.program.graph.nodes:
            if node.op == "call_function" and not self._is_supported(node):
                raise UnsupportedOperatorError(
                    f"{label}: operator {target_name(node)} is not supported; rewrite this part with others"
                )
        self._examples = tensors

    def results(self, operands: Sequence[relax.Expr | None]) -> list[relax.Expr]:
        """All tensors that the operator computes of operands; one that is None is its example."""
        self._given = iter(zip(self._examples, operands, strict=True))
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


ProgramImporter.operator_program = OperatorProgram
