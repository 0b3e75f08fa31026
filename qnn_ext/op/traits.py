"""What passes need to know about an operator: its kind, the roles of its arguments, how it treats axes and offsets.

The traits of the dialect's operators are given in `define(...)`, those of Relax's own in `relax_table.py`, whose
`traits_of` answers for both. Passes ask for traits and contain neither lists of operators nor positions of arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from tvm import relax


class Kind(Enum):
    """What an operator does to values.

    MOVE:        each element of the result is an element of the data or a fill value, regardless of the values
    JOIN:        a move of several tensors into one
    SELECTION:   each element of the result is one of the data's, chosen by order: maxima and minima
    POINTWISE:   each element of the result depends on one element of each operand
    PRODUCT:     products of elements of two tensors, added up
    ACCUMULATOR: a product of raw integers, for which the strategy registry has kernels
    SIDE_TERM:   a sum over the data a product reads, computed inside the product's kernel
    SUM:         sums and averages over windows or axes
    ROWS:        functions of whole rows: softmax and normalizations
    SEARCH:      positions of values, or values in order
    CREATION:    values that come from no tensor, or only from its shape
    LOOP:        a body with operators of its own, run again and again: not one kernel but many
    OTHER:       everything else
    """

    MOVE = "move"
    JOIN = "join"
    SELECTION = "selection"
    POINTWISE = "pointwise"
    PRODUCT = "product"
    ACCUMULATOR = "accumulator"
    SIDE_TERM = "side term"
    SUM = "sum"
    ROWS = "rows"
    SEARCH = "search"
    CREATION = "creation"
    LOOP = "loop"
    OTHER = "other"


class Product(Enum):
    """How many multiply-accumulates a product needs, and where its channels are.

    MATRIX:     (elements of the result) · (length of a row of the first operand)
    CONVOLUTION: (elements of the result) · (weights of an output channel)
    TRANSPOSED: (elements of the data) · (weights of an input channel)
    """

    MATRIX = "matrix"
    CONVOLUTION = "convolution"
    TRANSPOSED = "transposed convolution"


@dataclass(frozen=True)
class Data:
    """An argument that holds data, and the arguments with its quantization parameters.

    axis: the attribute that names the axis of per-channel parameters; None if they are always scalars
    """

    name: str
    scale: str | None = None
    zero_point: str | None = None
    axis: str | None = None


@dataclass(frozen=True)
class Output:
    """The arguments with the quantization parameters of the result.

    axis: as in Data
    offset: whether the zero point is added after all rounding, so that raising the zero point by n raises every result
            by n. Relay's roundings in float are the exception: they add the zero point before they round.
    """

    scale: str | None
    zero_point: str
    axis: str | None = None
    offset: bool = False


# (call, axis of the data) -> that axis in the result; None if the operator breaks it up or mixes elements along it
MovedAxis = Callable[[relax.Call, int], "int | None"]


@dataclass(frozen=True)
class Traits:
    """What passes need to know about an operator.

    arguments:  names of the tensor arguments, in order; "*" takes all remaining ones
    data:       those that hold data, in order; an argument may be a tuple of tensors
    output:     the quantization parameters of the result; None if it has none
    others:     all other arguments: tables, biases, indices, conditions
    weight:     the data argument that is usually constant and packed when the model is built
    product:    for a product, its kind
    shift_invariant: whether data enter the formula only as data − zero point
    runtime_zero_point: whether run-time zero points are supported
    selects:    for a pointwise operator whose results are elements of some of its data arguments: those arguments
    clips:      call -> (low, high), for an operator that clamps its data to this range
    fill:       for a move, the attribute with the fill value of `pad_mode` "constant"
    moved_axis: where an axis of the data ends up in the result
    reshapes:   for a move, whether the elements stay in row-major order
    permutes:   for a move, whether it reorders the axes as the attribute `axes` says
    layouts:    the attributes that name the axis order of data and result, for an operator that accepts any order
    axis:       the attribute that names the one axis along which it works; it treats all positions of the others alike
    reduces:    whether it reduces the axes in the attribute `axis` (all if empty), with the attribute `keepdims`
    cheap:      for a pointwise function of reals, whether it is as fast as a table lookup; None if no table can replace
                it
    quantizable: whether quantization can make it work on integers
    function:   its name in the float_functions of a QConfig
    homogeneous: whether f(s·x) = s·f(x) for s > 0
    annotate:   call -> the arguments that quantization makes integers, each with the axis of a constant with one scale
                for each slice, None for a single scale; for operators whose other traits do not say it
    """

    kind: Kind
    arguments: tuple[str, ...] = ()
    data: tuple[Data, ...] = ()
    output: Output | None = None
    others: tuple[str, ...] = ()
    weight: str | None = None
    product: Product | None = None
    shift_invariant: bool = False
    runtime_zero_point: bool = False
    selects: tuple[str, ...] = ()
    clips: Callable[[relax.Call], tuple[float, float]] | None = None
    fill: str | None = None
    moved_axis: MovedAxis | None = None
    reshapes: bool = False
    permutes: bool = False
    layouts: tuple[str, ...] = ()
    axis: str | None = None
    reduces: bool = False
    cheap: bool | None = None
    quantizable: bool = False
    function: str | None = None
    homogeneous: bool = False
    annotate: Callable[[relax.Call], Mapping[str, int | None]] | None = None

    def of(self, arguments: Sequence[str]) -> Traits:
        """The traits of an operator with these arguments; the first one holds the data unless stated otherwise. Raises
        ValueError for roles of arguments that do not exist."""
        data = self.data or tuple(Data(name) for name in arguments[:1] if not name.startswith("*"))
        complete = replace(self, arguments=tuple(arguments), data=data)
        unknown = set(complete.roles) - {name.removeprefix("*") for name in arguments}
        if unknown:
            raise ValueError(
                f"the traits refer to {', '.join(sorted(unknown))}, which are not among the arguments "
                f"{', '.join(arguments)}"
            )
        return complete

    @property
    def roles(self) -> tuple[str, ...]:
        """All arguments whose role is known."""
        parameters = [name for data in self.data for name in (data.name, data.scale, data.zero_point)]
        output = (self.output.scale, self.output.zero_point) if self.output else ()
        return tuple(name for name in (*parameters, *output, *self.others) if name is not None)

    @property
    def quantized(self) -> bool:
        """Whether it computes with integers that stand for reals: it has quantization parameters, or multiplies raw
        integers. The dialect's other operators work on floats as well."""
        return self.output is not None or self.kind is Kind.ACCUMULATOR or any(data.scale for data in self.data)

    @property
    def carries(self) -> bool:
        """Whether its results are values of its data, so that a monotonic function may be applied to the data instead:
        MOVE, JOIN and selecting operators, if the result has no scale of its own."""
        return (self.kind in (Kind.MOVE, Kind.JOIN, Kind.SELECTION) or bool(self.selects)) and self.output is None

    @property
    def rearranges(self) -> bool:
        """Whether it is a reshape or a transpose: each element of the data is in the result exactly once."""
        return self.reshapes or self.permutes

    @property
    def rounds(self) -> bool:
        """Whether a pointwise operator rounds its results to integers of another scale."""
        return self.output is not None

    def index(self, name: str) -> int:
        """The position of an argument."""
        return self.arguments.index(name)

    def argument(self, call: relax.Call, name: str) -> Any:
        """The argument of a call with this name."""
        return call.args[self.index(name)]

    @property
    def carried(self) -> tuple[str, ...]:
        """The arguments whose values reappear in the result; for other operators, all data."""
        return self.selects or tuple(data.name for data in self.data)

    def operands(self, call: relax.Call) -> list[Any]:
        """A call's arguments that `carried` names, with tuples unpacked."""
        found = [self.argument(call, name) for name in self.carried]
        return [field for arg in found for field in (list(arg.fields) if isinstance(arg, relax.Tuple) else [arg])]

    def with_operands(self, call: relax.Call, operands: Sequence[Any]) -> relax.Call:
        """The call with other data, as `operands` lists them."""
        args, rest = list(call.args), iter(operands)
        for name in self.carried:
            old = self.argument(call, name)
            fields = old.fields if isinstance(old, relax.Tuple) else None
            args[self.index(name)] = next(rest) if fields is None else relax.Tuple([next(rest) for _ in fields])
        return relax.Call(call.op, args, call.attrs, call.ty_args)


UNKNOWN = Traits(Kind.OTHER)
