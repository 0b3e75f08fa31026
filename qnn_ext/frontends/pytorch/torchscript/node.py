"""Node: what a converter sees of one operator: its arguments by name, PyTorch's own result, and how to emit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from .... import op as qnn
from ....module import FloatNote
from ....op.base import constant, shape_of
from ....qparams import QParams
from ...assembly import Assembly, Conversion
from ..common import import_torch
from .values import Reference, Traced, constant_of, plain, qparams_of


class Node(Conversion):
    """One operator under conversion.

    engine:    fbgemm, x86, onednn or qnnpack
    kind:      "quantized::conv2d"
    where:     returns operator and source line, for errors
    arguments: name in the operator's schema -> value (Traced, Reference, torch tensor, or plain Python)
    examples:  PyTorch's results for the example inputs, one per output
    run:       runs PyTorch's operator on other operands, in schema order
    """

    def __init__(
        self,
        assembly: Assembly,
        engine: str,
        kind: str,
        where: Callable[[], str],
        arguments: Mapping[str, Any],
        examples: Sequence[Any],
        run: Callable[[list[Any]], Any],
    ) -> None:
        super().__init__(assembly, where)
        self.engine = engine
        self.kind = kind
        self.arguments = arguments
        self.examples = examples
        self.run = run

    @property
    def name(self) -> str:
        """The layer's name: that of the module holding the operator's parameters, else the operator's own."""
        for value in self.arguments.values():
            if isinstance(value, Reference):
                return value.path.removesuffix("._packed_params").removesuffix("._packed_params")
        return self.kind.split("::")[1]

    # ---- arguments -----------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """An argument as passed to PyTorch: numbers, lists, example tensors."""
        return plain(self.arguments[name])

    def get(self, name: str, default: Any = None) -> Any:
        """An argument that not every overload has."""
        return plain(self.arguments.get(name, default))

    def raw(self, name: str) -> Any:
        """An argument, with traced tensors left in it."""
        return self.arguments[name]

    def expr(self, name: str) -> relax.Expr:
        """A tensor argument as an expression; plain tensors become constants, numbers float32 or int64 scalars."""
        return self.to_expr(self.arguments[name])

    def to_expr(self, value: Any) -> relax.Expr:
        """Any tensor or number as an expression."""
        torch = import_torch()
        if isinstance(value, Traced):
            return value.expr
        if isinstance(value, torch.Tensor):
            return constant_of(value)
        if isinstance(value, (bool, np.bool_)):
            return constant(np.asarray(value))
        if isinstance(value, int):
            return constant(np.asarray(value, np.int64))
        if isinstance(value, float):
            return constant(np.asarray(value, np.float32))
        raise self.unsupported(f"an argument of type {type(value).__name__}")

    def qparams(self, name: str) -> QParams | None:
        """The QParams of a quantized tensor argument, None for a float one."""
        return qparams_of(self[name])

    def quantized(self, name: str) -> QParams:
        """The QParams of an argument that must be quantized. Raises UnsupportedOperatorError otherwise."""
        found = self.qparams(name)
        if found is None:
            raise self.unsupported(f"argument '{name}' that is not quantized")
        return found

    @property
    def output(self) -> QParams | None:
        """The QParams of the (first) result, None when it is not quantized."""
        return qparams_of(self.examples[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the (first) result."""
        return tuple(self.examples[0].shape)

    # ---- building ------------------------------------------------------------------------------------------------

    def emit(self, expr: Any, name: str = "") -> relax.Expr:
        """Bind an expression, so that its type is known. Constant subexpressions are computed now."""
        return self.assembly.emit(expr, name)

    def dequantized(self, name: str) -> relax.Expr:
        """A tensor argument in float32: f32(q − z) · f32(s) for a quantized one, unchanged for a float one."""
        qparams = self.qparams(name)
        return self.expr(name) if qparams is None else self.dequantize(self.expr(name), qparams)

    def dequantize(self, value: relax.Expr, qparams: QParams) -> relax.Expr:
        """f32(q − z) · f32(s): aten::dequantize."""
        return self.emit(qnn.dequantize(value, constant(qparams.scale.astype(np.float32)), qparams.zero_point))

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor argument."""
        return tuple(self[name].shape)

    def move(self, expr: relax.Expr) -> relax.Expr:
        """The result of an operator that only moves values: the example's shape is the result's."""
        bound = self.emit(expr)
        return bound if shape_of(bound) == self.shape else self.emit(relax.op.reshape(bound, list(self.shape)))

    def note(self, reason: str) -> None:
        """Report that this operator runs in float."""
        self.assembly.notes.append(FloatNote(self.name, self.kind, reason))
