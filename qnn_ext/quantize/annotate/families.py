"""How quantization treats each operator, derived from its traits.

A family says what happens to values, not how: an operator without traits computes in float, between tensors that others
may quantize.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from tvm import ir, relax

from ...op.base import OPS
from ...op.relax_table import RELAX, traits_of
from ...op.traits import Kind, Traits
from ...passes.rewrite import op_name


class Family(Enum):
    """How an operator works on quantized tensors.

    ANNOTATED: says itself which arguments are quantized, and turns into integers by a rule of its own
    PRODUCT:   multiplies and accumulates integers: both operands are quantized, the result is an int32 accumulator
    SUM:       averages and sums over positions: on integers if its data is quantized
    POINTWISE: each element by itself: in the kernel of the preceding operator, or on integers
    MOVE:      moves values or preserves their order: its integers are those of its data
    JOIN:      combines several tensors: shares one scale with those that only it reads
    FLOAT:     everything else
    """

    ANNOTATED = "annotated"
    PRODUCT = "product"
    SUM = "sum"
    POINTWISE = "pointwise"
    MOVE = "move"
    JOIN = "join"
    FLOAT = "float"


# the families that follow from the operator's kind alone
_OF_KIND = {
    Kind.MOVE: Family.MOVE,
    Kind.SELECTION: Family.MOVE,
    Kind.JOIN: Family.JOIN,
    Kind.SUM: Family.SUM,
    Kind.ROWS: Family.SUM,
}


def family_of(value: Any, float_functions: Sequence[str], dynamic: bool = False) -> Family:
    """The family of a bound value; the `float_functions` of a QConfig stay float.

    dynamic: whether scales are computed at run time, which interpolation of integers has to know before
    """
    if isinstance(value, relax.TupleGetItem):
        return Family.MOVE
    traits = traits_of(value)
    if traits.annotate is not None:
        return Family.ANNOTATED
    if traits.function is not None:
        return _family_of_function(traits, float_functions)
    if traits.product is not None:
        return Family.PRODUCT if all(len(arg.ty.shape) for arg in traits.operands(value)) else Family.FLOAT
    if traits.fill is not None and not _fills_with_zeros(value, traits.fill):
        return Family.JOIN  # the fill value joins the data's values, and needs an integer of the same scale
    if is_integer_resize(value):
        return Family.FLOAT if dynamic else Family.MOVE
    if traits.kind is Kind.POINTWISE:
        return Family.POINTWISE if traits.quantizable else Family.FLOAT
    return _OF_KIND.get(traits.kind, Family.FLOAT)


def _family_of_function(traits: Traits, float_functions: Sequence[str]) -> Family:
    """If it stays float, a pointwise function is computed in the preceding kernel; otherwise its data are quantized,
    and a pointwise function becomes a table."""
    if traits.function not in float_functions:
        return Family.SUM
    return Family.POINTWISE if traits.kind is Kind.POINTWISE else Family.FLOAT


def _fills_with_zeros(call: relax.Call, fill: str) -> bool:
    """Whether a pad fills with zeros, which have an integer at any scale, or with mirrored values."""
    return str(call.attrs.pad_mode) != "constant" or float(getattr(call.attrs, fill)) == 0.0


def quantized_operators() -> set[str]:
    """The names of all operators that can be quantized."""
    pointwise = {name for name, traits in RELAX.items() if traits.quantizable}
    others = {name for name, traits in RELAX.items() if traits.kind in _OF_KIND or traits.product or traits.function}
    annotated = {f"qnn.{name}" for name, definition in OPS.items() if definition.traits.annotate}
    return pointwise | others | annotated | {"image.resize2d"}


def is_integer_resize(call: Any) -> bool:
    """Whether a call is an image.resize2d that qnn.resize_bilinear computes: of whole images, by a known rule for
    coordinates. Averages of neighbours lie between them and are rounded to integers of the image's scale."""
    if op_name(call) != "image.resize2d":
        return False
    attributes = call.attrs
    plain = str(attributes.method) == "linear" and all(float(bound.value) == 0.0 for bound in attributes.roi)
    modes = ("half_pixel", "align_corners", "asymmetric")
    return plain and str(attributes.coordinate_transformation_mode) in modes


def is_constant(expr: Any) -> bool:
    """Whether an operand is a constant."""
    return isinstance(expr, ir.expr.GenericConst)
