"""What the converters of a TFLite graph share: the values of its tensors so far, and the model's variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from tvm import relax

from ...errors import ModelFormatError, UnsupportedOperatorError
from ...limits import charge
from ...op.base import constant, constant_value
from ..assembly import Assembly
from .reader import Model, Subgraph, Tensor
from .variables import Variables

VALUE_DTYPES = (
    "float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool",
)  # fmt: skip


@dataclass(frozen=True)
class ComplexValue:
    """A complex tensor: its parts, float32 tensors."""

    real: relax.Expr
    imaginary: relax.Expr


class TfliteAssembly(Assembly):
    """The assembly of one subgraph.

    numerics:       "float32" or "tflite", see `from_tflite`
    shapes:         the input shapes that the caller of `from_tflite` asked for
    run_graph:      runs a subgraph on these inputs, see `Importer`
    run_once:       runs a subgraph that initializes variables; their first values are then in `variables.initial`
    variables:      those of the whole model
    complex_values: index of a complex tensor -> its parts
    """

    def __init__(
        self,
        model: Model,
        graph: Subgraph,
        numerics: str,
        shapes: Mapping[str, Sequence[int]],
        run_once: Callable[[int], None],
        run_graph: Callable[..., list[relax.Expr]],
    ) -> None:
        super().__init__(unfolded=("blockwise_dequantize",))
        self.model = model
        self.graph = graph
        self.numerics = numerics
        self.shapes = shapes
        self.run_once = run_once
        self.run_graph = run_graph
        self.variables = Variables(self.state)
        self.complex_values: dict[int, ComplexValue] = {}
        self._values: dict[int, relax.Expr] = {}
        self._first_values: dict[int, np.ndarray] = {}

    @cached_property
    def follows_xnnpack(self) -> bool:
        """Whether floats have XNNPACK's last bits, which may decide between two steps of what is quantized after them:
        with numerics "float32", in models with quantized tensors."""
        tensors = (tensor for graph in self.model.subgraphs for tensor in graph.tensors)
        quantized = (tensor.qparams is not None and tensor.dtype != "float32" for tensor in tensors)
        return self.numerics != "tflite" and any(quantized)

    @cached_property
    def quantizes_results(self) -> bool:
        """Whether floats' last bits may decide between two steps of a quantized tensor that an operator computes."""
        tensors = (tensor for graph in self.model.subgraphs for tensor in graph.tensors)
        computed = (tensor for tensor in tensors if tensor.qparams is not None and not tensor.is_constant)
        return self.follows_xnnpack and any(tensor.dtype != "float32" for tensor in computed)

    # ---- tensors -------------------------------------------------------------------------------------------------

    def tensor(self, index: int) -> Tensor:
        """A tensor's description in the file."""
        return self.graph.tensors[index]

    def value(self, index: int) -> relax.Expr:
        """A tensor's value: computed, constant, or the state that a variable tensor keeps between calls."""
        if index in self.complex_values:
            raise UnsupportedOperatorError(
                f"{self.tensor(index).label()} is complex; only REAL, IMAG, COMPLEX_ABS and changes of shape read it"
            )
        if index not in self._values:
            tensor = self.tensor(index)
            if tensor.data is not None:
                self._values[index] = constant(tensor.data)
            elif tensor.is_variable:
                return self.read_variable(index)
            else:
                raise ModelFormatError(f"tensor '{tensor.name}' is used before it is computed")
        return self._values[index]

    def known(self, index: int) -> relax.Expr | None:
        """A tensor's value if an operator has computed it."""
        return self._values.get(index)

    def define(self, index: int, value: relax.Expr) -> None:
        """Give a tensor its value."""
        self._values[index] = value

    # ---- variable tensors -----------------------------------------------------------------------------------------

    def read_variable(self, index: int, shape: Sequence[int] | None = None) -> relax.Expr:
        """A variable tensor (LSTM and SVDF keep their state in one), which starts as zeros, or as what `start_variable`
        was given; `shape` is given where it differs from the file's because the import changed the batch size."""
        tensor = self.tensor(index)
        check_dtype(tensor)
        shape = tensor.shape if shape is None else tuple(shape)
        charge(shape)
        if index in self._first_values:
            initial = self._first_values[index]
            if initial.shape != shape:
                initial = np.broadcast_to(initial[:1], shape).copy()
        else:
            initial = np.zeros(shape, tensor.dtype)
            if tensor.qparams is not None:
                initial += np.asarray(tensor.qparams.zero_point).astype(tensor.dtype)
        if self.graph.index != self.model.main:
            return self.variables.read_owned(self.graph.index, self._state_name(index), initial)
        return self.variables.read(self._state_name(index), initial)

    def start_variable(self, index: int, value: relax.Expr) -> None:
        """What an operator writes into a variable tensor is its first value: LiteRT runs such an operator once. Raises
        UnsupportedOperatorError if the value is not constant."""
        found = constant_value(value)
        if found is None:
            raise UnsupportedOperatorError(f"{self.tensor(index).label()} is a variable with a computed first value")
        self._first_values[index] = found

    def write_variable(self, index: int, value: relax.Expr) -> None:
        """Assign to a variable tensor."""
        self.read_variable(index)
        self.variables.values[self._state_name(index)] = value

    def _state_name(self, index: int) -> str:
        within = f"#{self.graph.index}" if self.graph.index != self.model.main else ""
        return f"{self.tensor(index).name or 'variable'}#{index}{within}"


def check_dtype(tensor: Tensor) -> None:
    """Raises UnsupportedOperatorError when no value can be of the tensor's dtype."""
    if tensor.dtype not in VALUE_DTYPES:
        raise UnsupportedOperatorError(
            f"{tensor.label()} is of dtype {tensor.dtype}; supported: {', '.join(VALUE_DTYPES)}"
        )
