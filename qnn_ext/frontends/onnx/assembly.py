"""What the converters of an ONNX model share: its values so far."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tvm import relax

from ...errors import ModelFormatError
from ...op.base import constant
from ..assembly import Assembly
from .reader import Model


class OnnxAssembly(Assembly):
    """The assembly of a model. Constant weights stay integers: their dequantization is not computed.

    constants:     name -> value
    narrow_dtypes: name -> "int4" and the like, where a value is held in 8 bits
    """

    def __init__(self, model: Model) -> None:
        super().__init__(unfolded=("dequantize", "blockwise_dequantize"))
        self.model = model
        self.constants = dict(model.constants)
        self.narrow_dtypes = dict(model.narrow_dtypes)
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

    def value(self, name: str) -> relax.Expr:
        """A value by its name: an input, a constant, or computed by an earlier node."""
        if name not in self._values:
            if name not in self.constants:
                raise ModelFormatError(f"value {name!r} is used before it is computed")
            self._values[name] = constant(self.constants[name])
        return self._values[name]

    def define(self, name: str, value: relax.Expr) -> None:
        """Give a name its value."""
        self._values[name] = value

    def is_known(self, name: str) -> bool:
        """Whether a name has a value."""
        return name in self._values or name in self.constants
