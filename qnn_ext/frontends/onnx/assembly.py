"""What the converters of an ONNX model share: its values so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod

import numpy as np
from tvm import relax

from ...errors import ModelFormatError, ShapeError
from ...op.base import constant, constant_value, shape_of
from ...op.check import DTYPES, check_bounds
from ...passes.marks import Mark
from ..assembly import Assembly
from .neighbours import Neighbours
from .reader import Model


class OnnxAssembly(Assembly):
    """The assembly of a model. Constant weights stay integers: their dequantization is not computed.

    constants:     name -> value
    narrow_dtypes: name -> "int4" and the like, where a value is held in 8 bits
    neighbours:    the operators of the graph that is converted
    marked:        variables of which passes must know more than their operators tell, by their names
    """

    def __init__(self, model: Model, largest: Mapping[str, int] | None = None) -> None:
        """largest: name of a computed integer -> its largest value"""
        super().__init__(unfolded=("dequantize", "blockwise_dequantize"))
        self._largest = dict(largest or {})
        self._unbounded = set(self._largest)
        self.model = model
        self.constants = dict(model.constants)
        self.narrow_dtypes = dict(model.narrow_dtypes)
        self.neighbours = Neighbours()
        self.marked: dict[str, Mark] = {}
        self._values: dict[str, relax.Expr] = {}

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A context for the values of a node's graph, which are forgotten afterwards; it may use all others."""
        outside = self.constants, self.narrow_dtypes, self._values
        self.constants, self.narrow_dtypes, self._values = (dict(values) for values in outside)
        try:
            yield
        finally:
            self.constants, self.narrow_dtypes, self._values = outside

    def emit_marked(self, expr: relax.Expr, name: str, mark: Mark) -> relax.Expr:
        """`emit`, and mark the variable."""
        bound = self.emit(expr, name)
        if isinstance(bound, relax.Var):
            self.marked[bound.name] = mark
        return bound

    def value(self, name: str) -> relax.Expr:
        """A value by its name: an input, a constant, or computed by an earlier node."""
        if name not in self._values:
            if name not in self.constants:
                raise ModelFormatError(f"value {name!r} is used before it is computed")
            self._values[name] = constant(self.constants[name])
        return self._values[name]

    def define(self, name: str, value: relax.Expr) -> None:
        """Give a name its value."""
        self._values[name] = self._bounded(name, value) if name in self._largest else value

    def _bounded(self, name: str, value: relax.Expr) -> relax.Expr:
        """A computed integer that is checked to be from 0 to its largest value, and may be a size."""
        self._unbounded.discard(name)
        if not isinstance(value, relax.Expr):
            raise ShapeError(f"largest names '{name}', which is no tensor but a sequence of them")
        dtype, most = str(value.ty.dtype), self._largest[name]
        if dtype not in DTYPES or prod(shape_of(value)) != 1 or not 1 <= most <= np.iinfo(dtype).max:
            raise ShapeError(
                f"largest={{{name!r}: {most}}} must be the largest value, from 1 on, of one integer; the "
                f"model computes {dtype} of shape {shape_of(value)}"
            )
        label = f"'{name}', of which largest says what it may be"
        checked = self.emit(check_bounds(value, 0, most, label), name)
        if constant_value(checked) is None:
            self.builder.sizes.declare(checked, most, label)
        return checked

    def integer_behind(self, value: relax.Expr) -> str | None:
        """The name of the integer of the model that a scalar is, or was moved or converted from."""
        while isinstance(value, relax.Var):
            if prod(shape_of(value)) == 1 and str(value.ty.dtype) in DTYPES:
                for name, known in self._values.items():
                    if known is value or (isinstance(known, relax.Var) and known.same_as(value)):
                        return name
            call = self.builder.lookup_binding(value)
            value = call.args[0] if isinstance(call, relax.Call) and call.args else None
        return None

    def check_all_bounded(self) -> None:
        """Raises ShapeError if a value whose largest one was given is not computed."""
        if self._unbounded:
            raise ShapeError(
                f"largest names {', '.join(map(repr, sorted(self._unbounded)))}, which the model does not compute"
            )

    def is_known(self, name: str) -> bool:
        """Whether a name has a value."""
        return name in self._values or name in self.constants
