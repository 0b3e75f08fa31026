"""What importers of all formats share: the assembly that a walk over a model fills, and an operator under conversion.

An importer knows what its format's operators mean; the assembly binds their expressions, folds constants, enforces the
limits of the import, and builds `main`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from tvm import IRModule, relax

from ..errors import ModelFormatError, UnsupportedOperatorError
from ..module import FloatNote
from ..op.base import as_expr, definition_of
from .building import Builder, bind, fold, identifier


class Assembly:
    """A `main` under construction.

    builder: emits its bindings; TVM's own converters may use it too
    inputs:  the parameters that a caller passes, in order
    states:  the parameters after them: what the model keeps between calls. More may be added during the walk
    notes:   which quantized operators run in float, and why
    """

    def __init__(self, unfolded: Collection[str] = ()) -> None:
        """unfolded: operators of the dialect ("dequantize") that stay calls even when their operands are constant"""
        self.builder = Builder()
        self.inputs: list[relax.Var] = []
        self.states: list[relax.Var] = []
        self.notes: list[FloatNote] = []
        self._unfolded = unfolded

    @property
    def layer(self) -> str:
        """The layer of the model being converted; whatever is emitted without a name is named after it."""
        return self.builder.layer

    @layer.setter
    def layer(self, name: str) -> None:
        self.builder.layer = identifier(name)

    def input(self, name: str, shape: Sequence[int], dtype: str) -> relax.Var:
        """Add an input."""
        var = relax.Var(identifier(name) or "input", relax.TensorType(shape, dtype))
        self.inputs.append(var)
        return var

    def state(self, shape: Sequence[int], dtype: str) -> relax.Var:
        """Add a state."""
        self.states.append(relax.Var(f"state{len(self.states) + 1}", relax.TensorType(shape, dtype)))
        return self.states[-1]

    def emit(self, expr: Any, name: str = "") -> relax.Expr:
        """Bind an expression. Constants and variables stay as they are; a call on constants is computed now.

        Raises LimitError when the result would be too big.
        """
        expr = as_expr(expr)
        bound = bind(self.builder, expr, name)
        definition = definition_of(expr)
        return bound if definition is not None and definition.name in self._unfolded else fold(expr, bound)

    def module(self, walk: Callable[[], Sequence[relax.Expr]]) -> IRModule:
        """A module whose `main` holds what `walk` emits and returns what `walk` returns; dead code is removed.

        The states are known only once the walk is over, but a builder needs a function's parameters up front: so the
        walk runs in a scope of its own, and the function is built from that scope's bindings.
        """
        builder = self.builder
        builder.begin_scope(self.inputs)
        builder._begin_dataflow_block()
        try:
            result = builder.emit_output(relax.Tuple([self._variable(value) for value in walk()]))
        finally:
            block = builder._end_block()
            builder.end_scope()
        body = builder.normalize(relax.SeqExpr([block], result))
        main = relax.Function([*self.inputs, *self.states], body).with_attr("global_symbol", "main")
        main = main.with_attr("num_input", len(self.inputs))
        return relax.transform.DeadCodeElimination(["main"])(IRModule({"main": main}))

    def _variable(self, value: relax.Expr) -> relax.Var:
        return value if isinstance(value, relax.Var) else self.builder.emit(value)


class Conversion:
    """An operator under conversion: what converters of all formats emit into, and refuse with.

    where: returns the operator and its place in the model, for errors
    """

    assembly: Assembly

    def __init__(self, assembly: Assembly, where: Callable[[], str]) -> None:
        self.assembly = assembly
        self._where = where

    @property
    def label(self) -> str:
        """The operator and its place in the model, for errors."""
        return self._where()

    def emit(self, expr: relax.Expr) -> relax.Expr:
        """Bind an intermediate expression, so that its type is known; constant subexpressions are computed now."""
        return self.assembly.emit(expr)

    def unsupported(self, reason: str) -> UnsupportedOperatorError:
        """The error to raise when the operator is used in a way that is not implemented."""
        return UnsupportedOperatorError(f"{self.label}: not supported: {reason}")

    def malformed(self, reason: str) -> ModelFormatError:
        """The error to raise when the model contradicts itself at this operator."""
        return ModelFormatError(f"{self.label}: {reason}")
